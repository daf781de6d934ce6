"""The checks of the stress scenarios: each figure and limit, and what fails them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadtests.generator.calls import Reply
from loadtests.generator.metrics import Footprint
from loadtests.report.report import Report
from loadtests.scenarios.bad_inputs import scenario as bad
from loadtests.scenarios.bad_inputs.scenario import Observations, Record
from loadtests.scenarios.soak import scenario as soaking
from loadtests.scenarios.soak.accounting import Accounting, Entry
from loadtests.scenarios.soak.memory import Sample, Settings

ENDS = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
ENTRIES = [Entry(status, "Translate", frozenset({status})) for status in ENDS]
COUNTED = {f'dragoman_requests_total{{method="Translate",status="{status}"}}': 1.0 for status in ENDS}
METRICS = {
    **COUNTED,
    'dragoman_segments_total{outcome="ok"}': 5.0,
    'dragoman_model_swaps_total{model="m"}': 30.0,
    'dragoman_ready{model="m",version="7"}': 1.0,
}
SETTINGS = Settings(duration_s=48.0, swap_each_s=2.0)
BROKEN_VERSION = '{"event": "model could not be loaded", "level": "error"}'


def reply(status: str = "OK", message: str = "", *, latency_s: float = 0.125) -> Reply:
    return Reply(status=status, message=message, began_s=10.0, ended_s=10.0 + latency_s)


def accounting(*, last: str = ENDS[-1], **changed: Any) -> Accounting:
    """One call of each status; the last may end otherwise at its client."""
    ends = Counter(("usual Translate", status) for status in (*ENDS[:-1], last))
    return Accounting(ends=ends, entries=ENTRIES, num_sentences=5, **changed)


def idle(series: str = "up", value: float = 1, *, without: str = "-", threads: int = 16, fds: int = 14) -> soaking.Idle:
    metrics = {name: count for name, count in METRICS.items() if without not in name}
    return soaking.Idle(footprint=Footprint(250.0, threads, fds), metrics={**metrics, series: value})


def settled(mb_per_phase: float = 0.0) -> list[Sample]:
    return [{"at_s": 8.0 * phase, "rss_mb": 250.0 + mb_per_phase * phase} for phase in range(8)]


def soak(
    *,
    logged: list[Entry] = ENTRIES,
    log_errors: Sequence[str] = (BROKEN_VERSION,),
    exit_code: int = 0,
    **changed: Any,
) -> Report:
    seen: dict[str, Any] = {
        "settings": SETTINGS, "accounting": accounting(),
        "settled": settled(), "before": idle(), "after": idle(), "capacity_per_s": 20.0, "elapsed_s": 181.0,
        "num_swaps": 30, "num_broken_versions": 1,
    }  # fmt: skip
    return soaking.report_of(soaking.Observations(**{**seen, **changed}), logged, log_errors, exit_code=exit_code)


def record(status: str = "OK", *, kind: str = "nul", seconds: float = 0.02, **fields: Any) -> Record:
    return Record(kind, "unary", 2000, status, seconds, **fields)


SENT = [record(), record("INVALID_ARGUMENT"), record("LEFT", kind="megabytes")]


def bad_inputs(**changed: Any) -> Report:
    seen: dict[str, Any] = {
        "records": SENT, "memory_mb": [100.0, 130.0, 120.0], "translations": [reply(), reply(latency_s=0.25)],
        "undisturbed": [reply()], "probes": [reply(latency_s=0.03125)], "elapsed_s": 1.5,
    }  # fmt: skip
    return bad.report_of(Observations(**{**seen, **changed}), seed=7, max_rss_growth_mb=256)


@pytest.mark.parametrize(
    "report",
    [
        soak(),
        soak(after=idle(threads=12, fds=10)),
        soak(settings=replace(SETTINGS, traffic="cancellations"), accounting=accounting(last="OK")),
        bad_inputs(),
    ],
)
def test_healthy_server_passes(report: Report) -> None:
    assert report.failures == []


@pytest.mark.parametrize(
    ("report", "failed"),
    [
        (soak(settled=settled(mb_per_phase=9.0)), "memory does not grow"),
        (soak(after=idle("dragoman_open_streams", 3.0, threads=18, fds=15)), "no requests leaked"),
        (soak(after=idle("dragoman_queue_tokens", 9.0)), "no requests leaked"),
        (soak(after=idle('dragoman_ready{model="m",version="6"}', 1.0)), "no requests leaked"),
        (soak(after=idle('dragoman_model_swaps_total{model="m"}', 31.0)), "each swap is counted once"),
        (soak(num_swaps=0, after=idle(without="swaps")), "all call kinds covered"),
        (soak(after=idle('dragoman_segments_total{outcome="ok"}', 4.0)), "each sentence is counted"),
        (soak(after=idle('dragoman_segments_total{outcome="error"}', 2.0)), "no unexpected error"),
        (soak(num_broken_versions=0), "no unexpected error"),
        (soak(after=idle(without="requests")), "clients and server agree on all calls"),
        (soak(logged=ENTRIES[1:]), "clients and server agree on all calls"),
        (soak(accounting=accounting(unanswered=["a"])), "each request is answered"),
        (soak(accounting=accounting(duplicates=["a"])), "no request has two answers"),
        (soak(accounting=accounting(faults=["a"])), "each response is right"),
        (soak(accounting=accounting(errors=["a"])), "no unexpected error"),
        (soak(accounting=accounting(last="OK")), "all call kinds covered"),
        (soak(log_errors=(BROKEN_VERSION, "Traceback")), "no unexpected error"),
        (soak(exit_code=-9), "the server drains"),
        (
            bad_inputs(records=[record(faults=("no hypothesis",))]),
            "each input is answered according to the contract",
        ),
        (bad_inputs(memory_mb=[100.0, 400.0, 120.0]), "memory growth of the server"),
        (bad_inputs(server_faults=["not SERVING"]), "the server is healthy between batches"),
        (bad_inputs(translations=[reply("INTERNAL")]), "control traffic is answered as before"),
        (bad_inputs(undisturbed=[reply("UNAVAILABLE")]), "control traffic is answered as before"),
        (bad_inputs(probes=[reply("WRONG_ANSWER")]), "control traffic is answered as before"),
        (bad_inputs(translations=[reply(latency_s=11)]), "translations of control traffic at p99"),
        (bad_inputs(probes=[reply(latency_s=1.5)]), "probes of the event loop at p99"),
    ],
)
def test_each_check_can_fail_alone(report: Report, failed: str) -> None:
    assert [check.name for check in report.failed] == [failed]
    assert report.verdict == "failed"
