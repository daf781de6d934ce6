"""Metrics of several processes as one page."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample

_SUMMED_GAUGES = frozenset(
    {
        "dragoman_requests_in_flight",
        "dragoman_open_streams",
        "dragoman_unread_calls",
        "dragoman_received_bytes",
        "dragoman_health_watchers",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
    }
)
"""Gauges whose sum over all processes is meaningful; the others are the owner's alone."""


class SampleKey(NamedTuple):
    """Identifies a series: its name and labels."""

    name: str
    labels: tuple[tuple[str, str], ...]


Families = Mapping[str, Mapping[SampleKey, tuple[float, Exemplar | None]]]
"""Samples by name of their metric, in order."""


def summable(registry: CollectorRegistry, *, has_gauges: bool = True) -> Families:
    """Return the samples that are added over all processes; without `has_gauges` only those that never decrease."""
    return {
        metric.name: {
            SampleKey(sample.name, tuple(sample.labels.items())): (sample.value, sample.exemplar)
            for sample in metric.samples
        }
        for metric in registry.collect()
        if metric.type in ("counter", "histogram") or (has_gauges and metric.name in _SUMMED_GAUGES)
    }


def without_gauges(families: Families) -> Families:
    """Return the samples of a process that has ended: its counters stay, its gauges do not."""
    return {name: samples for name, samples in families.items() if name not in _SUMMED_GAUGES}


def added(reports: Iterable[Families]) -> Families:
    """Return the sums of samples over all reports; an exemplar is that of the last report that has one."""
    sums: dict[str, dict[SampleKey, tuple[float, Exemplar | None]]] = defaultdict(dict)
    for families in reports:
        for name, samples in families.items():
            for key, (value, exemplar) in samples.items():
                previous, previous_exemplar = sums[name].get(key, (0.0, None))
                sums[name][key] = previous + value, exemplar or previous_exemplar
    return sums


class MergedRegistry(CollectorRegistry):
    """The metrics of this process, with those of the front ends added. Thread-safe."""

    def __init__(self, own: Any, reports: Callable[[], Iterable[Families]]) -> None:
        super().__init__()
        self._own = own
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        others = added(self._reports())
        for metric in self._own.collect():
            missing = dict(others.get(metric.name, {}))
            merged = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            for sample in metric.samples:
                value, exemplar = missing.pop(SampleKey(sample.name, tuple(sample.labels.items())), (0.0, None))
                merged.samples.append(sample._replace(value=sample.value + value, exemplar=sample.exemplar or exemplar))
            merged.samples += [
                Sample(key.name, dict(key.labels), value, None, exemplar) for key, (value, exemplar) in missing.items()
            ]
            yield merged

    def restricted_registry(self, names: Iterable[str]) -> "MergedRegistry":  # type: ignore[override] # as in the base
        """Return a registry with only the metrics of these names."""
        return MergedRegistry(self._own.restricted_registry(names), self._reports)
