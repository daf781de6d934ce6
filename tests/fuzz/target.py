"""Fuzz targets: a part of the service that must process any bytes as documented, in bounded time and memory."""

import faulthandler
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

MAX_CPU_S: Final = 5.0  # of one input, a hundred times the slowest known one
MAX_GROWTH_BYTES: Final = 128 << 20  # of the process, during one input
CORPUS: Final = Path(__file__).parent / "corpus"
_HANG_S: Final = 60.0  # wall-clock time of one input

Check = Callable[[bytes], None]  # raises unless an input is processed as documented


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One part of the service and its inputs."""

    name: str
    inputs: st.SearchStrategy[bytes]
    opened: Callable[[], AbstractContextManager[Check]]  # prepares what all inputs share, such as a server
    share: int = 1  # of the time, relative to other targets


def in_process(name: str, inputs: st.SearchStrategy[bytes], check: Check) -> Target:
    """Return a target that runs in this process, with a limit of CPU time and memory for each input."""
    return Target(name=name, inputs=inputs, opened=lambda: nullcontext(partial(_bounded, check)))


def corpus(target: str) -> list[bytes]:
    """Return the recorded inputs of a target.

    Each is `NAME.json` with `found` and `input`: a list of strings (one character per byte) and of pairs of a string
    and its number of repetitions.
    """
    entries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((CORPUS / target).glob("*.json"))]
    return [b"".join(map(_part, entry["input"])) for entry in entries]


def _part(part: str | tuple[str, int]) -> bytes:
    text, times = (part, 1) if isinstance(part, str) else part
    return text.encode("latin-1") * times


def as_entry(found: str, content: bytes) -> str:
    """Return the file of an input of the corpus."""
    return json.dumps({"found": found, "input": [content.decode("latin-1")]}, indent=1) + "\n"


@contextmanager
def no_hang() -> Iterator[None]:
    """End this process with stack traces after a timeout, also in native code."""
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _bounded(check: Check, content: bytes) -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before_bytes = _peak_bytes()
    began_s = time.thread_time()
    check(content)
    took_s, grew_bytes = time.thread_time() - began_s, _peak_bytes() - before_bytes
    assert took_s <= MAX_CPU_S, f"{took_s:.1f} s for {len(content)} bytes"
    assert grew_bytes <= MAX_GROWTH_BYTES, f"{grew_bytes >> 20} MiB for {len(content)} bytes"


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
