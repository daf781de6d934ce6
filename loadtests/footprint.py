"""What a process takes of its machine: memory, threads, open files; read from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BYTES_PER_MB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One look at a process."""

    rss_mb: float
    """Resident memory in MiB."""

    num_threads: int
    num_fds: int
    """Open files, sockets among them."""


def footprint(pid: int) -> Footprint:
    """Look at a process.

    Raises:
        OSError: if it has ended, or is somebody else's.
    """
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    return Footprint(
        rss_mb=pages * os.sysconf("SC_PAGE_SIZE") / _BYTES_PER_MB,
        num_threads=sum(1 for _ in (process / "task").iterdir()),
        num_fds=sum(1 for _ in (process / "fd").iterdir()),
    )
