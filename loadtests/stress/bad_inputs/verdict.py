"""What a run of bad inputs came to, and which promises were broken: pure functions, and a picture."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.records import percentile
from loadtests.stress.bad_inputs.inputs import LEFT
from loadtests.stress.bad_inputs.run import Record, Run
from loadtests.stress.bad_inputs.sender import HANG, INTERNAL, LOST
from loadtests.stress.callers import Reply
from loadtests.stress.verdict import Promise, Summary, at_most

_LONG_CHARACTERS: Final = 1000
"""From here on time is looked at by character; below it is the call that takes it."""

_NUM_SLOWEST: Final = 10
_ANSWERED: Final = frozenset({"OK", LEFT})
_LINEAR_US: Final = (1.0, 100.0)
"""Microseconds a character, drawn as lines to compare with."""


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


def summarize(run: Run, promises: Promises, *, seed: int) -> Summary:
    """Return figures and promises of a run of at least one input; broken ones of inputs say how to repeat them."""
    statuses = Counter(record.status for record in run.records)
    per_character_us = [
        1e6 * record.seconds / record.num_characters
        for record in run.records
        if record.num_characters >= _LONG_CHARACTERS
    ]
    growths = [growth for growth in run.growths if growth.whole_s >= promises.min_growth_s]
    rss_growth_mb = max(run.memory_mb) - run.memory_mb[0]
    translated_s = [reply.latency_s for reply in run.translations]
    looked_s = [reply.latency_s for reply in run.looks]
    figures: dict[str, str | int] = {
        "inputs": len(run.records),
        "kinds": len({record.kind for record in run.records}),
        "ok": statuses["OK"],
        "refused": sum(count for status, count in statuses.items() if status not in _ANSWERED | INTERNAL | HANG | LOST),
        "left": statuses[LEFT],
        "internal": sum(statuses[status] for status in INTERNAL),
        "hangs": sum(statuses[status] for status in HANG),
        "lost": sum(statuses[status] for status in LOST),
        "rss_growth_mb": f"{rss_growth_mb:.1f}",
        "slowest_ms": f"{1000 * max((record.seconds for record in run.records), default=0.0):.0f}",
        "p99_us_per_character": _rounded(_percentile(per_character_us)),
        "bystander_p99_ms": _rounded(_percentile(translated_s), 1000),
        "look_p99_ms": _rounded(_percentile(looked_s), 1000),
        "look_max_ms": _rounded(max(looked_s, default=None), 1000),
        "worst_growth": _rounded(max((growth.ratio for growth in growths), default=None)),
        "inputs_per_s": f"{len(run.records) / run.elapsed_s:.0f}",
    }
    wrong = [f"{fault} (--seed {seed} {one.name}, {one.method})" for one in run.records for fault in one.faults]
    return Summary(
        scenario="bad_inputs",
        figures=figures,
        promises=[
            Promise(name="each input is answered as the contract says", broken=wrong),
            Promise(name="between batches the server is well", broken=run.server_faults),
            Promise(name="bystanders are answered as before", broken=list(_bystander_failures(run))),
            at_most("memory of the server is bounded: growth", rss_growth_mb, promises.max_rss_growth_mb, unit="MB"),
            at_most(
                "translations of bystanders at p99",
                _percentile(translated_s) or 0,
                promises.max_bystander_p99_s,
                unit="s",
            ),
            at_most(
                "calls that need the event loop only at p99",
                _percentile(looked_s) or 0,
                promises.max_look_p99_s,
                unit="s",
            ),
            Promise(
                name="work grows as the text does",
                broken=[
                    f"{one.method} of {one.shape} took {one.ratio:.1f} times as long for twice the text: "
                    f"{one.half_s:.2f} and {one.whole_s:.2f} s"
                    for one in growths
                    if one.ratio > promises.max_growth_ratio
                ],
            ),
        ],
    )


def slowest(records: Sequence[Record]) -> list[Record]:
    """Return the inputs that took longest, the slowest first."""
    return sorted(records, key=lambda record: -record.seconds)[:_NUM_SLOWEST]


def details(run: Run) -> dict[str, Any]:
    """Return what the JSON has besides: statuses by kind, all faults, the slowest inputs, memory, growth."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for record in run.records:
        by_kind[record.kind][record.status] += 1
    alone_s = _percentile([reply.latency_s for reply in run.alone])
    return {
        "faults": [asdict(record) for record in run.records if record.faults],
        "slowest": [asdict(record) for record in slowest(run.records)],
        "statuses": dict(Counter(record.status for record in run.records)),
        "statuses_by_kind": {kind: dict(statuses) for kind, statuses in sorted(by_kind.items())},
        "retried": sum(record.num_retries > 0 for record in run.records),
        "bystander_alone_p99_ms": alone_s and 1000 * alone_s,
        "memory_mb": [round(size_mb, 1) for size_mb in run.memory_mb],
        "growth": [{**asdict(growth), "ratio": growth.ratio} for growth in run.growths],
    }


def picture(records: Sequence[Record]) -> Figure:
    """Draw each input: how large it was, how long it took; slopes of 1 are work that grows as the text does."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for method in sorted({record.method for record in records}):
        chosen = [record for record in records if record.method == method]
        sizes = [max(1, record.num_characters) for record in chosen]
        axes.scatter(sizes, [1000 * record.seconds for record in chosen], s=3, label=method)
    ends = (10, max(100, *(record.num_characters for record in records)))
    for us in _LINEAR_US:
        axes.plot(ends, [us * end / 1000 for end in ends], color="grey", linestyle=":", linewidth=1)
        axes.annotate(f"{us:g} µs a character", (ends[1], us * ends[1] / 1000), ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="characters or bytes sent", ylabel="milliseconds to the end")
    axes.legend(loc="upper left")
    return figure


def _bystander_failures(run: Run) -> Iterator[str]:
    replies: list[Reply] = [*run.alone, *run.translations, *run.looks]
    yield from (f"{reply.status}: {reply.message}" for reply in replies if reply.status != "OK")


def _percentile(values: Sequence[float]) -> float | None:
    return percentile(values, 0.99) if values else None


def _rounded(value: float | None, factor: float = 1.0) -> str:
    return "none" if value is None else f"{factor * value:.1f}"
