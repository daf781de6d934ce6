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
_SLACK_S: Final = 1.5
"""Samples so long before and after the measured time count too, as there is one about every second."""


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


_Points = list[tuple[float, float]]
_Source = Callable[[Sequence[Sample]], _Points]


def _gauge(metric: str, scale: float = 1.0) -> _Source:
    """Return what reads a metric as it stands."""
    return lambda samples: [(sample.at_s, scale * sample.total(metric)) for sample in samples]


def _rate(metric: str, by: str | None = None) -> _Source:
    """Return what reads how fast a counter grows: by the second, or by another counter."""

    def points(samples: Sequence[Sample]) -> _Points:
        found = []
        for first, second in itertools.pairwise(samples):
            grown = second.total(metric) - first.total(metric)
            base = second.at_s - first.at_s if by is None else second.total(by) - first.total(by)
            found.append((second.at_s, grown / base if base > 0 else math.nan))
        return found

    return points


_SERVER: Final[dict[str, tuple[str, _Source]]] = {
    "queue": ("segments that wait", _gauge("mt_queue_segments")),
    "batch segments": ("segments in the batches", _gauge("mt_batch_live_segments")),
    "batch rows": ("beams in the batches", _gauge("mt_batch_live_rows")),
    "segments of a step": ("segments, mean", _rate("mt_batch_segments_sum", by="mt_batch_segments_count")),
    "target tokens": ("tokens/s", _rate("mt_target_tokens_total")),
    "source tokens": ("tokens/s", _rate("mt_source_tokens_total")),
    "decoder steps": ("steps/s", _rate("mt_decoder_steps_total")),
    "processor": ("cores", _rate(CPU_SECONDS)),
    "memory": ("MiB", _gauge(RESIDENT_BYTES, 1 / _BYTES_PER_MB)),
}


def server_series(samples: Sequence[Sample], *, began_s: float, duration_s: float) -> list[Series]:
    """Return what the server said of itself in the measured time; a series without points is of a metric it lacks."""
    within = [one for one in samples if one.values and -_SLACK_S <= one.at_s - began_s <= duration_s + _SLACK_S]
    return [
        Series(
            name=name,
            unit=unit,
            points=tuple(
                (round(at_s - began_s, 3), value)
                for at_s, value in source(within)
                if at_s >= began_s and math.isfinite(value)
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

    def series(name: str, unit: str, values: Sequence[float]) -> Series:
        middles = [index * window_s + length_s / 2 for index, length_s in enumerate(lengths)]
        pairs = zip(middles, values, strict=True)
        return Series(name=name, unit=unit, points=tuple(pair for pair in pairs if math.isfinite(pair[1])))

    def rate(name: str, kinds: Sequence[Outcome]) -> Series:
        counts = [sum(call.outcome in kinds for call in window) for window in windows]
        return series(name, "calls/s", [count / length_s for count, length_s in zip(counts, lengths, strict=True)])

    def stage_series(stage: str, name: str, share: float) -> Series:
        answered = ([call for call in window if call.outcome is Outcome.ANSWERED] for window in windows)
        return series(f"{stage} {name}", "ms", [_percentile_ms(stage_times(calls, stage), share) for calls in answered])

    lags = [_percentile_ms([call.lag_s for call in window], 0.99) for window in windows]
    return [
        rate("offered", list(Outcome)),
        *(rate(kind.value, [kind]) for kind in Outcome),
        *(stage_series(stage, name, share) for stage in STAGES for name, share in (("p50", 0.5), ("p95", 0.95))),
        series("generator lag p99", "ms", lags),
    ]


def _percentile_ms(durations_s: Sequence[float], share: float) -> float:
    return 1000 * percentile(durations_s, share) if durations_s else math.nan
