"""Messages between the scheduler (in the server) and the worker (in a process of its own).

They are pickled and sent over sockets that no other process can reach: one socket for the process (load, connect, log
records), and one for each running batch (`BatchCommand` to the worker, `BatchReport` back).
"""

import copyreg
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dragoman_service.bundle.files import CheckedFile
from dragoman_service.datatypes import DegenerationReport, Hypothesis, SamplingConfig, SearchConfig, Segment
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.decoding.step_model import CacheMemory

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSegment:
    """A segment that joins a batch."""

    segment_id: int  # unique within a scheduler
    segment: Segment
    deadline_s: float  # on the monotonic clock, which all processes of a machine share


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommand:
    """Changes to a batch between two steps."""

    new_segments: tuple[NewSegment, ...] = ()
    dropped_ids: tuple[int, ...] = ()  # cancelled segments, some of which may have ended or joined another batch
    # Sources, by id, of queued segments to encode with the new ones, for any batch that they join later:
    prefetch: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def merged(cls, commands: Sequence["BatchCommand"]) -> "BatchCommand":
        """Return one command for several in order; a segment that is dropped before it has joined never joins."""
        if len(commands) == 1:
            return commands[0]
        dropped_ids = tuple(segment_id for command in commands for segment_id in command.dropped_ids)
        new = (new for command in commands for new in command.new_segments if new.segment_id not in dropped_ids)
        prefetch = (item for command in commands for item in command.prefetch.items() if item[0] not in dropped_ids)
        return cls(new_segments=tuple(new), dropped_ids=dropped_ids, prefetch=dict(prefetch))


@dataclass(slots=True, kw_only=True)
class BatchStepOutput:
    """Output of a step of a batch: new segments are encoded and join, then all segments take decoder steps.

    It also covers the preceding steps of the same segments if nothing else happened. Results, metrics and the latency
    model derive from it. Times named `_at_s` and `step_ended_s` are points in time, all others are durations.
    """

    started_ids: tuple[int, ...] = ()  # segments that joined
    encoded_ids: tuple[int, ...] = ()  # segments that were encoded: new ones, and some that are still queued
    num_encoded_tokens: int = 0
    encode_s: float = 0.0
    started_at_s: float = 0.0  # when segments joined, after the encoder runs
    load: BatchLoad = field(default_factory=BatchLoad)  # of the segments that took the decoder step
    step_rows: int = 0  # rows of the decoder run, including dead and padded ones
    num_rows: int = 0  # beams of all segments of the step; 0 without a step
    step_s: float = 0.0
    step_ended_s: float = 0.0
    earlier_steps_s: Sequence[float] = ()  # durations of the preceding steps that it covers
    ended: tuple[EndedSegment, ...] = ()
    late_ids: tuple[int, ...] = ()  # segments that were dropped because their deadline had passed
    fault: str = ""  # traceback of an exception, which empties the batch
    lost_ids: tuple[int, ...] = ()  # segments that were in the batch then
    busy_s: float = 0.0  # duration of everything, for all steps that it covers
    num_tokens: int = 0  # source tokens of the segments that ended
    num_steps: int = 0  # steps of the segments that ended, added up

    @property
    def decode_cost(self) -> int:
        """Work done: source tokens encoded, plus rows that took a step."""
        return self.num_encoded_tokens + self.num_rows * (1 + len(self.earlier_steps_s))

    def merge(self, earlier: "BatchStepOutput") -> bool:
        """Cover the steps of the preceding output; return False, changing nothing, unless both are only plain steps.

        `earlier` has no segments that ended, were late or lost.
        """
        is_plain = not (self.encoded_ids or self.started_ids or earlier.encoded_ids or earlier.started_ids)
        is_same = (self.load, self.step_rows, self.num_rows) == (earlier.load, earlier.step_rows, earlier.num_rows)
        if not (is_plain and is_same and self.num_rows):
            return False
        self.earlier_steps_s = [*earlier.earlier_steps_s, earlier.step_s, *self.earlier_steps_s]
        self.busy_s += earlier.busy_s
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Steps of a batch since its last report, with the resources of the worker."""

    outputs: tuple[BatchStepOutput, ...]
    cache_bytes: int  # KV caches of all batches of the worker
    cpu_s: float  # CPU time of the worker process since the last report of any batch; 0 in the server's process
    copied_bytes: tuple[int, int] = (0, 0)  # copied to and from GPU memory since then


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCommand:
    """First message to a worker process; the answer is `Loaded`, or an error, with which the process ends.

    The following messages are sockets, each for a new batch.
    """

    directory: Path  # of the bundle
    settings: BaseModel  # of the runtime
    checked_files: frozenset[CheckedFile] = frozenset()  # of the bundle; read again only if they have changed
    niceness: int  # of worker threads
    log_level: int  # records of this level or above are sent to the server


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The model is loaded."""

    device: str
    precision: str
    weights_bytes: int  # size of the graph and weight files of the precision
    cache_memory: CacheMemory | None = None  # of the device; None on the CPU, or if it is not known


_PICKLED = (
    *(LoadCommand, CheckedFile, Loaded),
    *(BatchCommand, NewSegment, Segment, SearchConfig, SamplingConfig),
    *(BatchReport, BatchStepOutput, BatchLoad, EndedSegment, Hypothesis, DegenerationReport),
)


def _restored(kind: type[Any], values: tuple[Any, ...]) -> Any:
    message = object.__new__(kind)
    for set_field, value in zip(_SETTERS[kind], values, strict=True):
        set_field(message, value)
    return message


def _pickle_as_tuple(kind: type[Any]) -> None:
    """Pickle a message class as tuples, because the methods of `dataclass` take 1.5 times as long."""
    names = [field.name for field in dataclasses.fields(kind)]
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
    """Return a digest of the fields of all messages, to detect a worker of another version of the service."""
    messages = [
        (kind.__qualname__, [(field.name, str(field.type)) for field in dataclasses.fields(kind)]) for kind in _PICKLED
    ]
    settings = [(name, str(field.annotation)) for name, field in settings_type.model_fields.items()]
    return hashlib.sha256(repr((messages, settings)).encode()).hexdigest()
