"""Finished calls, as gRPC hands them over, and records of calls."""

from collections.abc import Sequence
from typing import Any

import grpc

from loadtests.records import CallRecord, Summary, summarize
from loadtests.wire import Outcome
from service.api import status
from service.errors import DragomanError


class EndedCall:
    """A call that is done: as the server's own table of statuses answers an error, or well."""

    def __init__(self, error: DragomanError | None = None, *, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        answer = None if error is None else status.answer(error)
        self._code = code if answer is None else answer.code
        self._message = "" if answer is None else answer.message
        self.trailing: Any = () if answer is None else answer.trailing_metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> Any:
        return self.trailing


def record(
    outcome: Outcome, *, planned_s: float = 0.0, lag_s: float = 0.0, latency_s: float = 0.01, **told: Any
) -> CallRecord:
    """A call that took so long from when it was planned."""
    times = {"planned_s": planned_s, "sent_s": planned_s + lag_s, "ended_s": planned_s + latency_s}
    return CallRecord(**{**times, "outcome": outcome, "status": outcome.name, **told})


def summary_of(
    *, latencies_s: Sequence[float] = (), num_errors: int = 0, num_rejected: int = 0, lag_s: float = 0.0
) -> Summary:
    """The figures of ten seconds in which so many calls were answered after so long."""
    answered = [record(Outcome.ANSWERED, latency_s=latency_s, lag_s=lag_s) for latency_s in latencies_s]
    others = [record(Outcome.ERROR)] * num_errors + [record(Outcome.REJECTED)] * num_rejected
    return summarize([*answered, *others], duration_s=10.0)
