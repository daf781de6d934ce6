import pytest

from loadtests.figures import Spread, percentile, share_of_equal


def test_a_spread_keeps_the_middle_and_both_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, lowest=1.0, highest=3.0)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 10), (0.95, 19), (0.01, 1), (1.0, 20)])
def test_a_percentile_is_one_of_the_values_by_nearest_rank(share: float, expected: float) -> None:
    assert percentile(list(range(20, 0, -1)), share) == expected


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_a_percentile_of_nothing_or_out_of_range_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_the_share_of_equal_places_counts_places() -> None:
    assert share_of_equal([(1,), (2, 3), (4,), (5,)], [(1,), (2,), (4,), (5,)]) == 0.75
