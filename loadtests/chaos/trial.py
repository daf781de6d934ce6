"""One fault: what was before, the fault among bystanders, the recovery, and what is left."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from loadtests.chaos.bystanders import Bystanders, Question, judged
from loadtests.chaos.calls import Client, Reply
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.scale import Scale
from loadtests.chaos.venue import Venue
from loadtests.chaos.verdict import TrialResult
from loadtests.sampler import Footprint, footprint, work_left
from loadtests.target import ServerError, ServerProcess

_RECOVERY_TIMEOUT_S: Final = 30.0
_SETTLE_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


def run_trial(fault: Fault, venue: Venue, scale: Scale, questions: Sequence[Question]) -> TrialResult:
    """Do a fault to a server that is well, and return what came of it; a server that ends of it is a result, too."""
    before = footprint(venue.server.pid)
    began_s = time.monotonic()
    bystanders = Bystanders(venue.server.target, questions)
    stage = Stage(
        venue=venue, scale=scale, bystanders=bystanders, questions=questions, began_s=began_s, hits=Counter(), broken=[]
    )
    seen, recovered_s, left, after = "", None, {}, before
    try:
        with bystanders:
            bystanders.wait_for_answers()
            seen = fault.run(stage)
            recovered_s = _recovery_s(venue.server, questions[0])
            if recovered_s is not None:
                bystanders.wait_for_answers()
        left = _left(venue.server)
        after = _settled(venue.server, before, max_file_growth=fault.limits.max_file_growth)
    except ServerError as error:
        stage.broken.append(str(error))
    except OSError as error:  # of the metrics' port, or no port is free any more
        stage.broken.append(f"the server, or this machine, is not in reach: {error}")
    return TrialResult(
        fault=fault.name,
        limits=fault.limits,
        hits=stage.hits + Counter(_statuses(bystanders.translations, fault.statuses_in_batch)),
        seen=seen,
        is_counted=fault.is_counted,
        broken=tuple(stage.broken),
        translations=tuple(bystanders.translations),
        checks=tuple(bystanders.checks),
        statuses_in_batch=fault.statuses_in_batch,
        recovered_s=recovered_s,
        left=left,
        rss_growth_mb=after.rss_mb - before.rss_mb,
        thread_growth=after.num_threads - before.num_threads,
        file_growth=after.num_fds - before.num_fds,
        began_s=began_s,
        elapsed_s=time.monotonic() - began_s,
    )


def learn_answers(target: str, requests: Sequence[bytes]) -> list[Question]:
    """Ask a server that is well; what it answers now is what it must answer later, bit for bit.

    Raises:
        ServerError: if it does not answer.
    """
    questions = []
    with Client(target) as client:
        for request in requests:
            reply = client.translate(request)
            if reply.status != "OK":
                raise ServerError(f"a server to which nothing was done answers {reply.status}: {reply.message}")
            questions.append(Question(request=request, answer=reply.answer))
    return questions


def _statuses(replies: Sequence[Reply], among: frozenset[str]) -> list[str]:
    return [reply.status for reply in replies if reply.status in among]


def _recovery_s(server: ServerProcess, question: Question) -> float | None:
    """Return after how long a new connection gets right answers; None if it does not for long, or the server ended."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < _RECOVERY_TIMEOUT_S and server.exit_code is None:
        with Client(server.target) as client:
            replies = client.check(timeout_s=5), judged(client.translate(question.request, timeout_s=5), question)
        if all(reply.status == "OK" for reply in replies):
            return time.monotonic() - began_s
        time.sleep(_POLL_S)
    return None


def _left(server: ServerProcess) -> dict[str, float]:
    """Return gauges of work that do not come to rest now that nobody asks."""
    until_s = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        samples = server.samples()
        left = work_left(samples)
        if samples.get("mt_ready") != 1:
            left["mt_ready"] = samples.get("mt_ready", 0.0)
        if not left or time.monotonic() > until_s:
            return left
        time.sleep(_POLL_S)


def _settled(server: ServerProcess, before: Footprint, *, max_file_growth: int) -> Footprint:
    """Return what the process is like once the connections of those who have gone are closed, or still is like."""
    until_s = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        facts = footprint(server.pid)
        if facts.num_fds <= before.num_fds + max_file_growth or time.monotonic() > until_s:
            return facts
        time.sleep(_POLL_S)
