import math

import pytest

from service.api.servicer import allowed_time_s
from service.api.settings import GrpcSettings

SETTINGS = GrpcSettings(default_timeout_s=10, max_timeout_s=100)


@pytest.mark.parametrize(
    ("remaining_s", "allowed_s"),
    [(None, 10), (0.0, 0.0), (5.0, 5.0), (50.0, 50.0), (1000.0, 100), (math.inf, 100)],
)
def test_a_call_may_take_what_its_caller_leaves_it_within_the_maximum(
    remaining_s: float | None, allowed_s: float
) -> None:
    assert allowed_time_s(remaining_s, SETTINGS) == allowed_s
