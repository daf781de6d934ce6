"""The server over time, seen from outside: what it exposes, what the kernel says of it, whether it is idle."""

import math
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil

CPU_SECONDS: Final = "process_cpu_seconds_total"
RESIDENT_BYTES: Final = "process_resident_memory_bytes"
_IN_DECODING_PROCESSES: Final = {
    CPU_SECONDS: "dragoman_worker_cpu_seconds_total",
    RESIDENT_BYTES: "dragoman_worker_resident_memory_bytes",
}
"""What a server exposes of the processes that it has started, by what it exposes of itself."""

CALLS: Final = ("dragoman_requests_in_flight", "dragoman_open_streams")
"""Gauges of calls; a task of the server answers each."""
SEGMENTS: Final = (
    "dragoman_queue_segments",
    "dragoman_queue_tokens",
    "dragoman_queue_decode_cost",
    "dragoman_batch_live_",
)
"""Gauges of what waits or is decoded."""
_FACTS: Final = ("dragoman_build_info{", "dragoman_model_info{")  # metrics whose labels say what runs

_INTERVAL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_BYTES_PER_MB: Final = 1024 * 1024


def scrape(url: str) -> dict[str, float]:
    """Return every metric that an address exposes, as `parse_metrics` does.

    Raises OSError if it does not answer, ValueError if the address is no HTTP URL, or the answer is no metrics.
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


def work_left(samples: Mapping[str, float], starts: tuple[str, ...] = CALLS + SEGMENTS) -> dict[str, float]:
    """Return the gauges of calls and segments, or those of one kind, that are not 0; an idle server has none."""
    return {name: value for name, value in samples.items() if value and name.startswith(starts)}


def server_facts(samples: Mapping[str, float]) -> list[str]:
    """Return what a server says of its version and models: the labels of the metrics about them."""
    return [name.partition("{")[2].rstrip("}") for name in samples if name.startswith(_FACTS)]


def process_tree(pid: int) -> list[int]:
    """Return a process, first, and all that descend from it; those that end meanwhile may be missing."""
    try:
        return [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the processes of a server take of their machine at one moment, added up."""

    rss_mb: float  # resident memory in MiB; what processes share counts for each
    num_threads: int
    num_fds: int  # open files, sockets among them
    cpu_s: float = 0.0  # processor time since they were started


def footprint(pid: int) -> Footprint:
    """Look at a process and those that it has started, as far as they have not ended.

    Raises ProcessLookupError if the process itself has ended.
    """
    figures = []
    for member in process_tree(pid):
        try:
            process = psutil.Process(member)
            with process.oneshot():
                cpu, memory_bytes = process.cpu_times(), process.memory_info().rss
                counts = process.num_threads(), process.num_fds()
        except psutil.NoSuchProcess as error:
            if member == pid:
                raise ProcessLookupError(f"process {pid} has ended") from error
        else:
            figures.append((memory_bytes / _BYTES_PER_MB, *counts, cpu.user + cpu.system))
    return Footprint(*map(sum, zip(*figures, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment."""

    at_s: float  # on `time.monotonic()`
    values: Mapping[str, float]  # by name with labels, as Prometheus writes them; empty: the server did not answer

    def total(self, name: str, label: str = "") -> float:
        """Return a metric, added up over those of its labels that contain a text; NaN if there is none."""
        parted = [(key.partition("{"), value) for key, value in self.values.items()]
        found = [value for (own, _, labels), value in parted if own == name and label in labels]
        return sum(found) if found else math.nan


@contextmanager
def sampling(
    metrics_url: str | None, pids: Sequence[int] = (), *, interval_s: float = _INTERVAL_S
) -> Iterator[Sequence[Sample]]:
    """Look at a server about once a second in another thread, at least once at either end; yield what it has seen.

    It looks at the metrics, at processes of this machine, whose time and memory replace what is exposed, or both.
    """
    samples: list[Sample] = []
    is_over = threading.Event()

    def look() -> None:
        values: dict[str, float] = {}
        try:
            if metrics_url is not None:
                values |= scrape(metrics_url)
            if pids:
                each = [footprint(pid) for pid in pids]
                values[CPU_SECONDS] = sum(one.cpu_s for one in each)
                values[RESIDENT_BYTES] = sum(one.rss_mb for one in each) * _BYTES_PER_MB
        except (OSError, ValueError):
            values = {}  # the gap is seen where the samples are used
        samples.append(Sample(at_s=time.monotonic(), values=values))

    def run() -> None:
        while not is_over.wait(interval_s):
            look()

    if metrics_url is None and not pids:
        yield samples
        return
    look()
    thread = threading.Thread(target=run, name="sampler", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
        look()
