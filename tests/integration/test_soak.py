"""The soak, for a few seconds, against a server of its own with a tiny model that is swapped meanwhile."""

from pathlib import Path

import pytest

from loadtests.stress.server import Versions, log_path, started
from loadtests.stress.soak.judging import Notes
from loadtests.stress.soak.ledger import read_access_log
from loadtests.stress.soak.run import Sample, Settings, soak
from loadtests.stress.soak.scenario import SERVER_SETTINGS, summarize
from loadtests.texts import SENTENCES, Texts
from tests.integration.real_process import CHECKOUT

SETTINGS = Settings(duration_s=6.0, num_callers=8, swap_each_s=0.8)


@pytest.mark.slow
def test_ledgers_of_callers_and_server_agree_whatever_callers_and_versions_do(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "proto"))
    versions, notes, samples = Versions(tmp_path / "models", tiny_model / "tiny" / "1"), Notes(), list[Sample]()
    versions.add(1)
    with started(tmp_path, models=tmp_path / "models", settings=SERVER_SETTINGS) as server:
        texts = Texts(SENTENCES, origin="built-in sentences")

        found = soak(server, versions, texts, notes, SETTINGS, progress=samples.append)

        exit_code = server.stop()
    summary = summarize(
        found,
        notes,
        read_access_log(log_path(tmp_path).read_text(encoding="utf-8").splitlines()),
        SETTINGS,
        exit_code=exit_code,
    )
    of_long_runs = {"everything is met", "memory does not grow"}
    uncertain = {"each answer is right", *of_long_runs}
    assert [promise.sentence for promise in summary.broken if promise.name not in uncertain] == []
    assert [sentence for sentence in notes.wrong if "NUL" not in sentence] == []  # random weights may choose that byte
    assert notes.num_sentences > 0
    assert found.num_swaps > 0
    assert notes.num_ended("OK") > 0
    assert list(found.samples) == samples
