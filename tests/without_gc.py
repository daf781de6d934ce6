"""What is freed without the garbage collector."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Collect once, then leave everything to reference counts."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def num_alive(kind: type) -> int:
    """Return how many objects of exactly this type there are."""
    return sum(type(thing) is kind for thing in gc.get_objects())
