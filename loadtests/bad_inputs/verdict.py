"""What the run came to, and which promises were broken: pure functions of the records."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from loadtests.bad_inputs.growth import Growth
from loadtests.bad_inputs.inputs import LEFT
from loadtests.bad_inputs.judge import HANG, INTERNAL, LOST
from loadtests.records import percentile

_LONG_CHARACTERS: Final = 1000
"""From here on time is looked at by character; below it is the call that takes it."""

_NUM_SLOWEST: Final = 10
_MAX_TOLD: Final = 20
_ANSWERED: Final = frozenset({"OK", LEFT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What became of one input."""

    kind: str
    index: int
    method: str
    num_characters: int
    status: str
    seconds: float
    num_repeats: int = 0
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What repeats it."""
        return f"--only {self.kind} --index {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that was seen."""

    records: Sequence[Record]
    memory_mb: Sequence[float]
    """Resident memory of the server after the warm-up and after each batch."""

    server_faults: Sequence[str] = ()
    bystander_failures: Sequence[str] = ()
    bystander_latencies_s: Sequence[float] = ()
    bystander_alone_s: Sequence[float] = ()
    """Before the first bad input."""

    look_latencies_s: Sequence[float] = ()
    """Of calls that need nothing but the event loop."""

    growths: Sequence[Growth] = ()
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What must hold."""

    max_rss_growth_mb: float = 256.0
    """A server keeps the buffers of its largest batch."""

    max_bystander_p99_s: float = 10.0
    max_look_p99_s: float = 1.0
    """How long the event loop may keep others waiting."""

    max_growth_ratio: float = 3.0
    """Of time, at twice the size: half-way between work that grows as the text does and as its square."""

    min_growth_s: float = 0.25
    """Faster ones are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run."""

    inputs: int
    kinds: int
    ok: int
    refused: int
    left: int
    internal: int
    hangs: int
    lost: int
    repeated: int
    rss_growth_mb: float
    rss_mb: float
    slowest_ms: float
    p99_us_per_character: float | None
    """Of inputs with at least 1,000 characters."""

    bystander_p99_ms: float | None
    bystander_alone_p99_ms: float | None
    look_p99_ms: float | None
    look_max_ms: float | None
    worst_growth: float | None
    inputs_per_s: float
    statuses: dict[str, int] = field(default_factory=dict)


def summarize(run: Run, promises: Promises) -> Summary:
    """Return the figures of a run of at least one input."""
    statuses = Counter(record.status for record in run.records)
    per_character_us = [
        1e6 * record.seconds / record.num_characters
        for record in run.records
        if record.num_characters >= _LONG_CHARACTERS
    ]
    growths = [growth.ratio for growth in run.growths if growth.whole_s >= promises.min_growth_s]
    return Summary(
        inputs=len(run.records),
        kinds=len({record.kind for record in run.records}),
        ok=statuses["OK"],
        left=statuses[LEFT],
        refused=sum(count for status, count in statuses.items() if status not in _ANSWERED | INTERNAL | HANG | LOST),
        internal=sum(statuses[status] for status in INTERNAL),
        hangs=sum(statuses[status] for status in HANG),
        lost=sum(statuses[status] for status in LOST),
        repeated=sum(record.num_repeats > 0 for record in run.records),
        rss_growth_mb=max(run.memory_mb) - run.memory_mb[0],
        rss_mb=run.memory_mb[-1],
        slowest_ms=1000 * max(record.seconds for record in run.records),
        p99_us_per_character=percentile(per_character_us, 0.99) if per_character_us else None,
        bystander_p99_ms=_ms(run.bystander_latencies_s),
        bystander_alone_p99_ms=_ms(run.bystander_alone_s),
        look_p99_ms=_ms(run.look_latencies_s),
        look_max_ms=_ms(run.look_latencies_s, 1.0),
        worst_growth=max(growths, default=None),
        inputs_per_s=len(run.records) / run.elapsed_s,
        statuses=dict(statuses),
    )


def broken_promises(run: Run, summary: Summary, promises: Promises, *, seed: int) -> list[str]:
    """Return a sentence for each promise that did not hold; those of inputs say how to repeat them."""
    faulty = [(record, fault) for record in run.records for fault in record.faults]
    broken = [f"{fault} (--seed {seed} {record.name}, {record.method})" for record, fault in faulty[:_MAX_TOLD]]
    if len(faulty) > _MAX_TOLD:
        broken.append(f"{len(faulty) - _MAX_TOLD} more faults of this sort are in the report")
    broken += run.server_faults[:_MAX_TOLD]
    if run.bystander_failures:
        broken.append(
            f"{len(run.bystander_failures)} calls of bystanders failed, the first: {run.bystander_failures[0]}"
        )
    if summary.rss_growth_mb > promises.max_rss_growth_mb:
        broken.append(f"the server grew by {summary.rss_growth_mb:.0f} MB, more than {promises.max_rss_growth_mb:g}")
    for name, value_ms, most_s in (
        ("translations of bystanders", summary.bystander_p99_ms, promises.max_bystander_p99_s),
        ("calls that need the event loop only", summary.look_p99_ms, promises.max_look_p99_s),
    ):
        if value_ms is not None and value_ms > 1000 * most_s:
            broken.append(f"{name} took {value_ms:.0f} ms at p99, more than {1000 * most_s:g}")
    broken += [
        f"{growth.method} of {growth.shape} took {growth.ratio:.1f} times as long for twice the text: "
        f"{growth.half_s:.2f} and {growth.whole_s:.2f} s"
        for growth in run.growths
        if growth.whole_s >= promises.min_growth_s and growth.ratio > promises.max_growth_ratio
    ]
    return broken


def slowest(records: Sequence[Record]) -> list[Record]:
    """Return the inputs that took longest, the slowest first."""
    return sorted(records, key=lambda record: -record.seconds)[:_NUM_SLOWEST]


def line(summary: Summary, *, is_held: bool) -> str:
    """Return `bad_inputs name=value ...`, the verdict last."""
    fields = {
        "inputs": summary.inputs,
        "kinds": summary.kinds,
        "ok": summary.ok,
        "refused": summary.refused,
        "left": summary.left,
        "internal": summary.internal,
        "hangs": summary.hangs,
        "lost": summary.lost,
        "rss_growth_mb": f"{summary.rss_growth_mb:.1f}",
        "slowest_ms": f"{summary.slowest_ms:.0f}",
        "p99_us_per_character": _rounded(summary.p99_us_per_character),
        "bystander_p99_ms": _rounded(summary.bystander_p99_ms),
        "look_p99_ms": _rounded(summary.look_p99_ms),
        "look_max_ms": _rounded(summary.look_max_ms),
        "worst_growth": _rounded(summary.worst_growth),
        "inputs_per_s": f"{summary.inputs_per_s:.0f}",
        "verdict": "held" if is_held else "broken",
    }
    return " ".join(["bad_inputs", *(f"{name}={value}" for name, value in fields.items())])


def _ms(latencies_s: Sequence[float], share: float = 0.99) -> float | None:
    return 1000 * percentile(latencies_s, share) if latencies_s else None


def _rounded(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"
