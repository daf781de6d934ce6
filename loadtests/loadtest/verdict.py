"""What a run did not hold."""

from collections.abc import Sequence

from loadtests.loadtest.baseline import Change
from loadtests.records import Summary
from loadtests.slo import Slo


def broken_promises(
    summary: Summary, changes: Sequence[Change], *, slo: Slo | None, max_regression: float, max_lag_ms: float
) -> list[str]:
    """Return a sentence for each thing that did not hold, with the figure and its limit; none: all held.

    Args:
        summary: of the run.
        changes: from its baseline, if it has one.
        slo: what was asked of it.
        max_regression: share by which judged figures may be worse than the baseline's.
        max_lag_ms: of the generator, p99; beyond it the run says nothing about the server.
    """
    lag_ms = summary.generator_lag.p99_ms
    late = [f"generator_lag_p99_ms is {lag_ms:.1f}, the limit is {max_lag_ms:g}: the run does not count"]
    regressions = (change.regression(max_regression) for change in changes)
    return [
        *(late if lag_ms > max_lag_ms else []),
        *(slo.broken(summary) if slo else []),
        *(regression for regression in regressions if regression is not None),
    ]
