"""Who joins a running batch next: pure functions of queue and batch."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from service.datatypes import GuardReport, Hypothesis, SamplingConfig, SearchConfig, Segment
from service.decoding.running_batch import EndedSegment
from service.decoding.step_model import ModelLimits
from service.runtime.device import Placement
from service.runtime.settings import RuntimeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """The size of a batch."""

    num_segments: int = 0
    longest_source: int = 0
    """In tokens, EOS counted."""

    widest_beam: int = 0
    source_tokens: int = 0
    """Of all segments, EOS counted, without padding."""

    live_rows: int = 0
    """Beams of all segments together."""

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> "BatchLoad":
        """Return the load of a batch of these segments."""
        listed = list(segments)
        sources, beams = [len(one.source_ids) for one in listed], [one.search.beam_size for one in listed]
        return cls(
            num_segments=len(listed),
            longest_source=max(sources, default=0),
            widest_beam=max(beams, default=0),
            source_tokens=sum(sources),
            live_rows=sum(beams),
        )

    @property
    def padded_tokens(self) -> int:
        """Source tokens when every source is padded to the longest."""
        return self.num_segments * self.longest_source

    @property
    def rows(self) -> int:
        """Decoder rows when every beam is padded to the widest."""
        return self.num_segments * self.widest_beam

    def plus(self, segment: Segment) -> "BatchLoad":
        """Return the load with one more segment."""
        return BatchLoad(
            num_segments=self.num_segments + 1,
            longest_source=max(self.longest_source, len(segment.source_ids)),
            widest_beam=max(self.widest_beam, segment.search.beam_size),
            source_tokens=self.source_tokens + len(segment.source_ids),
            live_rows=self.live_rows + segment.search.beam_size,
        )


@dataclass(slots=True, kw_only=True)
class Turn:
    """Newcomers were encoded and a step was taken, or nothing of it if nobody was left; filled in as it goes."""

    newcomers: tuple[int, ...] = ()
    """Keys of the segments that were encoded."""

    num_encoded_tokens: int = 0
    """Source tokens of the newcomers."""

    encode_began_s: float = 0.0
    """On the batch's clock."""

    encode_s: float = 0.0
    """Seconds of their encoder runs, as are the other times."""

    load: BatchLoad = field(default_factory=BatchLoad)
    """Of those who took part in the step."""

    step_rows: int = 0
    """Rows that the network stepped: those of each segment, dead ones counted, times segments."""

    num_rows: int = 0
    """Beams of all segments of the step together; 0 if there was none."""

    step_s: float = 0.0
    step_ended_s: float = 0.0
    """On the batch's clock."""

    ended: tuple[EndedSegment, ...] = ()
    """Who ended with the step; handles are keys."""

    late: tuple[int, ...] = ()
    """Keys of those who were dropped after the step, as their deadline had passed."""

    fault: str = ""
    """What was raised, as Python prints it."""

    lost: tuple[int, ...] = ()
    """Keys of those who were in the batch when it was raised, newcomers included: nobody is in it any more."""

    busy_s: float = 0.0
    """The whole turn."""

    num_tokens: int = 0
    """Source tokens of the segments that ended."""

    num_steps: int = 0
    """Steps that the segments that ended took part in, added up."""

    @property
    def work(self) -> int:
        """Work tokens done: source tokens encoded, and rows that took a step."""
        return self.num_encoded_tokens + self.num_rows


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A segment that joins."""

    key: int
    """What it is called in orders and turns; no other segment of the batch is called so."""

    segment: Segment
    deadline_s: float
    """On the batch's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a batch is told between two steps."""

    newcomers: tuple[Newcomer, ...] = ()
    dropped: tuple[int, ...] = ()
    """Keys of segments that nobody waits for any more; who has left by himself meanwhile may be among them."""

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.newcomers or self.dropped)


class Batch(Protocol):
    """One thread at a time may use it; `wake` and `interrupt` are for all others."""

    def exchange(self, orders: Orders) -> Sequence[Turn]:
        """Give orders and return what was done since the last exchange: a step at least, or nothing if interrupted.

        Not called without orders while nobody is in the batch, as nothing would ever be done.

        Raises:
            EngineError: if the batch is lost with all who were in it; the next exchange begins with an empty one.
        """

    def wake(self) -> None:
        """Let an exchange that waits return after the step that is being taken: there may be orders to give.

        Not before: whoever comes while a batch is in a step that takes long is better off in another one.
        """

    def interrupt(self) -> None:
        """Let exchanges return at once from now on: all is over."""

    def reset(self) -> None:
        """Forget all who are in it, whatever has become of them: the next exchange begins with an empty one."""

    def adopt_thread(self, *, niceness: int) -> None:
        """Prepare the calling thread, which will do all exchanges from now on.

        Args:
            niceness: how far the thread that decodes stands back behind others.
        """

    def close(self) -> None:
        """Free what it takes; it is used no more."""


class BatchSource(Protocol):
    """Makes the batches of a model's decoding threads."""

    @property
    def limits(self) -> ModelLimits:
        """What the batches take."""

    def new_batch(self, clock: Clock) -> Batch:
        """Return an empty batch that goes by a clock."""

    def close(self) -> None:
        """Free what the batches share; they are closed already."""


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
