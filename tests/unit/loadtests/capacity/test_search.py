import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.capacity.search import CapacitySearch

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
