"""A server of ours and one over CTranslate2, as processes, under a little load."""

from functools import partial
from pathlib import Path

import psutil
import pytest

from loadtests.peers.load import serving
from loadtests.peers.serve import BatchingSettings
from loadtests.texts import Profile
from loadtests.workload import Workload
from tests.tiny_bundle import SENTENCES
from tests.unit.loadtests.peers.tiny_files import write_tiny_model


@pytest.mark.slow
def test_both_servers_answer_the_same_calls_and_stand_still_in_between(tmp_path: Path) -> None:
    lines = tmp_path / "texts.txt"
    lines.write_text("".join(f"{text}\n" for text in SENTENCES[:4]), encoding="utf-8")
    serve = partial(serving, write_tiny_model(tmp_path / "tiny"), Workload(profile=Profile.LINES, lines=lines))

    theirs = BatchingSettings.parse("1x1,b8,w1")
    with serve(log=tmp_path / "ours.log") as ours, serve(log=tmp_path / "theirs.log", other=theirs) as other:
        answers = [server.answers(count=6) for server in (ours, other)]
        summaries = [server.offer(rate_per_s=40.0, duration_s=0.5, seed=1) for server in (ours, other)]
        states = {psutil.Process(pid).status() for server in (ours, other) for pid in server.pids}

    assert states == {psutil.STATUS_STOPPED}
    assert [len(said) for said in answers] == [6, 6]
    assert [answer.num_source_tokens for answer in answers[0]] == [answer.num_source_tokens for answer in answers[1]]
    assert summaries[0].offered == summaries[1].offered > 0
    assert [summary.answered for summary in summaries] == [summary.offered for summary in summaries]
