"""What the server and a decoding process tell each other, pickled, over sockets that nobody else has."""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

from service.datatypes import GuardReport, Hypothesis, SamplingConfig, SearchConfig, Segment
from service.decoding.running_batch import EndedSegment
from service.runtime.device import Placement
from service.runtime.settings import RuntimeSettings
from service.scheduling.batch import Newcomer, Orders
from service.scheduling.batching import BatchLoad
from service.scheduling.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """The first thing a decoding process is told."""

    directory: Path
    """Of the bundle."""

    settings: RuntimeSettings
    niceness: int
    """How far its threads stand back behind others."""

    log_level: int
    """From which on it sends what it logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The answer: the network can be run."""

    placement: Placement
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLoaded:
    """The other answer."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """One end of a socket comes next; it is for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a batch has done since its last one."""

    turns: tuple[Turn, ...]
    cache_bytes: int
    """Of all batches of the process."""

    cpu_s: float
    """CPU time of the process since any of its batches reported last."""


_PICKLED = (
    *(LoadOrder, Loaded, NotLoaded, Connect, Report),
    *(Orders, Newcomer, Segment, SearchConfig, SamplingConfig),
    *(Turn, BatchLoad, EndedSegment, Hypothesis, GuardReport),
)
"""Messages, and what they are made of."""


def format_digest() -> str:
    """Return what tells two forms of the messages apart: processes that differ in it would misread each other."""
    forms = [
        (kind.__qualname__, [(field.name, str(field.type)) for field in dataclasses.fields(kind)]) for kind in _PICKLED
    ]
    settings = [(name, str(field.annotation)) for name, field in RuntimeSettings.model_fields.items()]
    return hashlib.sha256(repr((forms, settings)).encode()).hexdigest()
