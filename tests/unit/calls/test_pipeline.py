"""The limit of concurrent requests. `tests/unit/grpc_api/test_servicer.py` tests the pipeline around a method."""

import math

import pytest

from dragoman_service.calls.flow_control import ConcurrencyLimiter
from dragoman_service.calls.pipeline import time_allowed
from dragoman_service.calls.policy import TimeLimit
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import DragomanError, OverloadedError, StartingError
from tests.fakes import ManualClock


def open_limiter(max_concurrent: int = 1, clock: ManualClock | None = None) -> ConcurrencyLimiter:
    limiter = ConcurrencyLimiter(max_concurrent=max_concurrent, clock=clock or ManualClock())
    limiter.open()
    return limiter


def rejection(limiter: ConcurrencyLimiter) -> DragomanError:
    with pytest.raises(DragomanError) as caught, limiter.admitted():
        pass
    return caught.value


def test_limiter_rejects_calls_before_the_models_are_loaded() -> None:
    assert isinstance(rejection(ConcurrencyLimiter(max_concurrent=1)), StartingError)


def test_draining_limiter_admits_calls_that_the_server_has_accepted() -> None:
    limiter = open_limiter()
    limiter.drain()

    with limiter.admitted():
        assert isinstance(rejection(limiter), OverloadedError)


def test_failed_call_frees_its_slot() -> None:
    limiter = open_limiter()
    with pytest.raises(ZeroDivisionError), limiter.admitted():
        raise ZeroDivisionError

    with limiter.admitted():
        assert str(rejection(limiter)).startswith("limit of 1 concurrent requests reached (1 in use)")


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


TIMEOUTS = GrpcSettings(default_timeout_s=10, max_timeout_s=100, default_stream_timeout_s=20, max_stream_timeout_s=200)


@pytest.mark.parametrize(
    ("remaining_s", "call_s", "stream_s"),
    [(None, 10, 20), (0.0, 0, 0), (50.0, 50, 50), (150.0, 100, 150), (math.inf, 100, 200)],
)
def test_time_limit_is_the_deadline_within_the_maximum(
    remaining_s: float | None, call_s: float, stream_s: float
) -> None:
    assert time_allowed(TIMEOUTS, TimeLimit.CALL, remaining_s) == call_s
    assert time_allowed(TIMEOUTS, TimeLimit.STREAM, remaining_s) == stream_s
