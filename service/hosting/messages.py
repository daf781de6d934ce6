"""What the server and a decoding process tell each other, pickled, over sockets that nobody else has."""

from dataclasses import dataclass
from pathlib import Path

from service.runtime.device import Placement
from service.runtime.settings import RuntimeSettings
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
