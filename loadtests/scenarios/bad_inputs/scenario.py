"""Scenario `bad-inputs`: malformed and extreme inputs, then attacks on the speed of the server; which promises held."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.generator.flags import several, within
from loadtests.generator.records import percentile
from loadtests.report.report import figure, rounded
from loadtests.scenarios.bad_inputs.attacks.report import conclude_attacks
from loadtests.scenarios.bad_inputs.attacks.run import run_attacks
from loadtests.scenarios.bad_inputs.attacks.table import ATTACKS
from loadtests.scenarios.bad_inputs.inputs import LEFT
from loadtests.scenarios.bad_inputs.kinds import KINDS, make, plan
from loadtests.scenarios.bad_inputs.run import Record, Run, send_all
from loadtests.hostile.texts import SHAPES
from loadtests.scenarios.stress_server import started
from loadtests.report.checks import Promise, Summary, at_most, conclude, print_broken

SUMMARY: Final = "malformed and extreme inputs, and attacks: right statuses, and no stall for other callers?"

DESCRIPTION: Final = """\
Starts the server on free ports of this machine with the model that ships and sends it inputs of every bad kind, drawn
by Hypothesis from a seed: characters of every Unicode block, invisible ones, towers of marks; bombs of tags, entities
and placeholders, megabytes without a space; bytes that are no message, or no UTF-8; sizes and options at each limit and
beyond; names that lead elsewhere. They go through Translate, TranslateDocument, and TranslateStream between ordinary
requests; a few through the services of models. Two bystanders make ordinary calls meanwhile.

What must hold: each input gets a status that is right for it, with the details of the contract, and what is answered
keeps its promises (spans in range, everything between sentences copied exactly, nothing made up); no internal error, no
hang, no lost connection, no error in the server's log; after each thousand the server is healthy, idle, and translates
what it did before; memory is bounded; bystanders are answered; twice the text takes no more than three times as long.

DIR gets bad_inputs.json, bad_inputs.png (time against size) and server.log. `--only KIND --index I` sends one input
again, with the seed that is printed beside it, and shows what was sent and what came back.

The second part starts another server, with API keys, and attacks it with one input after the other that is cheap to
send and may be expensive to answer: chunks of one byte, bodies of megabytes without a key, unbalanced markup,
patterns, slow clients, and others over HTTP, gRPC and the APIs of other vendors. Meanwhile /healthz is probed 50
times a second, and a caller over gRPC and one over HTTP translate. Latency counts from when a call was due. The
processor time for each input is compared with that for half of it. Some attacks end with SIGTERM.

What must hold: well-behaved callers lose no call; /healthz is answered within 100 ms at p99, and no probe waits for
more than 50 ms longer than on the quiet server; twice the input takes at most three times the processor time; SIGTERM
ends the process within `grpc.drain_timeout_s` and 5 s; statuses are right, and the log has no error. In the short
mode, which takes at most three minutes and also runs on busy machines, /healthz may take 5 times the p99 of the quiet
server or 400 ms, and the worst probe 10 times the worst one of the quiet server or 800 ms, whichever is more.

