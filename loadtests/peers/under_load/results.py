"""What came of it: every run, and the ratios that count."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from loadtests.capacity.search import Capacity, Run
from loadtests.peers.systems import Peer

MAX_LATENCY_RATIO: Final = 0.6
"""Target: our latency by theirs, at the same rate, p50 and p95 alike."""

MIN_CAPACITY_RATIO: Final = 1.5
"""Target: the rate we bear by the one they bear, at the same objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set-up of the rival while its best was sought."""

    settings: str
    runs: tuple[Run, ...]
    """At several rates."""

    closed_loop_per_s: float | None = None
    """Calls a second that callers who wait got answered; None: not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """Both at one rate, in turn, again and again."""

    load: float
    """As a share of the rival's capacity."""

    rate_per_s: float
    ours: tuple[Run, ...]
    theirs: tuple[Run, ...]

    @property
    def p50_ratio(self) -> float:
        """Our median latency by theirs, each the median of its repetitions; below 1 if ours is less."""
        return median(run.p50_ms for run in self.ours) / median(run.p50_ms for run in self.theirs)

    @property
    def p95_ratio(self) -> float:
        """As `p50_ratio`."""
        return median(run.p95_ms for run in self.ours) / median(run.p95_ms for run in self.theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether both do the same work."""

    num_texts: int
    identical: float
    """Share of the texts to which both say the same."""

    bleu: float | None
    """Of ours, with theirs for references; None: what is said has no meaning."""

    tokens_ratio: float
    """Our target tokens by theirs."""

    @property
    def holds(self) -> bool:
        """Whether their speed may be compared."""
        return (self.bleu is None or self.bleu >= _MIN_BLEU) and abs(self.tokens_ratio - 1) <= _MAX_TOKENS_APART


_MIN_BLEU: Final = 50.0
"""Rounding to int8, which each system does in its own way, changes a word or more of a third of the sentences (78 BLEU
between both on test sets, for the model that ships), and of more where it is unsure: 60 to 67 BLEU on sentences of this
repository's documents, which are nothing like what it was trained on."""

_MAX_TOKENS_APART: Final = 0.1
"""Whoever says a tenth more has a tenth more to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivalry:
    """Everything measured of one rival on one model."""

    model: str
    peer: Peer
    objective: str
    settings: str
    """Of the rival, the best of the trials."""

    trials: tuple[Trial, ...]
    agreement: Agreement
    our_capacity: Capacity
    their_capacity: Capacity
    points: tuple[LoadPoint, ...]

    @property
    def capacity_ratio(self) -> float:
        """The rate that we bear by theirs; above 1 if ours is more."""
        return self.our_capacity.per_s / self.their_capacity.per_s


def reached(point: LoadPoint, rivalry: Rivalry) -> dict[str, bool]:
    """Return each target and whether it was reached."""
    return {
        "p50": point.p50_ratio <= MAX_LATENCY_RATIO,
        "p95": point.p95_ratio <= MAX_LATENCY_RATIO,
        "capacity": rivalry.capacity_ratio >= MIN_CAPACITY_RATIO,
    }


def runs_of(rivalry: Rivalry) -> Sequence[Run]:
    """Return every run that counts: those of the capacity searches and of the load points, of both systems."""
    probes = (*rivalry.our_capacity.probes, *rivalry.their_capacity.probes)
    points = (run for point in rivalry.points for run in (*point.ours, *point.theirs))
    return [*(probe.run for probe in probes), *points]
