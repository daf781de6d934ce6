"""Scenario `bad-inputs`: malformed and extreme inputs, then attacks on the responsiveness of the server.

The inputs are sent in parallel, in batches, with control traffic; the server is checked after each batch.
"""

import argparse
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

import grpc
from tqdm import tqdm

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.cli.server_process import ServerProcess, ServerProcessError
from loadtests.generator.calls import Method, Reply, translate_requests
from loadtests.generator.client import Client
from loadtests.generator.flags import several, within
from loadtests.generator.metrics import footprint
from loadtests.generator.records import percentile
from loadtests.hostile.inputs import LEFT, BadInput
from loadtests.report.report import Check, Report, at_most, rounded
from loadtests.scenarios.bad_inputs.attacks.attack import ATTACKS
from loadtests.scenarios.bad_inputs.attacks.results import report_of as attack_report
from loadtests.scenarios.bad_inputs.attacks.run import run_attacks
from loadtests.scenarios.bad_inputs.kinds import KINDS, Plan, make, plan
from loadtests.scenarios.bad_inputs.responses import faults, send
from loadtests.scenarios.control_traffic import KnownRequest, TranslatingTraffic, connect, record_answers
from loadtests.scenarios.stress_server import log_errors, started, wait_until_idle

SUMMARY: Final = "malformed and extreme inputs, and attacks; checks statuses and stalls of other callers"

