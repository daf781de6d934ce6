import argparse

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.records import CallRecord
from loadtests.scenarios import overload
from tests.unit.loadtests.samples import record, run_of

CALLS = [record(Outcome.ANSWERED, planned_s=index, latency_s=0.1, num_target_tokens=10) for index in range(8)]
REJECTED = record(Outcome.REJECTED, planned_s=8.0)


@pytest.mark.parametrize(
    ("records", "failed"),
    [
        ([], 0),
        ([record(Outcome.REJECTED, latency_s=0.06)] * 9, 1),
        ([record(Outcome.LATE)], 1),
        ([record(Outcome.ERROR)], 1),
        ([record(Outcome.ANSWERED, lag_s=0.03)], 1),
        ([record(Outcome.ANSWERED)] * 90, 0),
    ],
)
def test_overload_checks_rejections_deadlines_errors_and_lag(records: list[CallRecord], failed: int) -> None:
    options = argparse.Namespace(factor=10.0, max_rss_growth_mb=128.0)

    report = overload.report_of(run_of([*CALLS, REJECTED, *records]), options, capacity_per_s=1.0)

    assert len(report.failures) == failed
