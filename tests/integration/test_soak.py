"""The soak, for a few seconds, against a server of its own with a tiny model that is swapped meanwhile."""

from pathlib import Path

import pytest

from loadtests.soak.__main__ import SERVER_SETTINGS
from loadtests.soak.access_log import read_access_log
from loadtests.soak.book import Book
from loadtests.soak.observations import Sample, Settings
from loadtests.soak.run import run
from loadtests.soak.verdict import summarize
from loadtests.stress.server import Versions
from loadtests.target import ServerProcess
from loadtests.texts import SENTENCES, Texts
from tests.integration.real_process import CHECKOUT, START_S

SETTINGS = Settings(
    duration_s=4.0,
    warm_up_s=0.5,
    calibration_s=0.5,
    num_callers=8,
    load_share=0.65,
    swap_each_s=0.8,
    sample_each_s=0.25,
    num_windows=6,
    max_growth_mb=48.0,
    seed=1,
)


def test_books_of_callers_and_server_agree_whatever_callers_and_versions_do(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "proto"))
    versions, log, book, samples = (
        Versions(tmp_path, tiny_model / "tiny" / "1"),
        tmp_path / "log",
        Book(),
        list[Sample](),
    )
    versions.add(1)
    with ServerProcess(log, "--models", str(tmp_path), environment=SERVER_SETTINGS) as server:
        server.wait_until_ready(timeout_s=START_S)
        texts = Texts(SENTENCES, origin="built-in sentences")

        found = run(server, versions, texts, book, SETTINGS, progress=samples.append)

        assert server.stop() == 0
    summary = summarize(found, book, read_access_log(log), SETTINGS)
    assert (summary.unanswered, summary.twice, summary.wrong, summary.errors) == ([], [], [], [])
    assert (summary.balance.twice, summary.balance.differing, summary.balance.miscounted) == ([], [], [])
    assert (summary.threads_left, summary.fds_left, summary.tasks_left, summary.slots_left) == (0, 0, 0, 0)
    assert summary.num_swaps == summary.num_swaps_counted > 0
    assert 0 < summary.num_sentences <= summary.num_segments
    assert summary.ends["OK"] > 0  # who else is met in a few seconds is luck, and for the verdict of a real soak
    assert summary.trend is not None
    assert list(found.samples) == samples
