"""The server over time, seen from outside: what it exposes, and what the kernel says of its processes."""

import math
import os
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from loadtests.processes import look_at_tree

CPU_SECONDS: Final = "process_cpu_seconds_total"
RESIDENT_BYTES: Final = "process_resident_memory_bytes"
_IN_DECODING_PROCESSES: Final = {
    CPU_SECONDS: "mt_decoding_process_cpu_seconds_total",
    RESIDENT_BYTES: "mt_decoding_process_resident_memory_bytes",
}
"""What a server exposes of the processes that it has started, by what it exposes of itself."""

_EACH_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment."""

    at_s: float
    """On `time.monotonic()`."""

    values: Mapping[str, float]
    """By name with labels, as Prometheus writes them; empty: the server did not answer."""

    def total(self, name: str, label: str = "") -> float:
        """Return a metric, added up over those of its labels that contain a text; NaN if there is none."""
        found = [
            value
            for key, value in self.values.items()
            if key.partition("{")[0] == name and label in key.partition("{")[2]
        ]
        return sum(found) if found else math.nan


class Sampler:
    """Looks at a server about once a second in a thread of its own, at least once at either end."""

    def __init__(self, metrics_url: str | None, pids: Sequence[int] = (), *, each_s: float = _EACH_S) -> None:
        """Look at neither, one or both.

        Args:
            metrics_url: where the server exposes its metrics.
            pids: its processes on this machine; their processor time and memory take the place of what it exposes.
            each_s: how often.
        """
        self.samples: list[Sample] = []
        self._metrics_url = metrics_url
        self._pids = pids
        self._each_s = each_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        if self._metrics_url is not None or self._pids:
            self._look()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
            self._look()

    def _run(self) -> None:
        while not self._is_over.wait(self._each_s):
            self._look()

    def _look(self) -> None:
        values: dict[str, float] = {}
        try:
            if self._metrics_url is not None:
                values |= scrape(self._metrics_url)
            if self._pids:
                values |= _of_processes(self._pids)
        except (OSError, ValueError):
            values = {}  # the gap is seen where the samples are used
        self.samples.append(Sample(at_s=time.monotonic(), values=values))


def scrape(url: str) -> dict[str, float]:
    """Return every metric that an address exposes, as `parse_metrics` does.

    Raises:
        OSError: if it does not answer.
        ValueError: if the address is none, or the answer is no metrics.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: expected http://HOST:PORT/metrics")
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - its scheme is checked above
        return parse_metrics(response.read().decode())


def parse_metrics(exposed: str) -> dict[str, float]:
    """Return metrics of Prometheus's text format, by name with labels; those of the process are of all processes."""
    pairs = (line.rpartition(" ") for line in exposed.splitlines() if line and not line.startswith("#"))
    values = {name: float(value) for name, _, value in pairs}
    for name, decoding in _IN_DECODING_PROCESSES.items():
        if name in values:
            values[name] += sum(value for series, value in values.items() if series.partition("{")[0] == decoding)
    return values


def _of_processes(pids: Sequence[int]) -> dict[str, float]:
    """Return processor time and memory of processes and their descendants, named as a server exposes its own."""
    cpu_s, resident_bytes = zip(*(found for pid in pids for found in look_at_tree(pid, _usage)), strict=True)
    return {CPU_SECONDS: sum(cpu_s), RESIDENT_BYTES: sum(resident_bytes)}


def _usage(pid: int) -> tuple[float, float]:
    """Return the processor time of a process in seconds, and its resident memory in bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime and stime, fields 14 and 15 of proc(5)
    return cpu_s, float(int(fields[21]) * _PAGE_BYTES)
