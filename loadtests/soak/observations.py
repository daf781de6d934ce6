"""What a soak is asked to do, and what is seen of the server meanwhile: values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.sampler import Footprint
from loadtests.soak.ledger import MethodAndStatus

_S_PER_H: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long and how much."""

    duration_s: float
    """Of the load, its warm-up included."""

    warm_up_s: float
    """From the start of the load; its memory is not judged, all else is."""

    calibration_s: float
    """Before the load: as many calls as are answered."""

    num_callers: int
    load_share: float
    """Of the calls a second that were answered in the calibration."""

    swap_each_s: float
    sample_each_s: float
    num_windows: int
    """Of memory, after the warm-up; each should see a swap or more from its beginning to its end."""

    max_growth_mb: float
    """By which memory may grow in the time that is judged, in MiB."""

    seed: int

    must_be_sure_of_memory: bool = True
    """Whether memory that is too uneven to be judged breaks the promise; a short run can only show that it grows."""

    @property
    def max_slope(self) -> float:
        """The same in MiB per hour."""
        return self.max_growth_mb / (self.duration_s - self.warm_up_s) * _S_PER_H


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment of the load."""

    at_s: float
    """From the start of the load."""

    footprint: Footprint
    num_calls: int
    num_swaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The server while nobody is connected."""

    footprint: Footprint
    open_calls: Mapping[str, float]
    """Gauges that are not back at 0; so are the next."""

    held_segments: Mapping[str, float]
    versions: tuple[str, ...]
    """Those that the metrics still tell of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen from outside, before the server ended."""

    capacity_per_s: float
    rate_per_s: float
    elapsed_s: float
    samples: Sequence[Sample]
    before: Idle
    after: Idle
    counted: Mapping[MethodAndStatus, int]
    num_segments_ok: int
    num_segments_failed: int
    num_swaps: int
    """Made by the operator."""

    num_swaps_counted: int
    """By the server."""

    num_broken_versions: int