DESCRIPTION: Final = """\
Starts the server on free local ports with the bundled model en-de and sends inputs of every bad kind, drawn by
Hypothesis from a seed: characters of every Unicode block, invisible characters, stacked marks; nested tags, entities
and placeholders, megabytes without spaces; invalid messages and UTF-8; sizes and options at and beyond each limit;
misleading names. Methods are Translate, TranslateDocument, and TranslateStream between ordinary requests; a few inputs
go to the model services. Control traffic makes ordinary calls meanwhile.

Checks: each input gets a right status with the details of the contract, and responses fulfil the contract (spans in
range, text between sentences copied exactly); no internal error, no hang, no lost connection, no error in the server's
log; after each thousand inputs the server is healthy, idle, and translates as before; bounded memory; control traffic
is answered.

DIR contains bad_inputs.json and server.log. `--only KIND --index I` repeats one input
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

_BATCH: Final = 1000  # inputs between checks of the server
_PARTS: Final = ("all", "inputs", "attacks")
_ATTACK_S: Final = {"short": 1.2, "full": 2.0}  # duration of an attack
_MAX_ATTACKS_S: Final = {"short": 165.0, "full": 7200.0}  # later attacks are skipped
_COUNTS: Final = {"short": 2000, "full": 20_000}
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


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one input."""

    kind: str
    index: int
    method: str
    num_characters: int
    status: str
    seconds: float
    num_retries: int = 0
    faults: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The flags that repeat it."""
        return f"--only {self.kind} --index {self.index}"


@dataclass(slots=True, kw_only=True)
class Observations:
    """Everything seen during the run."""

    model: pb.ModelVersion
    records: list[Record] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)  # after the warm-up and after each batch
    server_faults: list[str] = field(default_factory=list)
    undisturbed: Sequence[Reply] = ()  # control traffic before the first input
    translations: list[Reply] = field(default_factory=list)  # control traffic among the inputs
    probes: list[Reply] = field(default_factory=list)
    elapsed_s: float = 0.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count}" for mode, count in _COUNTS.items())
    names = {name: name for name in (*KINDS, *ATTACKS)}
    add("--count", type=within(1, _MAX_COUNT, int), metavar="N", help=f"inputs ({counts})")
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
        campaign = run_attacks(
            attacks,
            options.output / "attacks",
            models=options.model_dir,
            seconds=_ATTACK_S[options.mode],
            max_s=_MAX_ATTACKS_S[options.mode],
            is_short=options.mode == "short",
        )
        exit_code |= attack_report(campaign).conclude(options.output)
    return exit_code


def _run_inputs(options: argparse.Namespace, only: Sequence[str]) -> int:
    seed, is_one = options.seed, options.index is not None
    if is_one and len(only) != 1:
        raise argparse.ArgumentTypeError("--index requires --only with one kind")
    options.count = 1 if is_one else options.count or _COUNTS[options.mode]
    planned = [(only[0], options.index)] if is_one else plan(options.count, kinds=only, seed=seed)
    warm_up = plan(max(len(only), round(_WARM_UP_SHARE * options.count)), kinds=only, seed=seed)
    with started(options.output, models=options.model_dir) as server:
        seen = send_all(server, planned, options, warm_up=[] if is_one else warm_up)
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
    complete = replace(report, values={"settings": settings, **details(seen)})
    return int(has_failed or complete.conclude(options.output))


def report_of(seen: Observations, *, seed: int, max_rss_growth_mb: float) -> Report:
    """Return figures and checks; failures of inputs contain the flags that repeat them."""
    figure_of = {status: figure for figure, statuses in _STATUSES.items() for status in statuses}
    counts = Counter(figure_of.get(record.status, "refused") for record in seen.records)
    long = [record for record in seen.records if record.num_characters >= _LONG_CHARACTERS]
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
        "inputs_per_s": f"{len(seen.records) / seen.elapsed_s:.0f}",
    }
    wrong = [f"{fault} (--seed {seed} {one.name}, {one.method})" for one in seen.records for fault in one.faults]
    replies = (*seen.undisturbed, *seen.translations, *seen.probes)
    failed = [f"{reply.status}: {reply.message}" for reply in replies if reply.status != "OK"]
    checks = [
        Check(name="each input is answered according to the contract", failures=wrong),
        Check(name="the server is healthy between batches", failures=seen.server_faults),
        Check(name="control traffic is answered as before", failures=failed),
        at_most("memory growth of the server", rss_growth_mb, max_rss_growth_mb, unit="MB"),
        at_most("translations of control traffic at p99", translated_s or 0, _MAX_TRANSLATION_P99_S, unit="s"),
        at_most("probes of the event loop at p99", probed_s or 0, _MAX_PROBE_P99_S, unit="s"),
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
    }


def _slowest(seen: Observations) -> list[Record]:
    return sorted(seen.records, key=lambda record: -record.seconds)[:10]


def _p99(values: Sequence[float]) -> float | None:
    return percentile(values, 0.99) if values else None


def send_all(server: ServerProcess, planned: Plan, options: argparse.Namespace, *, warm_up: Plan) -> Observations:
    """Send the inputs after a warm-up; ends early if the server does."""
    known_requests = record_answers(server.target, translate_requests(options.seed, count=16, texts=2))
    control_traffic = partial(
        TranslatingTraffic,
        server.target,
        known_requests,
        num_translating=1,
        each_s=0.25,
        probe=Client.list_models,
        probe_each_s=0.05,
    )
    with connect(server.target) as client:
        models = pb.ListModelsResponse.FromString(client.call(Method.LIST_MODELS, b"").messages[0]).models
    ready = next(one for model in models for one in model.versions if one.state == pb.MODEL_STATE_READY)
    seen = Observations(model=ready, server_faults=list(_server_faults(server, known_requests)))
    with ExitStack() as stack:
        channels = [stack.enter_context(connect(server.target)).channels[0] for _ in range(options.callers)]
        send_planned = partial(_send_planned, channels, model=ready, timeout_s=options.timeout)
        list(send_planned(warm_up, seed=-1))
        with control_traffic() as undisturbed:
            time.sleep(1)
        seen.undisturbed = undisturbed.translations
        seen.memory_mb.append(footprint(server.pid).rss_mb)
        began_s = time.monotonic()
        try:
            for first in tqdm(range(0, len(planned), _BATCH), unit="batches", disable=None):
                with control_traffic() as traffic:
                    seen.records += send_planned(planned[first : first + _BATCH], seed=options.seed)
                seen.elapsed_s = time.monotonic() - began_s
                seen.translations += traffic.translations
                seen.probes += traffic.probes
                seen.server_faults += _server_faults(server, known_requests)
                seen.memory_mb.append(footprint(server.pid).rss_mb)
        except (ServerProcessError, grpc.RpcError, OSError) as error:
            seen.server_faults.append(f"the server ended after {len(seen.records)} inputs: {error}")
    seen.server_faults += [f"server log: {line[:400]}" for line in log_errors(options.output)]
    return seen


def _send_planned(
    channels: Sequence[grpc.Channel], planned: Plan, *, model: pb.ModelVersion, timeout_s: float, seed: int
) -> Iterator[Record]:
    """Send inputs in parallel, alternating the connections; yield the records in order."""

    def send_next(channel: grpc.Channel, one: tuple[str, int], bad: BadInput) -> Record:
        result = send(channel, bad, model=model, timeout_s=timeout_s)
        return Record(
            kind=one[0],
            index=one[1],
            method=bad.method.value,
            num_characters=bad.num_characters,
            status=result.status,
            seconds=result.seconds,
            num_retries=result.num_retries,
            faults=list(faults(bad, result)),
        )

    bad_inputs = (make(*one, seed=seed, model=model) for one in planned)
    with ThreadPoolExecutor(len(channels)) as pool:
        yield from pool.map(send_next, itertools.cycle(channels), planned, bad_inputs)


def _server_faults(server: ServerProcess, known_requests: Sequence[KnownRequest]) -> Iterator[str]:
    """Yield the faults of a server without other callers that is not healthy and idle, or translates otherwise."""
    if left := wait_until_idle(server, timeout_s=30):
        yield f"work remains on the server: {left}"
    with connect(server.target) as client:
        replies = [client.check(), *(known.send(client) for known in known_requests[:4])]
    yield from (f"an ordinary call: {reply.status} {reply.message}" for reply in replies if reply.status != "OK")
    if not all(pb.TranslateResponse.FromString(known.answer).translations for known in known_requests):
        yield "an ordinary request has no translation"
