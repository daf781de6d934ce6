import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loadtests.generator.calls import Method, Outcome
from loadtests.generator.metrics import RESIDENT_BYTES, Sample
from loadtests.generator.records import CallRecord
from loadtests.generator.texts import Profile
from loadtests.generator.workload import Mix, Workload
from loadtests.report.report import Report, figures_line
from loadtests.scenarios.overload import report_of, texts_per_call
from tests.unit.loadtests.fake_calls import BEGAN_S, record, run_of

GOOD = [record(Outcome.ANSWERED, latency_s=1.5)] * 60 + [record(Outcome.REJECTED)] * 540
MIXED = [record(kind, planned_s=BEGAN_S + second) for second in range(3) for kind in Outcome]


def reported(records: Sequence[CallRecord], *, sizes_mb: Sequence[float] = (100, 101, 100), **fields: Any) -> Report:
    sizes = enumerate(sizes_mb)
    samples = [Sample(at_s=BEGAN_S + at_s, values={RESIDENT_BYTES: size_mb * 2**20}) for at_s, size_mb in sizes]
    options = argparse.Namespace(factor=10.0, max_rss_growth_mb=128.0)
    return report_of(run_of(records, samples=samples), options, capacity_per_s=6.0, **fields)


def test_a_server_that_rejects_early_and_answers_in_time_keeps_every_promise() -> None:
    report = reported(GOOD)

    assert report.broken == reported(GOOD, sizes_mb=[]).broken == []
    assert (report.values["goodput"], report.values["rss_growth_mb"]) == (pytest.approx(1.0), 1.0)


@pytest.mark.parametrize(
    ("records", "fields", "sentence"),
    [
        (GOOD[:60], {}, "nothing was rejected"),
        ([*GOOD, *[record(Outcome.REJECTED, latency_s=0.06)] * 6], {}, "more than 50 ms"),
        ([*GOOD, record(Outcome.LATE)], {}, "1 accepted calls were not answered"),
        ([*GOOD, record(Outcome.ERROR)], {}, "1 calls failed otherwise"),
        (GOOD, {"sizes_mb": [100, 229, 100]}, "the server grew by more than 128 MB"),
        (GOOD[40:], {}, "of the capacity was answered"),
        ([*GOOD, *[record(Outcome.ANSWERED, lag_s=0.03)] * 7], {}, "the generator itself"),
        (GOOD, {"broken": ["the server ended with 1"]}, "the server ended with 1"),
    ],
)
def test_each_promise_can_be_broken(records: list[CallRecord], fields: dict[str, Any], sentence: str) -> None:
    report = reported(records, **fields)

    assert [sentence in told for told in report.broken] == [True]
    assert report.values["broken_promises"] == report.broken


def test_a_generator_that_is_late_hides_no_waiting() -> None:
    values = reported([record(Outcome.REJECTED, lag_s=0.05, latency_s=0.06)]).values

    waits_ms = [values["summary"]["rejected_latency"]["p99_ms"], values["rejected_p99_from_send_ms"]]
    assert waits_ms == pytest.approx([60.0, 10.0])


def test_an_overload_is_printed_with_the_promises_first_kept_as_json_and_drawn() -> None:
    report = reported(MIXED)
    start = "overload rejected_p99_ms=10.0 accepted_late=3 errors_other=3 rss_growth_mb=1.0 offered=15 accepted=6 "
    assert figures_line("overload", report.figures).startswith(start)
    assert reported(MIXED[:1]).figures["rejected_p99_ms"] == "none"
    kept = json.loads(json.dumps(report.values, allow_nan=False))
    assert kept["calls"][-1] == [2.0, 0.0, 0.01, "ERROR"]
    assert report.picture is not None
    rates, latencies, _ = report.picture.axes
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in rates.lines}
    assert (drawn["offered"], drawn["rejected"]) == ([5, 5, 5], [1, 1, 1])
    assert latencies.get_yscale() == "log"


@pytest.mark.parametrize(
    ("workload", "texts_per_s", "texts"),
    [
        *((Workload(texts_per_call=8), rate, texts) for rate, texts in ((100, 8), (3200, 8), (3201, 9), (1e9, 128))),
        (Workload(profile=Profile.DOCUMENT), 1e6, 1),
        (Workload(methods=Mix(((Method.LIST_MODELS, 1.0),))), 1e6, 1),
    ],
)
def test_calls_grow_where_there_would_be_too_many(workload: Workload, texts_per_s: float, texts: int) -> None:
    assert texts_per_call(workload, texts_per_s) == texts
