import pytest

from loadtests.capacity.contender import Probe, SearchPlan, find_capacities
from loadtests.slo import parse_slo
from tests.unit.loadtests.capacity.fake_contender import FakeContender

_PLAN = SearchPlan(closed_loop_s=10.0, probe_s=10.0)
_Log = list[tuple[str, float, int]]


def _contenders(log: _Log) -> dict[str, FakeContender]:
    return {
        "ours": FakeContender("ours", log, capacity_per_s=150.0, service_s=0.02),
        "theirs": FakeContender("theirs", log, capacity_per_s=100.0, service_s=0.05),
    }


def test_the_capacity_of_each_is_where_its_objective_breaks() -> None:
    log: _Log = []
    told: list[tuple[str, Probe]] = []

    found = find_capacities(
        _contenders(log), parse_slo("p95<500ms"), _PLAN, note=lambda side, probe: told.append((side, probe))
    )

    # 0.95 * 10 s * (rate / capacity - 1) + service time reaches 500 ms at 1.0505 and 1.0474 times the capacity
    assert found["ours"].per_s == pytest.approx(157.6, rel=0.06)
    assert found["theirs"].per_s == pytest.approx(104.7, rel=0.06)
    assert all(bool(probe.broken) == (probe.run.p95_ms >= 500) for _, probe in told)
    assert len(told) == len(found["ours"].probes) + len(found["theirs"].probes)


def test_probes_of_both_alternate_with_the_same_seeds() -> None:
    log: _Log = []

    find_capacities(_contenders(log), parse_slo("p95<500ms"), _PLAN, note=lambda *_: None)

    assert [(name, seed) for name, _, seed in log][2:6] == [("ours", 1), ("theirs", 1), ("ours", 2), ("theirs", 2)]


def test_what_holds_at_no_rate_has_no_capacity() -> None:
    found = find_capacities(_contenders([]), parse_slo("p95<30ms"), _PLAN, note=lambda *_: None)

    assert found["ours"].per_s > 0
    assert found["theirs"].per_s == 0
