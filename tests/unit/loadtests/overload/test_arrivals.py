import itertools

import pytest

from loadtests.overload.arrivals import poisson_arrivals, texts_per_call


def test_arrivals_are_random_and_come_at_the_rate_asked_for() -> None:
    arrivals = poisson_arrivals(100.0, 60.0, seed=1)

    assert len(arrivals) == pytest.approx(6000, rel=0.05)
    assert arrivals == sorted(arrivals)
    assert 0 < arrivals[0] < arrivals[-1] < 60
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert sum(gap < 0.0025 for gap in gaps) / len(gaps) == pytest.approx(0.22, abs=0.03)  # 1 - exp(-1/4)


def test_arrivals_are_the_same_for_the_same_seed() -> None:
    assert poisson_arrivals(10.0, 5.0, seed=3) == poisson_arrivals(10.0, 5.0, seed=3) != poisson_arrivals(10.0, 5.0, 4)


@pytest.mark.parametrize(("rate", "duration"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_no_rate_or_no_time_is_refused(rate: float, duration: float) -> None:
    with pytest.raises(ValueError, match="no arrivals"):
        poisson_arrivals(rate, duration, seed=1)


@pytest.mark.parametrize(("texts_per_s", "expected"), [(100.0, 8), (3200.0, 8), (3201.0, 9), (8000.0, 20), (1e9, 128)])
def test_calls_grow_when_there_would_be_too_many(texts_per_s: float, expected: int) -> None:
    assert texts_per_call(texts_per_s, at_least=8, at_most=128, max_calls_per_s=400.0) == expected
