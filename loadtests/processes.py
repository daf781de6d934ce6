"""A server's processes: the one that was started, and those that it has started itself."""

from collections.abc import Iterator
from pathlib import Path


def process_tree(pid: int) -> list[int]:
    """Return a process, first, and all that descend from it; those that end meanwhile may be missing."""
    return [pid, *(below for child in _children(pid) for below in process_tree(child))]


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
