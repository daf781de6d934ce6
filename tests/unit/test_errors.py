"""Errors of all classes can be pickled and copied."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dragoman_service.errors import DragomanError, RateLimitedError

VALUES: dict[Any, Any] = {
    str: "a name",
    int: 3,
    float: 1.5,
    float | None: 2.5,
    object: ("of", "any", 4),
    tuple[str, ...]: ("a", "b"),
}


def kinds(root: type[DragomanError] = DragomanError) -> Iterator[type[DragomanError]]:
    """Yield all classes of the tree."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            yield from kinds(kind)


def make_error(kind: type[DragomanError]) -> DragomanError:
    """Return an error with a value of the right type for each parameter."""
    if kind.__init__ is Exception.__init__:
        return kind("a message")
    parameters = inspect.signature(kind).parameters.values()
    positional = [each for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return kind(
        *(VALUES[each.annotation] for each in positional), **{each.name: VALUES[each.annotation] for each in named}
    )


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("restore", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])  # noqa: S301
def test_errors_can_be_pickled_and_copied(
    kind: type[DragomanError], restore: Callable[[DragomanError], DragomanError]
) -> None:
    error = make_error(kind)

    restored = restore(error)

    assert restored is not error
    assert (type(restored), str(restored), restored.args, vars(restored)) == (kind, str(error), error.args, vars(error))


@pytest.mark.parametrize(
    ("wait_s", "delay_s"), [(1e308, 86400), (float("inf"), 86400), (float("nan"), 86400), (-1e308, 0)]
)
def test_retry_delay_is_at_most_a_day(wait_s: float, delay_s: float) -> None:
    error = RateLimitedError(caller="a", limit=1, unit="requests", retry_after_s=wait_s)

    assert error.retry_after_s == delay_s
    assert str(error).endswith(f"retry in {delay_s:.1f} s")
