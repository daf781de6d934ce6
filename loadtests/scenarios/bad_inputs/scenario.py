"""Scenario `bad-inputs`: malformed and extreme inputs, then attacks on the responsiveness of the server."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.generator.flags import several, within
from loadtests.generator.records import percentile
from loadtests.hostile.inputs import LEFT
from loadtests.hostile.texts import SHAPES
from loadtests.report.report import Check, Report, at_most, new_figure, rounded
from loadtests.scenarios.bad_inputs.attacks.attack import ATTACKS
from loadtests.scenarios.bad_inputs.attacks.results import report_of as attack_report
from loadtests.scenarios.bad_inputs.attacks.run import run_attacks
from loadtests.scenarios.bad_inputs.kinds import KINDS, make, plan
from loadtests.scenarios.bad_inputs.run import Observations, Record, send_all
from loadtests.scenarios.stress_server import started

SUMMARY: Final = "malformed and extreme inputs, and attacks; checks statuses and stalls of other callers"

DESCRIPTION: Final = """\
Starts the server on free local ports with the bundled model and sends inputs of every bad kind, drawn by Hypothesis
from a seed: characters of every Unicode block, invisible characters, stacked marks; nested tags, entities and
placeholders, megabytes without spaces; invalid messages and UTF-8; sizes and options at and beyond each limit;
misleading names. Methods are Translate, TranslateDocument, and TranslateStream between ordinary requests; a few inputs
go to the model services. Control traffic makes ordinary calls meanwhile.

Checks: each input gets a right status with the details of the contract, and responses fulfil the contract (spans in
range, text between sentences copied exactly); no internal error, no hang, no lost connection, no error in the server's
log; after each thousand inputs the server is healthy, idle, and translates as before; bounded memory; control traffic
is answered; twice the text takes at most three times as long.

DIR contains bad_inputs.json, bad_inputs.png (time by size) and server.log. `--only KIND --index I` repeats one input
with the printed seed, and shows request and response.

The second part starts another server, with API keys, and attacks it with inputs that are cheap to send and may be
expensive to answer: chunks of one byte, bodies of megabytes without a key, unbalanced markup, patterns, slow clients,
and others over HTTP, gRPC and the vendor APIs. Meanwhile /healthz is probed 50 times per second, and one client each
translates over gRPC and HTTP. Latency counts from the scheduled time of a probe. The CPU time of an input is compared
with that of half of it. Some attacks end with SIGTERM.

Checks: well-behaved clients lose no call; /healthz is answered within 100 ms at p99, and no probe takes more than 50 ms
longer than on the quiet server; twice the input takes at most three times the CPU time; SIGTERM ends the process within
`grpc.drain_timeout_s` and 5 s; right statuses, no error in the log. In the short mode, which takes at most three
minutes and also runs on busy machines, the limit for /healthz at p99 is 5 times that of the quiet server or 400 ms, and
for the worst probe 10 times that of the quiet server or 800 ms, whichever is greater.

