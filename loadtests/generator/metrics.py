"""The server seen from outside: its Prometheus metrics and its processes."""

import math
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

CPU_SECONDS: Final = "process_cpu_seconds_total"
RESIDENT_BYTES: Final = "process_resident_memory_bytes"
_OF_WORKERS: Final = {  # the same metrics of the child processes
    CPU_SECONDS: "dragoman_worker_cpu_seconds_total",
    RESIDENT_BYTES: "dragoman_worker_resident_memory_bytes",
}

CALLS: Final = ("dragoman_requests_in_flight", "dragoman_open_streams")  # gauges of calls
SEGMENTS: Final = (
    "dragoman_queue_segments",
    "dragoman_queue_tokens",
    "dragoman_queue_decode_cost",
    "dragoman_batch_live_",
)  # of segments
_GRPC_THREAD: Final = "event_engine"  # name of the threads of the pool in gRPC's C library
_INFO: Final = ("dragoman_build_info{", "dragoman_model_info{")

_INTERVAL_S: Final = 1.0
_TIMEOUT_S: Final = 5.0
_WITHOUT_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # which cannot reach this machine
_BYTES_PER_MB: Final = 1024 * 1024


def scrape(url: str) -> dict[str, float]:
    """Return all metrics of an address, as `parse_metrics` does.

    Raises OSError without a response, ValueError if the address is not an HTTP URL or the response not metrics.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: expected http://HOST:PORT/metrics")
    with _WITHOUT_PROXY.open(url, timeout=_TIMEOUT_S) as response:
        return parse_metrics(response.read().decode())


def parse_metrics(exposed: str) -> dict[str, float]:
    """Parse Prometheus text; keys are names with labels. Process metrics include the child processes."""
    pairs = (line.rpartition(" ") for line in exposed.splitlines() if line and not line.startswith("#"))
    values = {name: float(value) for name, _, value in pairs}
    for name, of_workers in _OF_WORKERS.items():
        if name in values:
            values[name] += sum(value for series, value in values.items() if series.partition("{")[0] == of_workers)
    return values


def remaining_work(samples: Mapping[str, float], starts: tuple[str, ...] = CALLS + SEGMENTS) -> dict[str, float]:
    """Return the nonzero gauges of calls and segments; empty for an idle server."""
    return {name: value for name, value in samples.items() if value and name.startswith(starts)}


def server_info(samples: Mapping[str, float]) -> list[str]:
    """Return the labels of the info metrics of version and models."""
    return [name.partition("{")[2].rstrip("}") for name in samples if name.startswith(_INFO)]


def process_tree(pid: int) -> list[int]:
    """Return a process, first, and its descendants."""
    try:
        return [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resources of all processes of a server."""

    rss_mb: float  # resident memory in MiB; shared pages count for each process
    num_threads: int  # gRPC's pool does not count: it adds threads when all are late, and keeps them
    num_fds: int
    cpu_s: float = 0.0


def footprint(pid: int) -> Footprint:
    """Measure a process and its descendants; raises ProcessLookupError if the process has ended."""
    figures = []
    for member in process_tree(pid):
        try:
            process = psutil.Process(member)
            with process.oneshot():
                cpu, memory_bytes = process.cpu_times(), process.memory_info().rss
                counts = _num_threads(member), process.num_fds()
        except psutil.NoSuchProcess as error:
            if member == pid:
                raise ProcessLookupError(f"process {pid} has ended") from error
        else:
            figures.append((memory_bytes / _BYTES_PER_MB, *counts, cpu.user + cpu.system))
    return Footprint(*map(sum, zip(*figures, strict=True)))


def _num_threads(pid: int) -> int:
    count = 0
    for name in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended
            count += name.read_text(encoding="utf-8", errors="replace").strip() != _GRPC_THREAD
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Metrics at one moment."""

    at_s: float  # on `time.monotonic()`
    values: Mapping[str, float]  # by name with labels; empty if the server did not respond

    def total(self, name: str, label: str = "") -> float:
        """Sum a metric over the series whose labels contain a text; NaN if there is none."""
        parts = [(key.partition("{"), value) for key, value in self.values.items()]
        found = [value for (own, _, labels), value in parts if own == name and label in labels]
        return sum(found) if found else math.nan


@contextmanager
def sampling(
    metrics_url: str | None, pids: Sequence[int] = (), *, interval_s: float = _INTERVAL_S
) -> Iterator[Sequence[Sample]]:
    """Sample a server about once a second in another thread, and at both ends; yield the growing list of samples.

    Reads the metrics, local processes (whose time and memory replace the metrics), or both.
    """
    samples: list[Sample] = []
    is_over = threading.Event()

    def sample() -> None:
        values: dict[str, float] = {}
        try:
            if metrics_url is not None:
                values |= scrape(metrics_url)
            if pids:
                each = [footprint(pid) for pid in pids]
                values[CPU_SECONDS] = sum(one.cpu_s for one in each)
                values[RESIDENT_BYTES] = sum(one.rss_mb for one in each) * _BYTES_PER_MB
        except (OSError, ValueError):
            values = {}
        samples.append(Sample(at_s=time.monotonic(), values=values))

    def run() -> None:
        while not is_over.wait(interval_s):
            sample()

    if metrics_url is None and not pids:
        yield samples
        return
    sample()
    thread = threading.Thread(target=run, name="sampler", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
        sample()
