"""Fuzz targets: a part of the service that must process any bytes as documented, in bounded time and memory."""

import faulthandler
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

MAX_CPU_S: Final = 5.0  # of one input, a hundred times the slowest known one
MAX_GROWTH_BYTES: Final = 128 << 20  # of the process, during one input
_HANG_S: Final = 60.0  # wall-clock time of one input

_CORPUS: Final = Path(__file__).parent / "corpus"

Check = Callable[[bytes], None]  # raises unless an input is processed as documented


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One part of the service and its inputs."""

    name: str
    inputs: st.SearchStrategy[bytes]
    opened: Callable[[], AbstractContextManager[Check]]  # prepares what all inputs share, such as a server
    share: int = 1  # of the time, relative to other targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An input of the corpus."""

    name: str
    found: str  # the finding
    content: bytes


def corpus(target: str) -> list[Entry]:
    """Return the recorded inputs of a target.

    Each is `NAME.json` with `found` and `input`: a list of strings (one character per byte) and of pairs of a string
    and its number of repetitions.
    """
    return [_entry(path) for path in sorted((_CORPUS / target).glob("*.json"))]


def as_entry(found: str, content: bytes) -> str:
    """Return the file of an input of the corpus."""
    return json.dumps({"found": found, "input": [content.decode("latin-1")]}, indent=1) + "\n"


@contextmanager
def bounded(check: Check) -> Iterator[Check]:
    """Also limit CPU time and memory of this process for each input."""

    def judged(content: bytes) -> None:
        before_bytes = _peak_bytes(is_reset=True)
        began_s = time.thread_time()
        check(content)
        took_s, grew_bytes = time.thread_time() - began_s, _peak_bytes() - before_bytes
        assert took_s <= MAX_CPU_S, f"{took_s:.1f} s for {len(content)} bytes"
        assert grew_bytes <= MAX_GROWTH_BYTES, f"{grew_bytes >> 20} MiB for {len(content)} bytes"

    yield judged


@contextmanager
def no_hang() -> Iterator[None]:
    """End this process with stack traces after a timeout, also in native code."""
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return _status_bytes(Path(f"/proc/{pid}/status"), "VmRSS")


def _peak_bytes(*, is_reset: bool = False) -> int:
    if is_reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    return _status_bytes(Path("/proc/self/status"), "VmHWM")


def _status_bytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _entry(path: Path) -> Entry:
    entry: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    parts = (text * times for text, times in (part if isinstance(part, list) else (part, 1) for part in entry["input"]))
    return Entry(name=path.stem, found=entry["found"], content="".join(parts).encode("latin-1"))
