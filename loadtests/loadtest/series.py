"""What changed over time: the server's metrics and the calls, as points that can be drawn. Pure functions."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.records import STAGES, CallRecord, percentile, stage_times
from loadtests.sampler import CPU_SECONDS, RESIDENT_BYTES, Sample
from loadtests.wire import Outcome

_BYTES_PER_MB: Final = 1024 * 1024
_MAX_WINDOWS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over the seconds since the measured time began."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]

    @property
    def highest(self) -> float | None:
        """Of the values; None if there are none."""
        return max((value for _, value in self.points), default=None)

    @property
    def mean(self) -> float | None:
        """Of the values, which are about equally far apart; None if there are none."""
        return sum(value for _, value in self.points) / len(self.points) if self.points else None


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A metric as it stands."""

    metric: str
    scale: float = 1.0

    def points(self, samples: Sequence[Sample], began_s: float) -> list[tuple[float, float]]:
        return [(sample.at_s - began_s, self.scale * sample.total(self.metric)) for sample in samples]


@dataclass(frozen=True, slots=True)
class _Rate:
    """How fast a counter grows; by the second, or by another counter."""

    metric: str
    by: str | None = None

    def points(self, samples: Sequence[Sample], began_s: float) -> list[tuple[float, float]]:
        points = []
        for first, second in itertools.pairwise(samples):
            grown = second.total(self.metric) - first.total(self.metric)
            base = second.at_s - first.at_s if self.by is None else second.total(self.by) - first.total(self.by)
            points.append((second.at_s - began_s, grown / base if base > 0 else math.nan))
        return points


_SERVER: Final[dict[str, tuple[str, _Gauge | _Rate]]] = {
    "queue": ("segments that wait", _Gauge("mt_queue_segments")),
    "batch segments": ("segments in the batches", _Gauge("mt_batch_live_segments")),
    "batch rows": ("beams in the batches", _Gauge("mt_batch_live_rows")),
    "segments of a step": ("segments, mean", _Rate("mt_batch_segments_sum", by="mt_batch_segments_count")),
    "target tokens": ("tokens/s", _Rate("mt_target_tokens_total")),
    "source tokens": ("tokens/s", _Rate("mt_source_tokens_total")),
    "decoder steps": ("steps/s", _Rate("mt_decoder_steps_total")),
    "processor": ("cores", _Rate(CPU_SECONDS)),
    "memory": ("MiB", _Gauge(RESIDENT_BYTES, 1 / _BYTES_PER_MB)),
}


def server_series(samples: Sequence[Sample], *, began_s: float, duration_s: float) -> list[Series]:
    """Return what the server said of itself in the measured time; a series without points is of a metric it lacks."""
    within = [sample for sample in samples if sample.values and -1.5 <= sample.at_s - began_s <= duration_s + 1.5]
    return [
        Series(
            name=name,
            unit=unit,
            points=tuple(
                (round(at_s, 3), value)
                for at_s, value in source.points(within, began_s)
                if at_s >= 0 and math.isfinite(value)
            ),
        )
        for name, (unit, source) in _SERVER.items()
    ]


def call_series(records: Sequence[CallRecord], *, began_s: float, duration_s: float) -> list[Series]:
    """Return calls by the second and how long they took, in windows by when they should have come."""
    window_s = max(1.0, duration_s / _MAX_WINDOWS)
    windows: list[list[CallRecord]] = [[] for _ in range(math.ceil(duration_s / window_s))]
    for record in records:
        windows[min(len(windows) - 1, int((record.planned_s - began_s) / window_s))].append(record)
    lengths = [min(window_s, duration_s - index * window_s) for index in range(len(windows))]

    def series(name: str, unit: str, value: Callable[[list[CallRecord], float], float]) -> Series:
        middles = [index * window_s + length_s / 2 for index, length_s in enumerate(lengths)]
        values = [value(window, length_s) for window, length_s in zip(windows, lengths, strict=True)]
        pairs = zip(middles, values, strict=True)
        return Series(name=name, unit=unit, points=tuple(pair for pair in pairs if math.isfinite(pair[1])))

    return [
        series("offered", "calls/s", lambda calls, length_s: len(calls) / length_s),
        *(
            series(kind.value, "calls/s", lambda calls, length_s, kind=kind: _count(calls, kind) / length_s)  # type: ignore[misc]
            for kind in Outcome
        ),
        *(
            series(f"{stage} {name}", "ms", lambda calls, _, stage=stage, share=share: _stage_ms(calls, stage, share))  # type: ignore[misc]
            for stage in STAGES
            for name, share in (("p50", 0.5), ("p95", 0.95))
        ),
        series("generator lag p99", "ms", lambda calls, _: _milliseconds([call.lag_s for call in calls], 0.99)),
    ]


def _count(calls: Sequence[CallRecord], kind: Outcome) -> int:
    return sum(call.outcome is kind for call in calls)


def _stage_ms(calls: Sequence[CallRecord], stage: str, share: float) -> float:
    return _milliseconds(stage_times([call for call in calls if call.outcome is Outcome.ANSWERED], stage), share)


def _milliseconds(durations_s: Sequence[float], share: float) -> float:
    return 1000 * percentile(durations_s, share) if durations_s else math.nan
