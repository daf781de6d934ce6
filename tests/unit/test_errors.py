"""Errors cross from one process to another whole, whatever their constructors take."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman_service.errors import DragomanError

VALUES: dict[Any, Any] = {
    str: "a name",
    int: 3,
    float: 1.5,
    float | None: 2.5,
    object: ("of", "any", 4),
    tuple[str, ...]: ("a", "b"),
}


def kinds(root: type[DragomanError] = DragomanError) -> Iterator[type[DragomanError]]:
    """Every class of the tree."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            yield from kinds(kind)


def make_error(kind: type[DragomanError]) -> DragomanError:
    """Return one of a kind, with a value of the right type for each parameter."""
    if kind.__init__ is Exception.__init__:
        return kind("what went wrong")
    parameters = inspect.signature(kind).parameters.values()
    args = [VALUES[one.annotation] for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    fields = {one.name: VALUES[one.annotation] for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    return kind(*args, **fields)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(kind: type[DragomanError], protocol: int) -> None:
    error = make_error(kind)

    restored = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own

    assert type(restored) is kind
    assert (str(restored), restored.args, vars(restored)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_an_error_can_be_copied(kind: type[DragomanError]) -> None:
    error = make_error(kind)

    copied = copy.copy(error)

    assert copied is not error
    assert (type(copied), str(copied), vars(copied)) == (kind, str(error), vars(error))


def test_a_restored_error_can_be_raised_and_caught_by_its_root() -> None:
    restored = pickle.loads(pickle.dumps(make_error(DragomanError)))  # noqa: S301 - our own

    with pytest.raises(DragomanError, match="what went wrong"):
        raise restored
