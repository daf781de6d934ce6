"""Where all callers note what became of their calls; any thread may write."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loadtests.soak.ledger import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of one call, the requests of a stream included."""

    kind: str
    """Why it was made, and by which method."""

    status: str
    """As its caller saw it."""

    entries: Sequence[Entry] = ()
    unanswered: Sequence[str] = ()
    """A sentence for each request that should have been answered."""

    twice: Sequence[str] = ()
    """A sentence for each request that was answered more than once."""

    errors: Sequence[str] = ()
    """A sentence for each status that nobody provoked."""

    wrong: Sequence[str] = ()
    """A sentence for each answer that is not whole, foreign, or not what it always was."""

    num_sentences: int = 0
    """In its answers."""


@dataclass(slots=True)
class Book:
    """The sum of all calls."""

    num_calls: int = 0
    num_sentences: int = 0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls by kind and status."""

    entries: list[Entry] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, ended: Ended) -> None:
        """Add a call."""
        with self._lock:
            self.num_calls += 1
            self.num_sentences += ended.num_sentences
            self.ends[ended.kind, ended.status] += 1
            self.entries += ended.entries
            self.unanswered += ended.unanswered
            self.twice += ended.twice
            self.errors += ended.errors
            self.wrong += ended.wrong

    def complain(self, sentences: Iterable[str]) -> None:
        """Add errors that are of no call."""
        with self._lock:
            self.errors += sentences
