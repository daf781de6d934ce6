"""What a fault is: how it is done, whom it may hit, and what everybody else is still owed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadtests.chaos.bystanders import Bystanders, Question
from loadtests.chaos.limits import DEFAULT_LIMITS, Limits
from loadtests.chaos.scale import Scale
from loadtests.chaos.venue import Venue


@dataclass(slots=True)
class Stage:
    """Where a fault is done; it notes whom it hit and which promises it saw broken."""

    venue: Venue
    scale: Scale
    bystanders: Bystanders
    questions: Sequence[Question]
    began_s: float
    hits: Counter[str] = field(default_factory=Counter)
    """Of callers who were meant to be hit: what they were told, and how many of them."""

    broken: list[str] = field(default_factory=list)
    """A sentence for each promise that did not hold."""

    @property
    def target(self) -> str:
        """Address of gRPC."""
        return self.venue.server.target

    def require(self, holds: bool, sentence: str) -> None:
        """Note a promise as broken unless it holds."""
        if not holds:
            self.broken.append(sentence)

    def samples(self, name: str) -> float:
        """Return the sum of the series of a metric whose names with labels begin like this."""
        return sum(value for series, value in self.venue.server.samples().items() if series.startswith(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong."""

    name: str
    summary: str
    run: Callable[[Stage], str]
    """Does it and undoes it; returns where metrics show it, such as `mt_segments_total{error}+3`, empty if nowhere."""

    is_counted: bool = True
    """Whether metrics must show it; not what gRPC refuses before it calls anybody of the service."""

    limits: Limits = DEFAULT_LIMITS
    statuses_in_batch: frozenset[str] = frozenset()
    """What bystanders may be told who are decoded in the same batch; of those, `run` must account for each."""

    environment: Callable[[], Mapping[str, str]] | None = None
    """What the server must be started with, if it is anything; it then gets a server of its own."""
