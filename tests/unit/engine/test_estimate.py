import pytest

from service.engine.forecast import Estimate


def learned(value: float, *, times: int = 200) -> Estimate:
    estimate = Estimate()
    for _ in range(times):
        estimate.record(value, per=1)
    return estimate


def test_nothing_is_said_before_enough_was_observed() -> None:
    estimate = Estimate()

    assert estimate.value is None
    for _ in range(31):
        estimate.record(1.0, per=1)
    assert estimate.value is None
    estimate.record(1.0, per=1)
    assert estimate.value == 1.0


def test_a_ratio_is_that_of_the_sums() -> None:
    estimate = Estimate()
    for _ in range(100):
        estimate.record(1.0, per=1)
        estimate.record(9.0, per=3)

    assert estimate.value == pytest.approx(10 / 4, rel=0.02)


def test_one_stall_changes_little() -> None:
    estimate = learned(0.01)

    estimate.record(1000.0, per=1)

    assert estimate.value == pytest.approx(0.01, rel=0.05)


def test_one_stall_among_the_first_changes_little() -> None:
    estimate = Estimate()
    estimate.record(1000.0, per=1)
    for _ in range(31):
        estimate.record(0.01, per=1)

    assert estimate.value == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_lasting_change_is_learned(factor: float) -> None:
    estimate = learned(1.0)

    for _ in range(700):
        estimate.record(factor, per=1)

    assert estimate.value == pytest.approx(factor, rel=0.05)
