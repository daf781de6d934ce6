"""What each scenario says of what it has seen: its line, its promises and what breaks them, its JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.metrics import Footprint
from loadtests.scenarios import cancellations as cancelling
from loadtests.scenarios.stress import main
from loadtests.scenarios.bad_inputs import scenario as bad
from loadtests.scenarios.bad_inputs.attacks.table import ATTACKS
from loadtests.scenarios.bad_inputs.kinds import KINDS
from loadtests.scenarios.bad_inputs.run import Growth, Record, Run
from loadtests.scenarios.callers import Reply
from loadtests.scenarios.chaos.fault import Fault, Result
from loadtests.scenarios.chaos.scenario import FAULTS, summarize
from loadtests.scenarios.soak import scenario as soaking
from loadtests.scenarios.soak.accounting import Entry, Notes
from loadtests.report.checks import Summary

Capture = pytest.CaptureFixture[str]
ENDS = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
ENTRIES = [Entry(status, "Translate", frozenset({status})) for status in ENDS]
COUNTED = {f'dragoman_requests_total{{method="Translate",status="{status}"}}': 1.0 for status in ENDS}
METRICS = {
    **COUNTED,
    'dragoman_segments_total{outcome="ok"}': 5.0,
    'dragoman_model_swaps_total{model="m"}': 30.0,
    'dragoman_ready{model="m",version="7"}': 1.0,
}
BROKEN_VERSION = '{"event": "model could not be loaded", "level": "error"}'


def reply(status: str = "OK", message: str = "", *, latency_s: float = 0.125) -> Reply:
    return Reply(status=status, message=message, began_s=10.0, ended_s=10.0 + latency_s)


def notes(*, last: str = ENDS[-1], **changed: Any) -> Notes:
    """One call of each status; the last of them may end otherwise than the server says."""
    ends = Counter(("usual Translate", status) for status in (*ENDS[:-1], last))
    return Notes(ends=ends, entries=ENTRIES, num_sentences=5, **changed)


def idle(series: str = "up", value: float = 1, *, without: str = "-", threads: int = 16, fds: int = 14) -> soaking.Idle:
    """A server at rest, with one series that may be other than usual."""
    kept = {name: count for name, count in METRICS.items() if without not in name}
    return soaking.Idle(footprint=Footprint(250.0, threads, fds), metrics={**kept, series: value})


def samples(mb_per_s: float = 0.0) -> list[soaking.Sample]:
    """One a second; memory falls after the warm-up and then grows as asked."""
    sizes = [500.0 if at_s < 60 else 250.0 + mb_per_s * at_s for at_s in range(181)]
    return [{"at_s": at_s, "rss_mb": size, "swaps": at_s // 6} for at_s, size in enumerate(sizes)]


def soaked(**changed: Any) -> soaking.Observations:
    seen: dict[str, Any] = {
        "settings": soaking.Settings(duration_s=180.0, growth_limit_mb=16.0), "notes": notes(), "samples": samples(),
        "before": idle(), "after": idle(), "capacity_per_s": 20.0, "elapsed_s": 181.0,
        "num_swaps": 30, "num_broken_versions": 1,
    }  # fmt: skip
    return soaking.Observations(**{**seen, **changed})


def soak(
    *, logged: list[Entry] = ENTRIES, complaints: Sequence[str] = (BROKEN_VERSION,), exit_code: int = 0, **found: Any
) -> Summary:
    return soaking.summarize(soaked(**found), logged, complaints, exit_code=exit_code)


def cancellations(*, cancelled: int = 95, answered: int = 5, complaints: Sequence[str] = (), **changed: Any) -> Summary:
    ends = Counter({("cancels Translate", "CANCELLED"): cancelled, ("usual Translate", "OK"): answered})
    seen = {"memory_mb": [100.0] * 10, "left": {}, "metrics": COUNTED, "elapsed_s": 10.0, **changed}
    found = cancelling.Found(notes=Notes(ends=ends, entries=ENTRIES), **seen)
    return cancelling.summarize(found, ENTRIES, complaints, exit_code=0, max_rss_growth_mb=32.0)


FAULT = Fault(name="sigstop", summary="", inject=lambda _: None, told={"DEADLINE_EXCEEDED"}, metric="dragoman_missed")
UNCOUNTED = {"fault": replace(FAULT, metric=""), "num_seen": 0}
IN_BATCH = {"fault": replace(FAULT, told={"INTERNAL"}, hits_batch=True), "hits": Counter(INTERNAL=1)}
DELAYING = {"fault": replace(FAULT, limits={"slowest_s": 3.0}, delays={"slowest_s"}), "seconds": 8.0}
MEASURED = {"recovered_s": 0.1, "rss_growth_mb": 1.0, "threads": 0, "files": 0}


def injected(**changed: Any) -> Result:
    held = {"fault": FAULT, "hits": Counter(DEADLINE_EXCEEDED=4), "num_seen": 3, "measured": MEASURED, "began_s": 10.0}
    return Result(**{**held, "translations": (reply(), reply()), "checks": (reply(),), **changed})


def chaos(**changed: Any) -> Summary:
    return injected(**changed).summary


def record(index: int, status: str = "OK", *, kind: str = "nul", seconds: float = 0.02, **fields: Any) -> Record:
    return Record(kind, index, "unary", 2000, status, seconds, **fields)


GROWTH = Growth(shape="dots", method="Translate", num_characters=10_000, half_s=0.4, whole_s=0.9, ratio=2.25)
STEEP = GROWTH._replace(whole_s=1.6, ratio=4.0)
SENT = [record(0), record(1, "INVALID_ARGUMENT"), record(2, "LEFT", kind="megabytes")]


def ran(**changed: Any) -> Run:
    seen: dict[str, Any] = {
        "records": SENT, "memory_mb": [100.0, 130.0, 120.0], "translations": [reply(), reply(latency_s=0.25)],
        "alone": [reply()], "looks": [reply(latency_s=0.03125)], "growths": [GROWTH], "elapsed_s": 1.5,
    }  # fmt: skip
    return Run(**{"model": pb.ModelVersion(), **seen, **changed})


def bad_inputs(**changed: Any) -> Summary:
    return bad.summarize(ran(**changed), seed=7, max_rss_growth_mb=256)


FAULTY = record(5, faults=("no hypothesis",))
UNREACHED = reply("UNAVAILABLE", "y")
FAILED = [record(3, status) for status in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE")]
NONE_LOST = "soak seconds=181 calls=5 unanswered=0 twice=0 ledger_difference=0"
NONE_LEFT = "rss_slope_mb_per_h=0.0 rss_noise=0.0 threads_left=0 fds_left=0 tasks_left=0 slots_left=0"
CANCELLED = "rss_growth_mb=0.0 unanswered=0 cancelled=95 answered=5 left=0 rss_mb=100 calls_per_s=10"
STATUSES = "inputs=7 kinds=2 ok=1 refused=1 left=1 internal=2 hangs=1 lost=1 rss_growth_mb=30.0"
SPEED = "slowest_ms=20 p99_us_per_character=10.0 bystander_p99_ms=250.0 look_p99_ms=31.2 look_max_ms=31.2"
HIT = "fault=sigstop hit=DEADLINE_EXCEEDED:4 bystanders=3 bystander_errors=0 slowest_s=0.12 health_s=0.12"


@pytest.mark.parametrize(
    ("summary", "line"),
    [
        (soak(), f"{NONE_LOST} {NONE_LEFT} swaps=30 wrong=0 errors=0"),
        (soak(after=idle(threads=12, fds=10)), f"{NONE_LOST} {NONE_LEFT} swaps=30 wrong=0 errors=0"),
        (cancellations(), f"cancellations calls=100 {CANCELLED}"),
        (cancellations(memory_mb=[*([100.0] * 60 + [150.0]) * 2, 100.0]), f"cancellations calls=100 {CANCELLED}"),
        (chaos(), f"chaos {HIT} recovered_s=0.1 rss_growth_mb=1.0 threads=0 files=0 seen=dragoman_missed+3"),
        (chaos(**UNCOUNTED), "files=0 seen=-"),
        (chaos(**IN_BATCH, translations=(reply(), reply("INTERNAL"))), "seen=dragoman_missed+3"),
        (chaos(**DELAYING, translations=(reply(latency_s=10.5),)), "seen=dragoman_missed+3"),
        (summarize([injected(), injected()], [0]), "chaos faults=2 held=2"),
        (bad_inputs(records=[*SENT, *FAILED]), f"bad_inputs {STATUSES} {SPEED} worst_growth=2.2 inputs_per_s=5"),
        (bad_inputs(growths=[GROWTH._replace(half_s=0.001, whole_s=0.1, ratio=100.0)]), "worst_growth=none inputs_"),
    ],
)
def test_where_everything_held_the_line_has_the_figures_and_says_so(summary: Summary, line: str) -> None:
    assert summary.broken == []
    assert line in summary.line
    assert summary.line.endswith(" verdict=held")


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        (soak(samples=samples(mb_per_s=0.5)), "memory does not grow: it grows by 1800.0 MB/h"),
        (soak(after=idle("dragoman_open_streams", 3.0, threads=18, fds=15)), "left: 2 threads; 1 fds; 3 tasks"),
        (soak(after=idle("dragoman_queue_tokens", 9.0)), "nothing is left: 1 slots"),
        (soak(after=idle('dragoman_ready{model="m",version="6"}', 1.0)), "nothing is left: 1 slots"),
        (soak(after=idle('dragoman_model_swaps_total{model="m"}', 31.0)), "30 were made, the server counted 31"),
        (soak(num_swaps=0, after=idle(without="swaps")), "everything is met: run longer: 0 swaps"),
        (soak(after=idle('dragoman_segments_total{outcome="ok"}', 4.0)), "5 sentences, the server counted 4 segments"),
        (soak(after=idle('dragoman_segments_total{outcome="error"}', 2.0)), "not provoked: 2 segments failed"),
        (soak(num_broken_versions=0), "no error that was not provoked"),
        (soak(after=idle(without="requests")), "clients and server know the same calls: "),
        (soak(logged=ENTRIES[1:]), "expected OK, the server says UNSEEN"),
        (soak(notes=notes(unanswered=list("abcdefg"))), "each request is answered: a; b; c; d; e; and 2 more"),
        (soak(notes=notes(twice=["a"])), "no request is answered twice: a"),
        (soak(notes=notes(wrong=["a"])), "each answer is right: a"),
        (soak(notes=notes(errors=["a"])), "no error that was not provoked: a"),
        (soak(notes=notes(last="OK")), "no call ended with ['NOT_FOUND']"),
        (soak(complaints=(BROKEN_VERSION, "Traceback")), "no error that was not provoked: Traceback"),
        (soak(exit_code=-9), "the server drains: it ended with exit code -9"),
        (cancellations(complaints=["Traceback"]), "no error that was not provoked: Traceback"),
        (cancellations(left={"dragoman_queue_segments": 1.0}), "work is left: {'dragoman_queue_segments': 1.0}"),
        (cancellations(memory_mb=[100.0, *range(100, 200, 10), 190.0]), "grows: 90 MB, more than 32"),
        (cancellations(answered=0), "both ends are met"),
        (cancellations(cancelled=0), "both ends are met"),
        (chaos(broken=["the server lied"]), "sigstop: the server lied"),
        (chaos(hits=Counter()), "callers who are hit are told: they were told {}"),
        (chaos(hits=Counter(UNKNOWN=1)), "callers who are hit are told: they were told {'UNKNOWN': 1}"),
        (chaos(translations=(reply(), reply("INTERNAL", "why"))), "bystanders are answered: INTERNAL: why"),
        (chaos(**IN_BATCH, translations=(reply("UNAVAILABLE"),)), "bystanders are answered: UNAVAILABLE"),
        (chaos(**IN_BATCH, checks=(reply("INTERNAL"),)), "bystanders are answered: INTERNAL"),
        (chaos(translations=()), "slowest_s: never seen"),
        (chaos(checks=()), "health_s: never seen"),
        (chaos(translations=(reply(latency_s=2.5),)), "slowest_s: 2.5, more than 2"),
        (chaos(**DELAYING, translations=(reply(latency_s=12),)), "slowest_s: 12, more than 11"),
        (chaos(**DELAYING, checks=(reply(latency_s=1.5),)), "health_s: 1.5, more than 1"),
        (chaos(num_seen=0), "metrics show the fault: dragoman_missed has not grown"),
        (chaos(left={"dragoman_queue_segments": 2.0}), "no work is left: {'dragoman_queue_segments': 2.0}"),
        *(
            (chaos(measured={**MEASURED, name: limit + 1}), f"{name}: {limit + 1}, more than {limit}")
            for name, limit in {"recovered_s": 5, "rss_growth_mb": 64, "threads": 16, "files": 8}.items()
        ),
        (summarize([injected(), injected(measured={})], [0]), "every fault keeps its promises: sigstop"),
        (summarize([injected()], [0, -7]), "servers end with 0: they ended with [0, -7]"),
        (summarize([injected()], [None]), "they ended with [None]"),
        (summarize([], []), "faults were injected: none was"),
        (bad_inputs(records=[FAULTY]), "no hypothesis (--seed 7 --only nul --index 5, unary)"),
        (bad_inputs(memory_mb=[100.0, 400.0, 120.0]), "300 MB, more than 256"),
        (bad_inputs(server_faults=["it does not serve"]), "between batches the server is well: it does not serve"),
        (bad_inputs(translations=[reply("INTERNAL")], alone=[UNREACHED]), "as before: UNAVAILABLE: y; INTERNAL"),
        (bad_inputs(looks=[reply("WRONG_ANSWER", "no model")]), "WRONG_ANSWER: no model"),
        (bad_inputs(translations=[reply(latency_s=11)]), "translations of bystanders at p99: 11 s, more than 10"),
        (bad_inputs(looks=[reply(latency_s=1.5)]), "calls that need the event loop only at p99: 1.5 s, more than 1"),
        (bad_inputs(growths=[STEEP]), "Translate of dots took 4.0 times as long for twice the text"),
    ],
)
def test_each_promise_can_be_broken_alone(summary: Summary, sentence: str) -> None:
    (broken,) = summary.broken
    assert sentence in broken.sentence
    assert summary.line.endswith(" verdict=broken")
    assert [one["name"] for one in summary.as_json()["promises"] if not one["held"]] == [broken.name]


def test_the_json_has_what_the_line_sums_up() -> None:
    record_of_soak = soaking.details(soaked())
    records = [record(index, seconds=index / 10, faults=("wrong",) if index == 3 else ()) for index in range(30)]
    of_inputs = bad.details(ran(records=records))

    assert record_of_soak["samples"] == samples()
    assert record_of_soak["offered_calls_per_s"] == 13.0
    assert {"kind": "usual Translate", "status": "OK", "count": 1} in record_of_soak["calls"]
    assert " ledger_difference=10 " in soak(logged=[]).line
    assert " hit=nobody " in chaos(hits=Counter()).line
    assert " recovered_s=never " in chaos(measured={}).line
    assert injected(translations=(reply(latency_s=0.25),)).as_json()["translations"] == [(0.0, 0.25)]
    assert [fault["index"] for fault in of_inputs["faults"]] == [3]
    assert of_inputs["statuses_by_kind"] == {"nul": {"OK": 30}}
    assert [one["index"] for one in of_inputs["slowest"]] == list(range(29, 19, -1))


def test_faults_are_declared_once_with_growing_amounts_and_what_needs_a_server_of_its_own_comes_last() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 23
    assert all(short <= full for fault in FAULTS for short, full in (fault.amounts, fault.seconds))
    assert [fault.name for fault in FAULTS if fault.environment] == [fault.name for fault in FAULTS[-2:]]


@pytest.mark.parametrize(
    ("flags", "compiler", "listed"),
    [
        (["chaos"], "/bin/cc", [fault.name for fault in FAULTS]),
        (["chaos"], None, [fault.name for fault in FAULTS if fault.name != "clock-jump"]),
        (["chaos", "--only", "sigstop,step-raises"], None, ["step-raises", "sigstop"]),
        (["bad-inputs"], None, [*KINDS, *ATTACKS]),
    ],
)
def test_the_list_says_what_each_fault_and_each_kind_is(
    flags: list[str], compiler: str | None, listed: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: compiler)
    assert main([*flags, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == listed
    assert all(len(line.split()) > 3 for line in lines)


def test_what_cannot_be_run_is_told(tmp_path: Path, capsys: Capture) -> None:
    assert main(["soak", "--model-dir", str(tmp_path / "nowhere"), "--output", str(tmp_path)]) == 1
    assert "nowhere" in capsys.readouterr().err
