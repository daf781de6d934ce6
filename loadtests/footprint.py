"""What a server takes of its machine: memory, threads, open files of all its processes; read from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.processes import look_at_tree

_BYTES_PER_MB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One look at the processes of a server, added up."""

    rss_mb: float
    """Resident memory in MiB; what processes share counts for each."""

    num_threads: int
    num_fds: int
    """Open files, sockets among them."""


def footprint(pid: int) -> Footprint:
    """Look at a process and those that it has started, as far as they have not ended.

    Raises:
        OSError: if the process itself has ended, or is somebody else's.
    """
    each = look_at_tree(pid, _footprint)
    return Footprint(
        rss_mb=sum(one.rss_mb for one in each),
        num_threads=sum(one.num_threads for one in each),
        num_fds=sum(one.num_fds for one in each),
    )


def _footprint(pid: int) -> Footprint:
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    return Footprint(
        rss_mb=pages * os.sysconf("SC_PAGE_SIZE") / _BYTES_PER_MB,
        num_threads=sum(1 for _ in (process / "task").iterdir()),
        num_fds=sum(1 for _ in (process / "fd").iterdir()),
    )
