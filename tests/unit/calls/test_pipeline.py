"""The limit of concurrent requests. `tests/unit/grpc_api/test_servicer.py` tests the pipeline around a method."""

import asyncio

import pytest

from dragoman_service.calls.flow_control import ConcurrencyLimiter
from dragoman_service.errors import DragomanError, DrainingError, OverloadedError, StartingError
from tests.fakes import ManualClock


def open_limiter(max_concurrent: int = 1, clock: ManualClock | None = None) -> ConcurrencyLimiter:
    limiter = ConcurrencyLimiter(max_concurrent=max_concurrent, clock=clock or ManualClock())
    limiter.open()
    return limiter


def rejection(limiter: ConcurrencyLimiter) -> DragomanError:
    with pytest.raises(DragomanError) as caught, limiter.admitted():
        pass
    return caught.value


def test_new_limiter_rejects_calls_and_the_error_keeps_no_earlier_frames() -> None:
    limiter = ConcurrencyLimiter(max_concurrent=1)
    depths = set()

    for _ in range(3):
        with pytest.raises(StartingError) as caught, limiter.admitted():
            pass
        depths.add(len(caught.traceback))

    assert len(depths) == 1


def test_closed_limiter_keeps_admitted_calls() -> None:
    limiter = open_limiter(2)

    with limiter.admitted():
        limiter.close(DrainingError())

        assert isinstance(rejection(limiter), DrainingError)


def test_failed_call_frees_its_slot() -> None:
    limiter = open_limiter()
    with pytest.raises(ZeroDivisionError), limiter.admitted():
        raise ZeroDivisionError

    with limiter.admitted():
        assert str(rejection(limiter)).startswith("limit of 1 concurrent requests reached (1 in use)")


async def test_limiter_is_idle_before_the_first_and_after_the_last_call() -> None:
    limiter = open_limiter(2)
    await limiter.wait_until_idle()
    with limiter.admitted(), limiter.admitted():
        waiting = asyncio.ensure_future(limiter.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()

    await waiting


@pytest.mark.parametrize(
    ("durations_s", "expected_s"), [([], 1.0), ([4.0, 4.0], 4.0), ([1.0, 33.0], 2.0), ([0.0], 0.1), ([1000.0], 10.0)]
)
def test_retry_delay_is_the_bounded_mean_duration_of_calls(durations_s: list[float], expected_s: float) -> None:
    clock = ManualClock()
    limiter = open_limiter(clock=clock)
    for duration_s in durations_s:
        with limiter.admitted():
            clock.advance(duration_s)

    with limiter.admitted():
        error = rejection(limiter)

    assert isinstance(error, OverloadedError)
    assert error.retry_after_s == expected_s


async def test_wait_until_closed_returns_the_rejection() -> None:
    limiter = open_limiter()
    waiting = asyncio.create_task(limiter.wait_until_closed())
    await asyncio.sleep(0)
    assert not waiting.done()

    limiter.close(DrainingError())

    assert isinstance(await waiting, DrainingError)
