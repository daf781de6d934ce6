"""Load shapes: the number of users over the time of a test, up to --users within --run-time."""

import math
from typing import Any, ClassVar, Final

from locust import LoadTestShape

_NUM_STEPS: Final = 5
_BASE: Final = 0.2  # share of the users outside a spike, and at night
_SPIKE: Final = (0.4, 0.6)  # shares of the time


class _Shape(LoadTestShape):  # type: ignore[misc]  # locust is skipped by mypy
    abstract = True
    use_common_options: ClassVar[bool] = True  # --users and --run-time

    def level(self, elapsed: float) -> float:
        """Return the share of the users, at the share of the time from 0 to 1."""
        raise NotImplementedError

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the rate of changes, or None at the end of the test."""
        options: Any = self.runner.environment.parsed_options
        elapsed = self.get_run_time() / options.run_time
        return None if elapsed >= 1 else (max(1, round(options.num_users * self.level(elapsed))), options.num_users)


class Steps(_Shape):
    """Five equal steps up to all users."""

    def level(self, elapsed: float) -> float:
        """See `_Shape`."""
        return (math.floor(elapsed * _NUM_STEPS) + 1) / _NUM_STEPS


class Ramp(_Shape):
    """A linear increase from one user to all."""

    def level(self, elapsed: float) -> float:
        """See `_Shape`."""
        return elapsed


class Spike(_Shape):
    """A fifth of the users, and all of them during the middle fifth of the time."""

    def level(self, elapsed: float) -> float:
        """See `_Shape`."""
        return 1.0 if _SPIKE[0] <= elapsed < _SPIKE[1] else _BASE


class Daily(_Shape):
    """A day within the time of the test: a fifth of the users at night, all of them at noon."""

    def level(self, elapsed: float) -> float:
        """See `_Shape`."""
        return _BASE + (1 - _BASE) * (1 - math.cos(2 * math.pi * elapsed)) / 2
