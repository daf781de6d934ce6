import random
from collections.abc import Callable

import pytest

from loadtests.chaos import garbage


@pytest.mark.parametrize("kind", garbage.KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_garbage_is_the_same_for_the_same_seed_and_bounded(kind: Callable[[random.Random], bytes]) -> None:
    first, second = (kind(random.Random(7)) for _ in range(2))  # noqa: S311 - not for secrets

    assert first == second
    assert 0 < len(first) < 100_000
