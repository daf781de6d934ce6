"""Finished calls, as gRPC hands them over; records of calls, servers under load and runs of a load test, made up."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from dragoman_service.errors import DragomanError
from dragoman_service.middleware import error_mapping
from loadtests.generator.arrivals import poisson
from loadtests.scenarios.load import report_of
from loadtests.generator.runner import Load, Run
from loadtests.generator.records import CallRecord, Summary, summarize
from loadtests.report.report import Report
from loadtests.generator.metrics import Sample
from loadtests.generator.calls import Outcome
from loadtests.generator.workload import Workload

BEGAN_S = 100.0
MACHINE: dict[str, Any] = {"cpu": "Abacus <1>", "cores": 2, "instruction_sets": ["avx2"], "python": "3.11"}
MACHINE |= {"versions": {"dragoman": "0.1.0", "torch": None}, "date": "2026-11-21T12:00:00+00:00"}


class EndedCall:
    """A call that is done: as the server's own table of statuses answers an error, or well.

    Its status may also be one that the client's library gives though the server's came.
    """

    def __init__(
        self, error: DragomanError | None = None, *messages: bytes, code: grpc.StatusCode | None = None
    ) -> None:
        good = SimpleNamespace(code=grpc.StatusCode.OK, message="", trailing_metadata=())
        self._answer: Any = good if error is None else error_mapping.answer(error)
        self._code, self._messages = code or self._answer.code, messages

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._messages)

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return str(self._answer.message)

    def trailing_metadata(self) -> Any:
        return self._answer.trailing_metadata


def record(
    outcome: Outcome, *, planned_s: float = 0.0, lag_s: float = 0.0, latency_s: float = 0.01, **told: Any
) -> CallRecord:
    """A call that took so long from when it was planned."""
    times = {"planned_s": planned_s, "sent_s": planned_s + lag_s, "ended_s": planned_s + latency_s}
    return CallRecord(**{**times, "outcome": outcome, "status": outcome.name, **told})


def summary_of(*, latencies_s: Sequence[float] = (), num_errors: int = 0, num_rejected: int = 0) -> Summary:
    """The figures of ten seconds in which so many calls were answered after so long."""
    answered = [record(Outcome.ANSWERED, latency_s=latency_s) for latency_s in latencies_s]
    others = [record(Outcome.ERROR)] * num_errors + [record(Outcome.REJECTED)] * num_rejected
    return summarize([*answered, *others], duration_s=10.0)


def answered(offset_s: float, latency_s: float) -> CallRecord:
    """A call that spent a fifth of its time in each stage."""
    told: dict[str, Any] = dict.fromkeys(("queue_s", "encode_s", "decode_s", "text_s"), latency_s / 5)
    told |= {"status": "OK", "profile": "sentence", "num_texts": 1, "num_source_tokens": 10, "num_target_tokens": 12}
    return record(Outcome.ANSWERED, planned_s=BEGAN_S + offset_s, lag_s=0.001, latency_s=latency_s, **told)


def sample(offset_s: float) -> Sample:
    """Of a server that is ever more busy: three tokens, half a core and a MiB more each second."""
    values = {
        "dragoman_queue_segments": offset_s,
        "dragoman_batch_live_segments": 2.0,
        "dragoman_batch_live_rows": 8.0,
        "dragoman_batch_segments_sum": 30.0 * offset_s,
        "dragoman_batch_segments_count": 10.0 * offset_s,
        "dragoman_target_tokens_total": 3.0 * offset_s,
        "process_cpu_seconds_total": 0.5 * offset_s,
        "process_resident_memory_bytes": 2.0**20 * (100 + offset_s),
        'dragoman_build_info{onnxruntime="1.31",version="0.1.0"}': 1.0,
    }
    return Sample(at_s=BEGAN_S + offset_s, values=values)


def run_of(records: Sequence[CallRecord] = (), *, samples: Sequence[Sample] = (), duration_s: float = 10.0) -> Run:
    """Ten seconds of one call a second, if no others are given."""
    given = records or [answered(index, 0.1 * (index + 1)) for index in range(10)]
    return Run(
        load=Load(workload=Workload(data=Path("/data")), arrivals=poisson(1.0), duration_s=duration_s),
        records=given,
        warm_up_records=[],
        samples=samples,
        began_s=BEGAN_S,
        summary=summarize(given, duration_s=duration_s, generator_cpu_s=0.5),
    )


def reported(
    run: Run | None = None, *, kept: dict[str, Any] | None = None, broken: Sequence[str] = (), **given: Any
) -> Report:
    """As a load test judges a run by the flags that are given."""
    options = argparse.Namespace(**{"mode": "full", "slo": None, "max_lag": None, "max_regression": 0.1, **given})
    where = {"machine": MACHINE, "command": "python -m loadtests load --rate 1"}
    return report_of(run or run_of(), options, where, kept=kept, broken=broken)


@dataclass
class FakeSystem:
    """A server under load that answers so many calls a second within its service time, and lets the others wait."""

    name: str
    log: list[tuple[str, float, int]]
    capacity_per_s: float
    service_s: float

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        self.log.append((self.name, rate_per_s, seed))
        late_s = max(0.0, rate_per_s / self.capacity_per_s - 1)
        planned = [number / rate_per_s for number in range(max(1, round(rate_per_s * duration_s)))]
        waits = [{"planned_s": at_s, "latency_s": at_s * late_s + self.service_s} for at_s in planned]
        calls = [record(Outcome.ANSWERED, **times) for times in waits]
        return summarize(calls, duration_s=duration_s)

    def throughput_per_s(self, *, duration_s: float) -> float:
        self.log.append((self.name, 0.0, 0))
        return self.capacity_per_s