DIR contains attacks.json and the directory attacks with the server's log. `--part attacks` runs only this
part, `--only NAME` one attack."""

_PARTS: Final = ("all", "inputs", "attacks")
_ATTACK_S: Final = {"short": 1.2, "full": 2.0}  # duration of an attack
_MAX_ATTACKS_S: Final = {"short": 165.0, "full": 7200.0}  # later attacks are skipped
_COUNTS: Final = {"short": 2000, "full": 20_000}
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_WARM_UP_SHARE: Final = 0.05  # of the inputs, to allocate the buffers of large batches
_MAX_COUNT: Final = 1_000_000
_LONG_CHARACTERS: Final = 1000  # above it, time per character is reported
_STATUSES: Final[Mapping[str, Sequence[str]]] = {  # figures that count inputs by status; `refused` counts all others
    "ok": ("OK",), "refused": (), "left": (LEFT,),
    "internal": ("INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "OUT_OF_RANGE"),
    "hangs": ("DEADLINE_EXCEEDED",), "lost": ("UNAVAILABLE", "CANCELLED"),
}  # fmt: skip

_MAX_TRANSLATION_P99_S: Final = 10.0  # of control traffic
_MAX_PROBE_P99_S: Final = 1.0
_MAX_GROWTH_RATIO: Final = 3.0  # halfway between linear and quadratic
_MIN_GROWTH_S: Final = 0.25  # shorter times are not judged


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count}" for mode, count in _COUNTS.items())
    names = {name: name for name in (*KINDS, *ATTACKS)}
    add("--count", type=within(1, _MAX_COUNT, int), metavar="N", help=f"inputs ({counts}, and growth of all shapes)")
    add("--only", type=several(names), metavar="KIND,...", help="kinds and attacks (all)")
    add("--part", choices=_PARTS, default="all", help="inputs or attacks (all)")
    add("--index", type=within(0, _MAX_COUNT, int), metavar="I", help="send and show one input of one kind")
    add("--list", action="store_true", help="print the kinds and attacks, and exit")
    add("--callers", type=within(1, 1000, int), default=8, metavar="N", help="concurrent inputs (8)")
    add("--timeout", type=within(0.1, 3600), default=60.0, metavar="S", help="time after which a call hangs (60)")
    add("--max-rss-growth-mb", type=within(1, 1e6), default=256.0, metavar="MB", help="memory limit (256)")


def run(options: argparse.Namespace) -> int:
    """Send all inputs, or one; return the exit code."""
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
        exit_code |= attack_report(campaign).conclude(options.output)
    return exit_code


def _run_inputs(options: argparse.Namespace, only: Sequence[str]) -> int:
    seed, is_one = options.seed, options.index is not None
    if is_one and len(only) != 1:
        raise argparse.ArgumentTypeError("--index requires --only with one kind")
    options.count = 1 if is_one else options.count or _COUNTS[options.mode]
    planned = [(only[0], options.index)] if is_one else plan(options.count, kinds=only, seed=seed)
    warm_up = plan(max(len(only), round(_WARM_UP_SHARE * options.count)), kinds=only, seed=seed)
    shapes = [] if is_one else _SHORT_SHAPES if options.mode == "short" else sorted(SHAPES)
    with started(options.output, models=options.model_dir) as server:
        seen = send_all(server, planned, options, warm_up=[] if is_one else warm_up, grown_shapes=shapes)
        has_failed = server.stop() != 0
    report = report_of(seen, seed=seed, max_rss_growth_mb=options.max_rss_growth_mb)
    if is_one:
        bad = make(*planned[0], seed=seed, model=seen.model)
        print(f"{bad.method.path}\nmetadata: {bad.metadata}")
        print(f"message of {len(bad.message)} bytes: {bad.message[:2000]!r}")
        print("expected:", " or ".join(bad.expected.statuses))
        print(*(f"answered: {one.status} after {1000 * one.seconds:.0f} ms" for one in seen.records))
        report.print_failures()
        return int(has_failed or bool(report.failures))
    print("slowest:")
    for one in _slowest(seen):
        text = f"{one.method} of {one.num_characters} characters, {one.status}, {one.name}"
        print(f"  {1000 * one.seconds:.0f} ms: {text}")
    settings = {name: str(value) for name, value in vars(options).items()}
    complete = replace(report, values={"settings": settings, **details(seen)}, picture=partial(picture, seen.records))
    return int(has_failed or complete.conclude(options.output))


def report_of(seen: Observations, *, seed: int, max_rss_growth_mb: float) -> Report:
    """Return figures and checks; failures of inputs contain the flags that repeat them."""
    figure_of = {status: figure for figure, statuses in _STATUSES.items() for status in statuses}
    counts = Counter(figure_of.get(record.status, "refused") for record in seen.records)
    long = [record for record in seen.records if record.num_characters >= _LONG_CHARACTERS]
    growths = [growth for growth in seen.growths if growth.whole_s >= _MIN_GROWTH_S]
    rss_growth_mb = max(seen.memory_mb) - seen.memory_mb[0]
    translated_s = _p99([reply.latency_s for reply in seen.translations])
    probed_s = _p99([reply.latency_s for reply in seen.probes])
    figures: dict[str, str | int] = {
        "inputs": len(seen.records),
        "kinds": len({record.kind for record in seen.records}),
        **{figure: counts[figure] for figure in _STATUSES},
        "rss_growth_mb": f"{rss_growth_mb:.1f}",
        "slowest_ms": f"{1000 * max((record.seconds for record in seen.records), default=0.0):.0f}",
        "p99_us_per_character": rounded(_p99([1e6 * record.seconds / record.num_characters for record in long])),
        "bystander_p99_ms": rounded(translated_s and 1000 * translated_s),
        "look_p99_ms": rounded(probed_s and 1000 * probed_s),
        "look_max_ms": rounded(max((1000 * reply.latency_s for reply in seen.probes), default=None)),
        "worst_growth": rounded(max((growth.ratio for growth in growths), default=None)),
        "inputs_per_s": f"{len(seen.records) / seen.elapsed_s:.0f}",
    }
    wrong = [f"{fault} (--seed {seed} {one.name}, {one.method})" for one in seen.records for fault in one.faults]
    replies = (*seen.undisturbed, *seen.translations, *seen.probes)
    steep = [
        f"{one.method} of {one.shape}: {one.half_s:.2f} s, and {one.whole_s:.2f} s for twice the text"
        for one in growths
        if one.ratio > _MAX_GROWTH_RATIO
    ]
    failed = [f"{reply.status}: {reply.message}" for reply in replies if reply.status != "OK"]
    checks = [
        Check(name="each input is answered according to the contract", failures=wrong),
        Check(name="the server is healthy between batches", failures=seen.server_faults),
        Check(name="control traffic is answered as before", failures=failed),
        at_most("memory growth of the server", rss_growth_mb, max_rss_growth_mb, unit="MB"),
        at_most("translations of control traffic at p99", translated_s or 0, _MAX_TRANSLATION_P99_S, unit="s"),
        at_most("probes of the event loop at p99", probed_s or 0, _MAX_PROBE_P99_S, unit="s"),
        Check(name="work grows linearly with the text", failures=steep),
    ]
    return Report(name="bad_inputs", figures=figures, checks=checks)


def details(seen: Observations) -> dict[str, Any]:
    """Return further JSON: statuses by kind, faults, slowest inputs, memory, growth."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for record in seen.records:
        by_kind[record.kind][record.status] += 1
    undisturbed_s = _p99([reply.latency_s for reply in seen.undisturbed])
    return {
        "faults": [asdict(record) for record in seen.records if record.faults],
        "slowest": [asdict(record) for record in _slowest(seen)],
        "statuses": dict(Counter(record.status for record in seen.records)),
        "statuses_by_kind": {kind: dict(statuses) for kind, statuses in sorted(by_kind.items())},
        "retried": sum(record.num_retries > 0 for record in seen.records),
        "bystander_alone_p99_ms": undisturbed_s and 1000 * undisturbed_s,
        "memory_mb": [round(size_mb, 1) for size_mb in seen.memory_mb],
        "growth": [growth._asdict() for growth in seen.growths],
    }


def picture(records: Sequence[Record]) -> Figure:
    """Plot time by size of each input; linear work has a slope of 1."""
    drawn, (axes,) = new_figure(size=(9, 6))
    for method in sorted({record.method for record in records}):
        chosen = [(max(1, one.num_characters), 1000 * one.seconds) for one in records if one.method == method]
        axes.plot(*zip(*chosen, strict=True), ".", markersize=2, label=method)
    ends = (10, max([100, *(record.num_characters for record in records)]))
    for us in (1, 100):
        axes.plot(ends, [us * end / 1000 for end in ends], color="grey", linestyle=":", linewidth=1)
        axes.annotate(f"{us} µs per character", (ends[1], us * ends[1] / 1000), ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="characters or bytes sent", ylabel="time to the end, ms")
    axes.legend(loc="upper left")
    return drawn


def _slowest(seen: Observations) -> list[Record]:
    return sorted(seen.records, key=lambda record: -record.seconds)[:10]


def _p99(values: Sequence[float]) -> float | None:
    return percentile(values, 0.99) if values else None
