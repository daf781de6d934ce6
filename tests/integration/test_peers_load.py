"""A server of ours and one over CTranslate2, as processes, under a little load."""

import os
from pathlib import Path

import psutil
import pytest

from export.graph.network import Network
from loadtests.peers.batching import BatchingSettings
from loadtests.peers.ctranslate2_system import convert
from loadtests.peers.load_comparison import PausedServer, our_server, their_server
from loadtests.peers.models import network_of, write_model
from loadtests.texts import Profile
from loadtests.workload import Workload
from service.bundle import Limits
from tests.integration.real_process import CHECKOUT
from tests.tiny_bundle import SENTENCES, tiny_model, tiny_vocabulary


def _is_stopped(server: PausedServer) -> bool:
    return all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in server.pids)


@pytest.mark.slow
def test_both_servers_answer_the_same_calls_and_stand_still_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT / "proto"), os.environ.get("PYTHONPATH", "")]))
    vocabulary = tiny_vocabulary()
    limits = Limits(max_source_tokens=64, max_target_tokens=64)
    files = write_model(tmp_path / "tiny", Network.of(tiny_model(len(vocabulary))), vocabulary, limits)
    convert(network_of(files), files.ctranslate2_path)
    lines = tmp_path / "texts.txt"
    lines.write_text("".join(f"{text}\n" for text in SENTENCES[:4]), encoding="utf-8")
    workload = Workload(profile=Profile.LINES, lines=lines)
    settings = BatchingSettings.parse("1x1,b8,w1")

    with (
        our_server(files, workload, log=tmp_path / "ours.log") as ours,
        their_server(files, workload, "ctranslate2", settings, log=tmp_path / "theirs.log") as theirs,
    ):
        answers = [server.answers(count=6) for server in (ours, theirs)]
        summaries = [server.offer(rate_per_s=40.0, duration_s=0.5, seed=1) for server in (ours, theirs)]

        assert _is_stopped(ours)
        assert _is_stopped(theirs)

    assert [len(said) for said in answers] == [6, 6]
    assert [answer.num_source_tokens for answer in answers[0]] == [answer.num_source_tokens for answer in answers[1]]
    assert summaries[0].offered == summaries[1].offered > 0
    assert [summary.answered for summary in summaries] == [summary.offered for summary in summaries]
