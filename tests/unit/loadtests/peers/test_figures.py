from loadtests.peers.figures import Spread, share_of_equal


def test_a_spread_keeps_the_middle_and_both_ends() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, lowest=1.0, highest=3.0)


def test_the_share_of_equal_places_counts_places() -> None:
    assert share_of_equal([(1,), (2, 3), (4,), (5,)], [(1,), (2,), (4,), (5,)]) == 0.75
