"""The checks of the stress scenarios: each figure and limit, and what fails them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Reply
from loadtests.generator.metrics import Footprint
from loadtests.report.report import Report
from loadtests.scenarios.bad_inputs import scenario as bad
from loadtests.scenarios.bad_inputs.scenario import Observations, Record
from loadtests.scenarios.chaos.fault import Fault, Result
from loadtests.scenarios.chaos.scenario import FAULTS, report_of
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
SETTINGS = Settings(duration_s=180.0, growth_limit_mb=16.0)
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


def samples(mb_per_s: float = 0.0) -> list[Sample]:
    sizes = [500.0 if at_s < 60 else 250.0 + mb_per_s * at_s for at_s in range(181)]
    return [{"at_s": at_s, "rss_mb": size, "swaps": at_s // 6} for at_s, size in enumerate(sizes)]


def soak(
    *,
    logged: list[Entry] = ENTRIES,
    log_errors: Sequence[str] = (BROKEN_VERSION,),
    exit_code: int = 0,
    **changed: Any,
) -> Report:
    seen: dict[str, Any] = {
        "settings": SETTINGS, "accounting": accounting(),
        "samples": samples(), "before": idle(), "after": idle(), "capacity_per_s": 20.0, "elapsed_s": 181.0,
        "num_swaps": 30, "num_broken_versions": 1,
    }  # fmt: skip
    return soaking.report_of(soaking.Observations(**{**seen, **changed}), logged, log_errors, exit_code=exit_code)


FAULT = Fault(name="sigstop", summary="", inject=lambda _: None, expected={"DEADLINE_EXCEEDED"}, metric="missed")
UNCOUNTED = {"fault": replace(FAULT, metric=""), "num_seen": 0}
IN_BATCH = {"fault": replace(FAULT, expected={"INTERNAL"}, hits_batch=True), "hits": Counter(INTERNAL=1)}
DELAYING = {"fault": replace(FAULT, limits={"slowest_s": 3.0}, delays={"slowest_s"}), "seconds": 8.0}
MEASURED = {"recovered_s": 0.1, "rss_growth_mb": 1.0, "threads": 0, "files": 0}


def injected(**changed: Any) -> Result:
    held = {"fault": FAULT, "hits": Counter(DEADLINE_EXCEEDED=4), "num_seen": 3, "measured": MEASURED, "began_s": 10.0}
    return Result(**{**held, "translations": (reply(), reply()), "probes": (reply(),), **changed})


def chaos(**changed: Any) -> Report:
    return injected(**changed).report


def record(index: int, status: str = "OK", *, kind: str = "nul", seconds: float = 0.02, **fields: Any) -> Record:
    return Record(kind, index, "unary", 2000, status, seconds, **fields)


SENT = [record(0), record(1, "INVALID_ARGUMENT"), record(2, "LEFT", kind="megabytes")]


def bad_inputs(**changed: Any) -> Report:
    seen: dict[str, Any] = {
        "records": SENT, "memory_mb": [100.0, 130.0, 120.0], "translations": [reply(), reply(latency_s=0.25)],
        "undisturbed": [reply()], "probes": [reply(latency_s=0.03125)], "elapsed_s": 1.5,
    }  # fmt: skip
    return bad.report_of(Observations(**{"model": pb.ModelVersion(), **seen, **changed}), seed=7, max_rss_growth_mb=256)


FAILED = [record(3, status) for status in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE")]
SOAK_LINE = (
    "soak seconds=181 calls=5 unanswered=0 twice=0 ledger_difference=0 rss_slope_mb_per_h=0.0 rss_noise=0.0 "
    "threads_left=0 fds_left=0 tasks_left=0 slots_left=0 swaps=30 wrong=0 errors=0"
)
CHAOS_LINE = (
    "chaos fault=sigstop hit=DEADLINE_EXCEEDED:4 bystanders=3 bystander_errors=0 slowest_s=0.12 health_s=0.12 "
    "recovered_s=0.1 rss_growth_mb=1.0 threads=0 files=0 seen=missed+3"
)
INPUTS_LINE = (
    "bad_inputs inputs=7 kinds=2 ok=1 refused=1 left=1 internal=2 hangs=1 lost=1 rss_growth_mb=30.0 slowest_ms=20 "
    "p99_us_per_character=10.0 bystander_p99_ms=250.0 look_p99_ms=31.2 look_max_ms=31.2 inputs_per_s=5"
)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (soak(), SOAK_LINE),
        (soak(after=idle(threads=12, fds=10)), SOAK_LINE),
        (soak(settings=replace(SETTINGS, traffic="cancellations"), accounting=accounting(last="OK")), SOAK_LINE),
        (chaos(), CHAOS_LINE),
        (chaos(**UNCOUNTED), "files=0 seen=-"),
        (chaos(**IN_BATCH, translations=(reply(), reply("INTERNAL"))), "seen=missed+3"),
        (chaos(**DELAYING, translations=(reply(latency_s=10.5),)), "seen=missed+3"),
        (report_of([injected(), injected()], [0]), "chaos faults=2 held=2"),
        (bad_inputs(records=[*SENT, *FAILED]), INPUTS_LINE),
    ],
)
def test_line_has_the_figures_and_the_verdict_held(report: Report, line: str) -> None:
    assert report.failures == []
    assert line in report.line
    assert report.line.endswith(" verdict=held")


@pytest.mark.parametrize(
    ("report", "failed"),
    [
        (soak(samples=samples(mb_per_s=0.5)), "memory does not grow"),
        (soak(after=idle("dragoman_open_streams", 3.0, threads=18, fds=15)), "nothing is left"),
        (soak(after=idle("dragoman_queue_tokens", 9.0)), "nothing is left"),
        (soak(after=idle('dragoman_ready{model="m",version="6"}', 1.0)), "nothing is left"),
        (soak(after=idle('dragoman_model_swaps_total{model="m"}', 31.0)), "each swap is counted once"),
        (soak(num_swaps=0, after=idle(without="swaps")), "everything occurred"),
        (soak(after=idle('dragoman_segments_total{outcome="ok"}', 4.0)), "each sentence is counted"),
        (soak(after=idle('dragoman_segments_total{outcome="error"}', 2.0)), "no unexpected error"),
        (soak(num_broken_versions=0), "no unexpected error"),
        (soak(after=idle(without="requests")), "clients and server agree on all calls"),
        (soak(logged=ENTRIES[1:]), "clients and server agree on all calls"),
        (soak(accounting=accounting(unanswered=["a"])), "each request is answered"),
        (soak(accounting=accounting(duplicates=["a"])), "no request is answered twice"),
        (soak(accounting=accounting(wrong=["a"])), "each response is right"),
        (soak(accounting=accounting(errors=["a"])), "no unexpected error"),
        (soak(accounting=accounting(last="OK")), "everything occurred"),
        (soak(log_errors=(BROKEN_VERSION, "Traceback")), "no unexpected error"),
        (soak(exit_code=-9), "the server drains"),
        (chaos(broken=["anything"]), "sigstop"),
        (chaos(hits=Counter()), "affected callers get the expected status"),
        (chaos(hits=Counter(UNKNOWN=1)), "affected callers get the expected status"),
        (chaos(translations=(reply(), reply("INTERNAL", "why"))), "control traffic is answered"),
        (chaos(**IN_BATCH, translations=(reply("UNAVAILABLE"),)), "control traffic is answered"),
        (chaos(**IN_BATCH, probes=(reply("INTERNAL"),)), "control traffic is answered"),
        (chaos(translations=()), "slowest_s"),
        (chaos(probes=()), "health_s"),
        (chaos(translations=(reply(latency_s=2.5),)), "slowest_s"),
        (chaos(**DELAYING, translations=(reply(latency_s=12),)), "slowest_s"),
        (chaos(**DELAYING, probes=(reply(latency_s=1.5),)), "health_s"),
        (chaos(num_seen=0), "metrics show the fault"),
        (chaos(left={"dragoman_queue_segments": 2.0}), "no work remains"),
        *(
            (chaos(measured={**MEASURED, name: limit + 1}), name)
            for name, limit in {"recovered_s": 5, "rss_growth_mb": 64, "threads": 16, "files": 8}.items()
        ),
        (report_of([injected(), injected(measured={})], [0]), "every fault passes its checks"),
        (report_of([injected()], [0, -7]), "servers exit with 0"),
        (report_of([injected()], [None]), "servers exit with 0"),
        (report_of([], []), "faults were injected"),
        (
            bad_inputs(records=[record(5, faults=("no hypothesis",))]),
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
    assert report.line.endswith(" verdict=broken")
    assert [one["name"] for one in report.as_json()["checks"] if not one["held"]] == [failed]


def test_faults_are_distinct_and_grow_with_the_mode() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 23
    assert all(short <= full for fault in FAULTS for short, full in (fault.amounts, fault.seconds))
    assert [fault.name for fault in FAULTS if fault.environment] == [fault.name for fault in FAULTS[-2:]]
