"""Checks that objects are freed without the garbage collector."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Collect once, then disable the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def num_alive(kind: type) -> int:
    """Return the number of objects of exactly this type."""
    return sum(type(thing) is kind for thing in gc.get_objects())
