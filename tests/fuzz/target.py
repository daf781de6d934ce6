"""What is fuzzed: bytes into one part of the service, which must answer as documented, in bounded time and memory."""

import faulthandler
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

MAX_INPUT_BYTES: Final = 65_536
MAX_CPU_S: Final = 5.0
"""Of one input: a hundred times what the slowest takes that is known."""

MAX_GROWTH_BYTES: Final = 128 << 20
"""Of the memory of the process, at any moment of one input."""

_HANG_S: Final = 60.0
"""Wall-clock time after which a process that does not return from an input is ended with its stack traces."""

_CORPUS: Final = Path(__file__).parent / "corpus"

Check = Callable[[bytes], None]
"""Raises unless an input is answered as documented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One part of the service and what it is fed with."""

    name: str
    inputs: st.SearchStrategy[bytes]
    opened: Callable[[], AbstractContextManager[Check]]
    """Makes ready what all inputs share, such as a server."""

    share: int = 1
    """Of the time, next to other targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An input of the corpus."""

    name: str
    found: str
    """What it found, or why it is interesting."""

    content: bytes


def corpus(target: str) -> list[Entry]:
    """Return the inputs that are kept for a target.

    Each is `NAME.json`: `found`, and `input`, a list of strings (a character is a byte) and of strings with how often
    they are repeated.
    """
    return [_entry(path) for path in sorted((_CORPUS / target).glob("*.json"))]


def written(found: str, content: bytes) -> str:
    """Return the file of an input of the corpus."""
    return json.dumps({"found": found, "input": [content.decode("latin-1")]}, indent=1) + "\n"


@contextmanager
def bounded(check: Check) -> Iterator[Check]:
    """Judge processor time and memory of this process for each input, too."""

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
    """End this process with stack traces if what is within takes too long, native code included."""
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def resident_bytes(pid: int) -> int:
    """Return what a process has in memory."""
    return _status_bytes(Path(f"/proc/{pid}/status"), "VmRSS")


def _peak_bytes(*, is_reset: bool = False) -> int:
    if is_reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what there is now
    return _status_bytes(Path("/proc/self/status"), "VmHWM")


def _status_bytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _entry(path: Path) -> Entry:
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    pieces = (
        piece * times for piece, times in (part if isinstance(part, list) else (part, 1) for part in kept["input"])
    )
    return Entry(name=path.stem, found=kept["found"], content="".join(pieces).encode("latin-1"))
