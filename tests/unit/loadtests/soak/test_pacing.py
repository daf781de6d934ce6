import pytest

from loadtests.soak.pacing import Pace
from tests.fakes import ManualClock


def test_calls_are_spaced_evenly() -> None:
    pace = Pace(4.0, clock=ManualClock())

    assert [pace.wait_s() for _ in range(3)] == pytest.approx([0.0, 0.25, 0.5])


def test_what_was_missed_is_not_made_up_for() -> None:
    clock = ManualClock()
    pace = Pace(4.0, clock=clock)
    pace.wait_s()
    clock.advance(10.0)

    assert [pace.wait_s() for _ in range(2)] == pytest.approx([0.0, 0.25])


def test_without_a_rate_nobody_waits() -> None:
    pace = Pace(None, clock=ManualClock())

    assert [pace.wait_s() for _ in range(3)] == [0.0, 0.0, 0.0]
