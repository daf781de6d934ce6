"""The messages between the engine client (in the server) and the engine core (in the decoding process).

They are pickled and sent over sockets that nothing else can reach: one socket for the process (load, connect, log
records), and one for each running batch (`BatchCommand` to the core, `BatchReport` back).
"""

import copyreg
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dragoman_service.bundle.files import CheckedFile
from dragoman_service.datatypes import GuardReport, Hypothesis, SamplingConfig, SearchConfig, Segment
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.decoding.step_model import CacheMemory

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """A segment that joins a batch."""

    segment_id: int
    """Names it in every message; unique within an engine client."""

    segment: Segment
    deadline_s: float
    """On the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSource:
    """The source of a segment that waits in the server, and will join a batch soon."""

    segment_id: int
    source_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommand:
    """What a batch is told between two steps."""

    new_segments: tuple[NewSegment, ...] = ()
    dropped_ids: tuple[int, ...] = ()
    """Segments that are no longer wanted, here or at all; they may have ended meanwhile, or wait in the server."""

    encode_ahead: tuple[WaitingSource, ...] = ()
    """Sources to encode together with those of the new segments; kept for any batch of the core that they join."""

    @classmethod
    def merged(cls, commands: Sequence["BatchCommand"]) -> "BatchCommand":
        """Return one command for several, in order; a segment that is dropped before it has joined never joins."""
        if len(commands) == 1:
            return commands[0]
        dropped_ids = tuple(segment_id for one in commands for segment_id in one.dropped_ids)
        new_segments = (new for one in commands for new in one.new_segments if new.segment_id not in dropped_ids)
        ahead = (source for one in commands for source in one.encode_ahead if source.segment_id not in dropped_ids)
        return cls(new_segments=tuple(new_segments), dropped_ids=dropped_ids, encode_ahead=tuple(ahead))


@dataclass(slots=True, kw_only=True)
class BatchStepOutput:
    """What a step of a batch did: new segments were encoded, then all took a step. Filled in as it goes.

    It may tell of the steps before it, too, if the same segments took them and nothing else happened.

    Answers, metrics and the forecast are made of it. Times without `_began` or `_ended` are durations, `busy_s` of all.
    """

    started_ids: tuple[int, ...] = ()
    """The segments that joined."""

    encoded_ids: tuple[int, ...] = ()
    """The segments that were encoded: those that joined, unless they had been before, and some that wait."""

    num_encoded_tokens: int = 0
    """Source tokens of the segments that were encoded."""

    encode_s: float = 0.0
    """Of the encoder runs; 0 if nothing was encoded."""

    started_at_s: float = 0.0
    """When the segments joined, after the encoder runs."""

    load: BatchLoad = field(default_factory=BatchLoad)
    """Of the segments that took part in the decoder step."""

    step_rows: int = 0
    """Rows that the network stepped: those of each segment, dead ones counted, times segments."""

    num_rows: int = 0
    """Beams of all segments of the step together; 0 if there was none."""

    step_s: float = 0.0
    step_ended_s: float = 0.0
    earlier_steps_s: list[float] = field(default_factory=list)
    """Durations of the steps before this one that are told together with it."""

    ended: tuple[EndedSegment, ...] = ()
    """The segments that ended with the step."""

    late_ids: tuple[int, ...] = ()
    """The segments that were dropped after the step because their deadline had passed."""

    fault: str = ""
    """The traceback, if anything was raised."""

    lost_ids: tuple[int, ...] = ()
    """The segments that were in the batch when it was raised; the batch is empty from then on."""

    busy_s: float = 0.0
    num_tokens: int = 0
    """Source tokens of the segments that ended."""

    num_steps: int = 0
    """Steps that the segments that ended took part in, added up."""

    @property
    def work(self) -> int:
        """Work tokens done: source tokens encoded, and rows that took a step."""
        return self.num_encoded_tokens + self.num_rows * (1 + len(self.earlier_steps_s))

    def take_in(self, earlier: "BatchStepOutput") -> bool:
        """Tell of the steps of an output before this one as well; return False if more than such steps happened.

        `earlier` has no segments that ended, were late or lost; it is not used any more if this returns True.
        """
        is_plain = not (self.encoded_ids or self.started_ids or earlier.encoded_ids or earlier.started_ids)
        is_same = (self.load, self.step_rows, self.num_rows) == (earlier.load, earlier.step_rows, earlier.num_rows)
        if not (is_plain and is_same and self.num_rows):
            return False
        self.earlier_steps_s = earlier.earlier_steps_s
        self.earlier_steps_s.append(earlier.step_s)
        self.busy_s += earlier.busy_s
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What a batch has done since its last report."""

    outputs: tuple[BatchStepOutput, ...]
    cache_bytes: int
    """KV caches of all batches of the core."""

    cpu_s: float
    """CPU time of the decoding process since any of its batches reported; 0 without a process of its own."""

    copied_bytes: tuple[int, int] = (0, 0)
    """Bytes copied to the memory of a GPU and from it since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCommand:
    """The first message to a decoding process."""

    directory: Path
    """Of the bundle."""

    settings: BaseModel
    """Of the runtime."""

    checked_files: frozenset[CheckedFile] = frozenset()
    """Of the bundle; they are read again only if they have changed."""

    niceness: int
    """How far the threads that decode stand back behind others."""

    log_level: int
    """Log records from this level on are sent to the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The network can be run."""

    device: str
    precision: str
    weights_bytes: int
    """Size of the files that hold graphs and weights of the precision."""

    cache_memory: CacheMemory | None = None
    """That of the device; None if it is not known, or that of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    """The network cannot be run; the process ends."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """One end of a socket follows; it is for a new batch."""


_PICKLED = (
    *(LoadCommand, CheckedFile, Loaded, LoadFailed, Connect),
    *(BatchCommand, NewSegment, WaitingSource, Segment, SearchConfig, SamplingConfig),
    *(BatchReport, BatchStepOutput, BatchLoad, EndedSegment, Hypothesis, GuardReport),
)
"""Messages, and what they are made of."""


def _restored(kind: type[Any], values: tuple[Any, ...]) -> Any:
    """Return a message whose fields have these values, in order."""
    message = object.__new__(kind)
    for set_field, value in zip(_SETTERS[kind], values, strict=True):
        set_field(message, value)
    return message


def _pickle_as_tuple(kind: type[Any]) -> None:
    """Pickle messages as tuples; by the methods of `dataclass` it takes half as long again."""
    names = [one.name for one in dataclasses.fields(kind)]
    values_of = attrgetter(*names)
    _SETTERS[kind] = [vars(kind)[name].__set__ for name in names]
    copyreg.pickle(kind, lambda message: (_restored, (kind, values_of(message))))


_SETTERS: dict[type[Any], list[Callable[[Any, Any], None]]] = {}
for _kind in (
    *(BatchCommand, NewSegment, Segment, SearchConfig),
    *(BatchReport, BatchStepOutput, BatchLoad, EndedSegment, Hypothesis),
):
    _pickle_as_tuple(_kind)


def format_digest(settings_type: type[BaseModel]) -> str:
    """Return a digest of the fields of all messages: two processes that differ in it would misread each other."""
    forms = [(kind.__qualname__, [(one.name, str(one.type)) for one in dataclasses.fields(kind)]) for kind in _PICKLED]
    settings = [(name, str(field.annotation)) for name, field in settings_type.model_fields.items()]
    return hashlib.sha256(repr((forms, settings)).encode()).hexdigest()