DIR gets attacks.json, attacks.png and the directory attacks with the server's log. `--part attacks` runs this part
alone, `--only NAME` one attack."""

_PARTS: Final = ("all", "inputs", "attacks")
_ATTACK_S: Final = {"short": 1.2, "full": 2.0}  # how long an attack goes on
_MAX_ATTACKS_S: Final = {"short": 165.0, "full": 7200.0}  # no attack begins later
_COUNTS: Final = {"short": 2000, "full": 20_000}
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_WARM_UP_SHARE: Final = 0.05  # of the inputs; a server needs some to get the buffers of its larger batches
_MAX_COUNT: Final = 1_000_000
_LONG_CHARACTERS: Final = 1000  # from here on time is looked at by character; below it is the call that takes it
_STATUSES: Final[Mapping[str, Sequence[str]]] = {
    "ok": ("OK",), "refused": (), "left": (LEFT,),
    "internal": ("INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "OUT_OF_RANGE"),
    "hangs": ("DEADLINE_EXCEEDED",), "lost": ("UNAVAILABLE", "CANCELLED"),
}  # fmt: skip
"""Figures that count inputs by status; `refused` are those with any other."""

_MAX_BYSTANDER_P99_S: Final = 10.0
_MAX_LOOK_P99_S: Final = 1.0
_MAX_GROWTH_RATIO: Final = 3.0
"""Of time, at twice the size: half-way between work that grows as the text does and as its square."""

_MIN_GROWTH_S: Final = 0.25


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count}" for mode, count in _COUNTS.items())
    add("--count", type=within(1, _MAX_COUNT, int), metavar="N", help=f"inputs ({counts}, and growth of all shapes)")
    add(
        "--only",
        type=several({name: name for name in (*KINDS, *ATTACKS)}),
        metavar="KIND,...",
        help="kinds and attacks to send (all)",
    )
    add("--part", choices=_PARTS, default="all", help="inputs of all kinds, or attacks (all)")
    add("--index", type=within(0, _MAX_COUNT, int), metavar="I", help="send and show this one input of one kind")
    add("--list", action="store_true", help="print the kinds and attacks, and end")
    add("--callers", type=within(1, 1000, int), default=8, metavar="N", help="inputs in flight at a time (8)")
    add("--timeout", type=within(0.1, 3600), default=60.0, metavar="S", help="after which a call hangs (60)")
    add("--max-rss-growth-mb", type=within(1, 1e6), default=256.0, metavar="MB", help="memory promise (256)")


def run(options: argparse.Namespace) -> int:
    """Send them all, or one; return the exit code."""
    if options.list:
        print("\n".join(f"{name:27} {kind.summary}" for name, kind in KINDS.items()))
        print("\n".join(f"{name:27} attack on {attack.surface}" for name, attack in ATTACKS.items()))
        return 0
    kinds = [name for name in options.only or KINDS if name in KINDS and options.part != "attacks"]
    attacks = [ATTACKS[name] for name in options.only or ATTACKS if name in ATTACKS and options.part != "inputs"]
    if options.mode == "short" and not options.only:
        attacks = [attack for attack in attacks if attack.is_short]
    exit_code = _run_inputs(options, kinds) if kinds else 0
    if attacks and options.index is None:
        folder, seconds, max_s = options.output / "attacks", _ATTACK_S[options.mode], _MAX_ATTACKS_S[options.mode]
        times: Any = {"seconds": seconds, "max_s": max_s, "is_short": options.mode == "short"}
        campaign = run_attacks(attacks, folder, models=options.model_dir, **times)
        exit_code |= conclude_attacks(campaign, options.output)
    return exit_code


def _run_inputs(options: argparse.Namespace, only: Sequence[str]) -> int:
    """Send inputs of these kinds, or one; return the exit code."""
    seed, is_one = options.seed, options.index is not None
    if is_one and len(only) != 1:
        raise argparse.ArgumentTypeError("--index needs --only with one kind")
    options.count = 1 if is_one else options.count or _COUNTS[options.mode]
    planned = [(only[0], options.index)] if is_one else plan(options.count, kinds=only, seed=seed)
    warm_up = plan(max(len(only), round(_WARM_UP_SHARE * options.count)), kinds=only, seed=seed)
    shapes = [] if is_one else _SHORT_SHAPES if options.mode == "short" else sorted(SHAPES)
    with started(options.output, models=options.model_dir) as server:
        seen = send_all(server, planned, options, warm_up=[] if is_one else warm_up, grown_shapes=shapes)
        has_failed = server.stop() != 0
    summary = summarize(seen, seed=seed, max_rss_growth_mb=options.max_rss_growth_mb)
    if is_one:
        bad = make(*planned[0], seed=seed, model=seen.model)
        print(f"{bad.method.path}\nmetadata: {bad.metadata}")
        print(f"message of {len(bad.message)} bytes: {bad.message[:2000]!r}")
        print("expected:", " or ".join(bad.expected.statuses))
        print(*(f"answered: {one.status} after {1000 * one.seconds:.0f} ms" for one in seen.records))
        print_broken(summary)
        return int(has_failed or bool(summary.broken))
    print("slowest:")
    for one in _slowest(seen):
        what = f"{one.method} of {one.num_characters} characters, {one.status}, {one.name}"
        print(f"  {1000 * one.seconds:.0f} ms: {what}")
    settings = {name: str(value) for name, value in vars(options).items()}
    told, drawn = {"settings": settings, **details(seen)}, picture(seen.records)
    return int(has_failed or conclude(summary, options.output, details=told, figure=drawn))


def summarize(run: Run, *, seed: int, max_rss_growth_mb: float) -> Summary:
    """Return figures and promises of a run of at least one input; broken ones of inputs say how to repeat them."""
    figure_of = {status: figure for figure, statuses in _STATUSES.items() for status in statuses}
    counts = Counter(figure_of.get(record.status, "refused") for record in run.records)
    long = [record for record in run.records if record.num_characters >= _LONG_CHARACTERS]
    growths = [growth for growth in run.growths if growth.whole_s >= _MIN_GROWTH_S]
    rss_growth_mb = max(run.memory_mb) - run.memory_mb[0]
    translated_s = _p99([reply.latency_s for reply in run.translations])
    looked_s = _p99([reply.latency_s for reply in run.looks])
    figures: dict[str, str | int] = {
        "inputs": len(run.records),
        "kinds": len({record.kind for record in run.records}),
        **{figure: counts[figure] for figure in _STATUSES},
        "rss_growth_mb": f"{rss_growth_mb:.1f}",
        "slowest_ms": f"{1000 * max((record.seconds for record in run.records), default=0.0):.0f}",
        "p99_us_per_character": rounded(_p99([1e6 * record.seconds / record.num_characters for record in long])),
        "bystander_p99_ms": rounded(translated_s and 1000 * translated_s),
        "look_p99_ms": rounded(looked_s and 1000 * looked_s),
        "look_max_ms": rounded(max((1000 * reply.latency_s for reply in run.looks), default=None)),
        "worst_growth": rounded(max((growth.ratio for growth in growths), default=None)),
        "inputs_per_s": f"{len(run.records) / run.elapsed_s:.0f}",
    }
    wrong = [f"{fault} (--seed {seed} {one.name}, {one.method})" for one in run.records for fault in one.faults]
    replies = (*run.alone, *run.translations, *run.looks)
    steep = [
        f"{one.method} of {one.shape} took {one.ratio:.1f} times as long for twice the text: "
        f"{one.half_s:.2f} and {one.whole_s:.2f} s"
        for one in growths
        if one.ratio > _MAX_GROWTH_RATIO
    ]
    wronged = [f"{reply.status}: {reply.message}" for reply in replies if reply.status != "OK"]
    promises = [
        Promise(name="each input is answered as the contract says", broken=wrong),
        Promise(name="between batches the server is well", broken=run.server_faults),
        Promise(name="bystanders are answered as before", broken=wronged),
        at_most("memory of the server is bounded: growth", rss_growth_mb, max_rss_growth_mb, unit="MB"),
        at_most("translations of bystanders at p99", translated_s or 0, _MAX_BYSTANDER_P99_S, unit="s"),
        at_most("calls that need the event loop only at p99", looked_s or 0, _MAX_LOOK_P99_S, unit="s"),
        Promise(name="work grows as the text does", broken=steep),
    ]
    return Summary(scenario="bad_inputs", figures=figures, promises=promises)


def details(run: Run) -> dict[str, Any]:
    """Return what the JSON has besides: statuses by kind, all faults, the slowest inputs, memory, growth."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for record in run.records:
        by_kind[record.kind][record.status] += 1
    alone_s = _p99([reply.latency_s for reply in run.alone])
    return {
        "faults": [asdict(record) for record in run.records if record.faults],
        "slowest": [asdict(record) for record in _slowest(run)],
        "statuses": dict(Counter(record.status for record in run.records)),
        "statuses_by_kind": {kind: dict(statuses) for kind, statuses in sorted(by_kind.items())},
        "retried": sum(record.num_retries > 0 for record in run.records),
        "bystander_alone_p99_ms": alone_s and 1000 * alone_s,
        "memory_mb": [round(size_mb, 1) for size_mb in run.memory_mb],
        "growth": [growth._asdict() for growth in run.growths],
    }


def picture(records: Sequence[Record]) -> Figure:
    """Draw each input: how large it was, how long it took; slopes of 1 are work that grows as the text does."""
    drawn, (axes,) = figure(size=(9, 6))
    for method in sorted({record.method for record in records}):
        chosen = [(max(1, one.num_characters), 1000 * one.seconds) for one in records if one.method == method]
        axes.plot(*zip(*chosen, strict=True), ".", markersize=2, label=method)
    ends = (10, max([100, *(record.num_characters for record in records)]))
    for us in (1, 100):
        axes.plot(ends, [us * end / 1000 for end in ends], color="grey", linestyle=":", linewidth=1)
        axes.annotate(f"{us} µs a character", (ends[1], us * ends[1] / 1000), ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="characters or bytes sent", ylabel="milliseconds to the end")
    axes.legend(loc="upper left")
    return drawn


def _slowest(run: Run) -> list[Record]:
    return sorted(run.records, key=lambda record: -record.seconds)[:10]


def _p99(values: Sequence[float]) -> float | None:
    return percentile(values, 0.99) if values else None
