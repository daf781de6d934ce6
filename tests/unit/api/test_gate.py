import asyncio

import pytest

from service.api.gate import Gate
from service.errors import DrainingError, OverloadedError, StartingError


def enter(gate: Gate) -> None:
    with gate.admitted():
        pass


def test_a_new_gate_is_closed_because_nothing_is_loaded() -> None:
    with pytest.raises(StartingError):
        enter(Gate(max_concurrent=1))


def test_a_closed_gate_keeps_those_inside() -> None:
    gate = Gate(max_concurrent=2)
    gate.open()

    with gate.admitted():
        gate.close(DrainingError())
        with pytest.raises(DrainingError):
            enter(gate)


def test_a_full_gate_says_how_many_there_are() -> None:
    gate = Gate(max_concurrent=1)
    gate.open()

    with gate.admitted(), pytest.raises(OverloadedError, match="1 of 1 requests"):
        enter(gate)


def test_a_place_is_free_again_after_an_error() -> None:
    gate = Gate(max_concurrent=1)
    gate.open()
    with pytest.raises(ZeroDivisionError), gate.admitted():
        raise ZeroDivisionError

    enter(gate)


async def test_a_gate_is_idle_once_the_last_has_left() -> None:
    gate = Gate(max_concurrent=2)
    gate.open()
    with gate.admitted(), gate.admitted():
        waiting = asyncio.ensure_future(gate.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()

    await waiting


async def test_a_gate_that_nobody_entered_is_idle() -> None:
    waiting = asyncio.ensure_future(Gate(max_concurrent=1).wait_until_idle())
    await asyncio.sleep(0)

    assert waiting.done()
