import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.capacity.search import CapacitySearch, Probe, SearchPlan, find_capacities, find_capacity
from loadtests.slo import parse_slo
from tests.unit.loadtests.capacity.fake_system import FakeSystem

_MAX_PROBES = 60


def _run(search: CapacitySearch, capacity_per_s: float) -> list[float]:
    """Probe a server that holds up to a rate; return the rates."""
    rates: list[float] = []
    while not search.is_over:
        rates.append(search.rate_per_s)
        assert len(rates) <= _MAX_PROBES
        search.note(holds=search.rate_per_s <= capacity_per_s)
    return rates


@given(st.floats(0.1, 1000.0), st.floats(0.2, 5.0), st.sampled_from([0.02, 0.05, 0.2]))
def test_the_capacity_is_found_within_the_resolution(capacity_per_s: float, start: float, resolution: float) -> None:
    search = CapacitySearch(start * capacity_per_s, resolution=resolution)

    _run(search, capacity_per_s)

    assert search.capacity_per_s <= capacity_per_s <= search.capacity_per_s * (1 + resolution) * (1 + 1e-9)


def test_rates_rise_by_the_factor_until_one_fails_and_then_halve_what_is_between() -> None:
    search = CapacitySearch(100.0, factor=2.0, resolution=0.2)

    assert [round(rate) for rate in _run(search, 350.0)] == [100, 200, 400, 283, 336]


def test_a_rate_that_failed_once_gets_its_second_chance() -> None:
    search = CapacitySearch(100.0, factor=2.0, resolution=0.5, tries=2)

    for holds in (False, True, False, False):
        search.note(holds=holds)

    assert search.rate_per_s == pytest.approx(141.4, abs=0.1)
    assert search.capacity_per_s == 100.0


def test_a_server_that_holds_nothing_ends_the_search() -> None:
    search = CapacitySearch(100.0)

    assert _run(search, 0.0)[-1] < 2.0
    assert search.capacity_per_s == 0.0


@pytest.mark.parametrize("options", [{"factor": 1.0}, {"resolution": 0.0}, {"tries": 0}])
def test_a_search_that_could_not_end_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no search"):
        CapacitySearch(100.0, **options)  # type: ignore[arg-type]


_PLAN = SearchPlan(closed_loop_s=10.0, probe_s=10.0)
_Log = list[tuple[str, float, int]]


def _systems(log: _Log) -> dict[str, FakeSystem]:
    return {
        "ours": FakeSystem("ours", log, capacity_per_s=150.0, service_s=0.02),
        "theirs": FakeSystem("theirs", log, capacity_per_s=100.0, service_s=0.05),
    }


def test_the_capacity_of_each_is_where_its_objective_breaks() -> None:
    log: _Log = []
    told: list[tuple[str, Probe]] = []

    found = find_capacities(
        _systems(log), parse_slo("p95<500ms"), _PLAN, note=lambda side, probe: told.append((side, probe))
    )

    # 0.95 * 10 s * (rate / capacity - 1) + service time reaches 500 ms at 1.0505 and 1.0474 times the capacity
    assert found["ours"].per_s == pytest.approx(157.6, rel=0.06)
    assert found["theirs"].per_s == pytest.approx(104.7, rel=0.06)
    assert all(bool(probe.broken) == (probe.run.p95_ms >= 500) for _, probe in told)
    assert found["ours"].closed_loop_per_s == 150.0
    assert found["ours"].probes[0].run.rate_per_s == pytest.approx(120.0)
    assert len(told) == len(found["ours"].probes) + len(found["theirs"].probes)
    # Probes of both alternate, with the same seeds.
    assert [(name, seed) for name, _, seed in log][2:6] == [("ours", 1), ("theirs", 1), ("ours", 2), ("theirs", 2)]


def test_what_holds_at_no_rate_has_no_capacity() -> None:
    found = find_capacities(_systems([]), parse_slo("p95<30ms"), _PLAN, note=lambda *_: None)

    assert found["ours"].per_s > 0
    assert found["theirs"].per_s == 0
    with pytest.raises(RuntimeError, match="holds at no rate"):
        find_capacity(_systems([])["theirs"], parse_slo("p95<30ms"), _PLAN, note=lambda _: None)
