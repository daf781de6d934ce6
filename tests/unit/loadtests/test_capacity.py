from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.generator.slo import parse_slo
from loadtests.scenarios import capacity
from loadtests.scenarios.capacity import find_capacities
from tests.unit.loadtests.samples import FakeSystem

_PLAN = capacity.SearchPlan(closed_loop_s=10.0, probe_s=10.0)
_SLO, _STRICT = parse_slo("p95<500ms"), parse_slo("p95<30ms")


def searched(holds: Callable[[int, float], bool], start_per_s: float, **options: float) -> tuple[float, list[float]]:
    """Return result and probed rates of a search."""
    search = capacity.search_rates(start_per_s, **options)  # type: ignore[arg-type]
    rates = [next(search)]
    while len(rates) < 60:
        try:
            rates.append(search.send(holds(len(rates), rates[-1])))
        except StopIteration as over:
            return over.value, rates
    raise AssertionError(rates)


@given(st.floats(0.1, 1000.0), st.floats(0.2, 5.0), st.sampled_from([0.02, 0.05, 0.2]))
def test_search_finds_the_capacity_within_its_resolution(
    capacity_per_s: float, start: float, resolution: float
) -> None:
    found_per_s, _ = searched(lambda _, rate: rate <= capacity_per_s, start * capacity_per_s, resolution=resolution)

    assert found_per_s <= capacity_per_s <= found_per_s * (1 + resolution) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("holds", "options", "probed", "found"),
    [
        (lambda _, rate: rate <= 350, {"resolution": 0.2}, [100, 200, 400, 283, 336], 336),
        # a failed rate is tried again
        (lambda count, _: count in {2, 5}, {"resolution": 0.45, "tries": 2}, [100, 100, 200, 200, 141], 141),
        (lambda *_: False, {}, [round(100 / 2**fall) for fall in range(13)], 0),
    ],
)
def test_search_multiplies_by_the_factor_and_then_bisects(
    holds: Callable[[int, float], bool], options: dict[str, float], probed: list[float], found: float
) -> None:
    found_per_s, rates = searched(holds, 100.0, factor=2.0, **options)

    assert ([round(rate) for rate in rates], round(found_per_s)) == (probed, found)


def systems(log: list[tuple[str, float, int]]) -> dict[str, FakeSystem]:
    figures = {"ours": (150.0, 0.02), "theirs": (100.0, 0.05)}
    return {name: FakeSystem(name, log, per_s, service_s) for name, (per_s, service_s) in figures.items()}


def test_capacity_is_where_the_objective_fails() -> None:
    log: list[tuple[str, float, int]] = []
    probed: list[int] = []

    found = find_capacities(systems(log), _SLO, _PLAN, on_probe=lambda: probed.append(len(log)))

    # 0.95 * 10 s * (rate / capacity - 1) + service time reaches 500 ms at 1.0505 and 1.0474 times the capacity
    assert [one.per_s for one in found.values()] == pytest.approx([157.6, 104.7], rel=0.06)
    probes = [probe for one in found.values() for probe in one.probes]
    assert all(bool(probe.broken) == (probe.p95_ms >= 500) for probe in probes)
    assert found["ours"].closed_loop_per_s == 150.0
    assert probes[0].rate_per_s == pytest.approx(120.0)
    assert probed == [*range(3, 3 + len(probes))]
    # probes alternate, with equal seeds
    assert [(name, seed) for name, _, seed in log][2:6] == [("ours", 1), ("theirs", 1), ("ours", 2), ("theirs", 2)]
