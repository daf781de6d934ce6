"""A server's processes: the one that was started, and those that it has started itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

_Found = TypeVar("_Found")


def process_tree(pid: int) -> list[int]:
    """Return a process, first, and all that descend from it; those that end meanwhile may be missing."""
    return [pid, *(below for child in _children(pid) for below in process_tree(child))]


def look_at_tree(pid: int, look: Callable[[int], _Found]) -> list[_Found]:
    """Look at a process, first, and at all that descend from it; those that end meanwhile are left out.

    Args:
        pid: of the process.
        look: takes the pid of one; raises OSError if that one has ended.

    Raises:
        OSError: if the process itself has ended.
    """
    root, *descendants = process_tree(pid)
    return [look(root), *(found for below in descendants for found in _unless_ended(below, look))]


def _unless_ended(pid: int, look: Callable[[int], _Found]) -> list[_Found]:
    try:
        return [look(pid)]
    except OSError:
        return []


def _children(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        try:
            yield from map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:  # it has ended
            continue


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
