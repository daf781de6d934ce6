"""Load shapes: the number of users over the time of a test, up to --users within --run-time."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from locust import LoadTestShape

_NUM_STEPS: Final = 5
_BASE: Final = 0.2  # share of the users outside a spike, and at night
_SPIKE: Final = (0.4, 0.6)  # shares of the time
LEVELS: Final[Mapping[str, Callable[[float], float]]] = {  # share of the users at a share of the time, by --shape
    "steps": lambda elapsed: (math.floor(elapsed * _NUM_STEPS) + 1) / _NUM_STEPS,
    "ramp": lambda elapsed: elapsed,
    "spike": lambda elapsed: 1.0 if _SPIKE[0] <= elapsed < _SPIKE[1] else _BASE,
    "daily": lambda elapsed: _BASE + (1 - _BASE) * (1 - math.cos(2 * math.pi * elapsed)) / 2,
}


class Shape(LoadTestShape):  # type: ignore[misc]  # locust is skipped by mypy
    """The shape of the flag --shape."""

    use_common_options: ClassVar[bool] = True  # --users and --run-time

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the rate of changes, or None at the end of the test."""
        options: Any = self.runner.environment.parsed_options
        elapsed = self.get_run_time() / options.run_time
        level = LEVELS[options.shape](min(elapsed, 1.0))
        return None if elapsed >= 1 else (max(1, round(options.num_users * level)), options.num_users)
