"""Draws from Hypothesis strategies, the same for the same seed."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_Drawn = TypeVar("_Drawn")
_GENERATE_ONLY = settings(
    max_examples=2,  # the first one is always the simplest
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def drawn(make: Callable[[Callable[..., Any]], _Drawn], *, entropy: str) -> _Drawn:
    """Return what a function that gets `draw` draws: the same for the same entropy, Hypothesis and program."""
    found: list[_Drawn] = []

    @seed(entropy)
    @_GENERATE_ONLY
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        found.append(make(data.draw))

    collect()
    return found[-1]
