"""A batch as its worker sees it, wherever it is decoded: orders go in, turns come out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.datatypes import Segment
from service.decoding.step_model import SegmentLimits
from service.scheduling.turn import Turn

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


class BatchSource(SegmentLimits, Protocol):
    """Makes the batches of a model's decoding threads."""

    def new_batch(self, clock: Clock) -> Batch:
        """Return an empty batch that goes by a clock."""

    def close(self) -> None:
        """Free what the batches share; they are closed already."""
