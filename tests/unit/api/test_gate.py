import asyncio

import pytest

from service.api.rate_limits import ConcurrencyLimiter
from service.errors import DrainingError, OverloadedError, StartingError
from tests.fakes import ManualClock


def enter(gate: ConcurrencyLimiter) -> None:
    with gate.admitted():
        pass


def test_a_new_gate_is_closed_because_nothing_is_loaded() -> None:
    with pytest.raises(StartingError):
        enter(ConcurrencyLimiter(max_concurrent=1))


def test_a_closed_gate_keeps_those_inside() -> None:
    gate = ConcurrencyLimiter(max_concurrent=2)
    gate.open()

    with gate.admitted():
        gate.close(DrainingError())
        with pytest.raises(DrainingError):
            enter(gate)


def test_a_full_gate_says_how_many_there_are() -> None:
    gate = ConcurrencyLimiter(max_concurrent=1)
    gate.open()

    with gate.admitted(), pytest.raises(OverloadedError, match="1 of 1 requests"):
        enter(gate)


def test_a_place_is_free_again_after_an_error() -> None:
    gate = ConcurrencyLimiter(max_concurrent=1)
    gate.open()
    with pytest.raises(ZeroDivisionError), gate.admitted():
        raise ZeroDivisionError

    enter(gate)


async def test_a_gate_is_idle_once_the_last_has_left() -> None:
    gate = ConcurrencyLimiter(max_concurrent=2)
    gate.open()
    with gate.admitted(), gate.admitted():
        waiting = asyncio.ensure_future(gate.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()

    await waiting


async def test_a_gate_that_nobody_entered_is_idle() -> None:
    waiting = asyncio.ensure_future(ConcurrencyLimiter(max_concurrent=1).wait_until_idle())
    await asyncio.sleep(0)

    assert waiting.done()


def retry_after_s(gate: ConcurrencyLimiter) -> float:
    """Fill a gate that has one place, and return when the next one shall come back."""
    with gate.admitted(), pytest.raises(OverloadedError) as refusal:
        enter(gate)
    return refusal.value.retry_after_s


def test_a_full_gate_says_to_come_back_after_the_time_that_calls_take() -> None:
    clock = ManualClock()
    gate = ConcurrencyLimiter(max_concurrent=1, clock=clock)
    gate.open()
    for _ in range(3):
        with gate.admitted():
            clock.advance(4.0)

    assert retry_after_s(gate) == 4.0


@pytest.mark.parametrize(("stay_s", "expected_s"), [(0.0, 0.1), (1000.0, 10.0)])
def test_the_time_to_come_back_to_a_full_gate_has_sensible_limits(stay_s: float, expected_s: float) -> None:
    clock = ManualClock()
    gate = ConcurrencyLimiter(max_concurrent=1, clock=clock)
    gate.open()
    with gate.admitted():
        clock.advance(stay_s)

    assert retry_after_s(gate) == expected_s


def test_a_gate_that_knows_no_call_yet_names_a_second() -> None:
    gate = ConcurrencyLimiter(max_concurrent=1)
    gate.open()

    assert retry_after_s(gate) == 1.0


async def test_whoever_waits_for_the_gate_to_close_is_told_why() -> None:
    gate = ConcurrencyLimiter(max_concurrent=1)
    gate.open()
    waiting = asyncio.create_task(gate.wait_until_closed())
    await asyncio.sleep(0)
    assert not waiting.done()

    gate.close(DrainingError())

    assert isinstance(await waiting, DrainingError)
