"""The soak, for a few seconds, against a server of its own with a tiny model that is swapped meanwhile."""

from pathlib import Path

import pytest

from loadtests.stress.server import add_version, started
from loadtests.stress.soak.ledger import read_access_log
from loadtests.stress.soak.scenario import SERVER_SETTINGS, Settings, soak, summarize
from loadtests.texts import SENTENCES, Texts
from tests.integration.real_process import CHECKOUT

SETTINGS = Settings(duration_s=6.0, num_callers=8, swap_each_s=0.8)


@pytest.mark.slow
def test_ledgers_of_callers_and_server_agree_whatever_callers_and_versions_do(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "proto"))
    models, bundle = tmp_path / "models", tiny_model / "tiny" / "1"
    add_version(bundle, models, 1)
    with started(tmp_path, models=models, settings=SERVER_SETTINGS) as server:
        found = soak(server, models, bundle, Texts(SENTENCES, origin="built-in sentences"), SETTINGS)
        exit_code = server.stop()
    summary = summarize(found, *read_access_log(tmp_path), exit_code=exit_code)
    of_long_runs = {"everything is met", "memory does not grow"}
    broken = {promise.name: promise.broken for promise in summary.broken if promise.name not in of_long_runs}
    wrong = broken.pop("each answer is right", [])
    assert broken == {}
    assert [sentence for sentence in wrong if "NUL" not in sentence] == []  # random weights may choose that byte
    assert found.notes.num_sentences > 0
    assert found.num_swaps > 0
    assert found.notes.num_ended("OK") > 0
    assert "0 of 6 s: rss_mb=" in capsys.readouterr().err
