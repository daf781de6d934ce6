"""Scenario `bad-inputs`: hostile requests, then attacks on the responsiveness of the server.

The requests are sent in parallel, in batches, with control traffic; the server is checked after each batch.
"""

import argparse
import itertools
import random
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
from loadtests.hostile.attacks import ATTACKS
from loadtests.hostile.requests import KINDS, LEFT, SERVER_SETTINGS, HostileRequest, make
from loadtests.report.report import Check, Report, at_most, rounded
from loadtests.scenarios.bad_inputs.attacks import run_attacks
from loadtests.scenarios.bad_inputs.responses import faults, send
from loadtests.scenarios.bad_inputs.results import report_of as attack_report
from loadtests.scenarios.control_traffic import KnownRequest, TranslatingTraffic, connect, record_answers
from loadtests.scenarios.stress_server import log_errors, started, wait_until_idle

SUMMARY: Final = "hostile requests and attacks; checks statuses and stalls of other callers"

DESCRIPTION: Final = """\
Starts the server on free local ports with the bundled model en-de and sends hostile requests of every kind, drawn by
Hypothesis from a seed: texts of invisible characters, stacked marks, nested tags, entities and placeholders, megabytes
without spaces; damaged messages and UTF-8; sizes and options at and beyond each limit. Methods are Translate,
TranslateDocument, and TranslateStream between ordinary requests. Control traffic makes ordinary calls meanwhile.

Checks: each request gets a right status with the details of the contract, and responses fulfil the contract (spans in
range, text between sentences copied exactly); no internal error, no hang, no lost connection, no error in the server's
log; after each batch the server is healthy, idle, and translates as before; bounded memory; control traffic is
answered.

DIR contains bad_inputs.json and server.log. `--part inputs --only KIND` sends requests of one kind.

The second part starts another server, with API keys, and attacks it with inputs that are cheap to send and may be
expensive to answer: chunks of one byte, bodies of megabytes without a key, unbalanced markup, patterns, slow clients,
and others over HTTP, gRPC and the vendor APIs. Meanwhile /healthz is probed 50 times per second, and one client each
translates over gRPC and HTTP. Latency counts from the scheduled time of a probe. The CPU time of an input is compared
with that of half of it. Some attacks end with SIGTERM.

Checks: well-behaved clients lose no call; /healthz is answered within 100 ms at p99, and no probe takes more than 50 ms
longer than without attacks; twice the input takes at most three times the CPU time; SIGTERM ends the process within
`grpc.drain_timeout_s` and 5 s; right statuses, no error in the log. The short mode takes about a minute, makes several
attacks at the same time, and also runs on busy machines: its limit for /healthz at p99 is 5 times that without attacks
or 400 ms, and for the worst probe 10 times that without attacks or 800 ms, whichever is greater. The table contains the
peak memory of all processes of the server.

DIR contains attacks.json and the directory attacks with the server's log. `--part attacks` runs only this part,
`--only NAME` one attack, `--shard K/N` one of N shards of the attacks. In the full mode, each of three shards takes
about 6 minutes on two busy cores."""

_PARTS: Final = ("all", "inputs", "attacks")
_BATCHES: Final = {"short": 250, "full": 1000}  # requests between checks of the server
_COUNTS: Final = {"short": 500, "full": 20_000}
_WARM_UP_SHARE: Final = 0.05  # of the requests, to allocate the buffers of large batches
_MAX_COUNT: Final = 1_000_000
_LONG_CHARACTERS: Final = 1000  # above it, time per character is reported
_STATUSES: Final[Mapping[str, Sequence[str]]] = {  # figures that count requests by status; `rejected` counts all others
    "ok": ("OK",), "rejected": (), "left": (LEFT,),
    "internal": ("INTERNAL", "UNKNOWN", "DATA_LOSS", "ABORTED", "OUT_OF_RANGE"),
    "hangs": ("DEADLINE_EXCEEDED",), "lost": ("UNAVAILABLE", "CANCELLED"),
}  # fmt: skip

_MAX_TRANSLATION_P99_S: Final = 10.0  # of control traffic
_MAX_PROBE_P99_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one request."""

    kind: str
    method: str
    num_characters: int
    status: str
    seconds: float
    num_retries: int = 0
    faults: Sequence[str] = ()
    message: str = ""  # its beginning, if there are faults


@dataclass(slots=True, kw_only=True)
class Observations:
    """Everything seen during the run."""

    records: list[Record] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)  # after the warm-up and after each batch
    server_faults: list[str] = field(default_factory=list)
    undisturbed: Sequence[Reply] = ()  # control traffic before the first request
    translations: list[Reply] = field(default_factory=list)  # control traffic among the requests
    probes: list[Reply] = field(default_factory=list)
    elapsed_s: float = 0.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count}" for mode, count in _COUNTS.items())
    names = {name: name for name in (*KINDS, *ATTACKS)}
    add("--count", type=within(len(KINDS), _MAX_COUNT, int), metavar="N", help=f"requests ({counts})")
    add("--only", type=several(names), metavar="KIND,...", help="kinds and attacks (all)")
    add("--part", choices=_PARTS, default="all", help="requests (inputs) or attacks (all)")
    add("--shard", type=shard, metavar="K/N", help="with --part attacks: shard K of N (1/1)")
    add("--list", action="store_true", help="print the kinds and attacks, and exit")
    add("--callers", type=within(1, 1000, int), default=8, metavar="N", help="concurrent requests (8)")
    add("--timeout", type=within(0.1, 3600), default=60.0, metavar="S", help="time after which a call hangs (60)")
    add("--max-rss-growth-mb", type=within(1, 1e6), default=256.0, metavar="MB", help="memory limit (256)")


def shard(text: str) -> tuple[int, int]:
    """Parse the number of a shard and the number of shards; raises ArgumentTypeError."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text}: expected K/N, such as 1/3")
    return int(number), int(count)


def run(options: argparse.Namespace) -> int:
    """Send all requests and make all attacks; return the exit code."""
    if options.list:
        print("\n".join(f"{name:27} {kind.summary}" for name, kind in KINDS.items()))
        print("\n".join(f"{name:27} attack on {attack.surface}" for name, attack in ATTACKS.items()))
        return 0
    is_short = options.mode == "short"
    kinds = [name for name in options.only or KINDS if name in KINDS and options.part != "attacks"]
    attacks = [ATTACKS[name] for name in options.only or ATTACKS if name in ATTACKS and options.part != "inputs"]
    if is_short and not options.only:
        attacks = [attack for attack in attacks if attack.is_short]
    if options.shard:
        if options.part != "attacks":
            raise argparse.ArgumentTypeError("--shard requires --part attacks")
        number, count = options.shard
        attacks = attacks[number - 1 :: count]
    exit_code = _run_requests(options, kinds) if kinds else 0
    if attacks:
        campaign = run_attacks(attacks, options.output / "attacks", models=options.model_dir, is_short=is_short)
        exit_code |= attack_report(campaign).conclude(options.output)
    return exit_code


def _run_requests(options: argparse.Namespace, kinds: Sequence[str]) -> int:
    count = options.count or _COUNTS[options.mode]
    with started(options.output, models=options.model_dir, settings=SERVER_SETTINGS) as server:
        observed = _send_all(server, kinds, count, options)
        has_failed = server.stop() != 0
    report = report_of(observed, seed=options.seed, max_rss_growth_mb=options.max_rss_growth_mb)
    settings = {name: str(value) for name, value in vars(options).items()}
    complete = replace(report, values={"settings": settings, **_details(observed)})
    return int(has_failed or complete.conclude(options.output))


def report_of(observed: Observations, *, seed: int, max_rss_growth_mb: float) -> Report:
    """Return figures and checks."""
    figure_of = {status: figure for figure, statuses in _STATUSES.items() for status in statuses}
    records = observed.records
    counts = Counter(figure_of.get(record.status, "rejected") for record in records)
    long = [record for record in records if record.num_characters >= _LONG_CHARACTERS]
    rss_growth_mb = max(observed.memory_mb) - observed.memory_mb[0]
    translated_s = _p99([reply.latency_s for reply in observed.translations])
    probed_s = _p99([reply.latency_s for reply in observed.probes])
    figures: dict[str, str | int] = {
        "inputs": len(records),
        "kinds": len({record.kind for record in records}),
        **{figure: counts[figure] for figure in _STATUSES},
        "rss_growth_mb": f"{rss_growth_mb:.1f}",
        "slowest_ms": f"{1000 * max((record.seconds for record in records), default=0.0):.0f}",
        "p99_us_per_character": rounded(_p99([1e6 * record.seconds / record.num_characters for record in long])),
        "bystander_p99_ms": rounded(translated_s and 1000 * translated_s),
        "look_p99_ms": rounded(probed_s and 1000 * probed_s),
        "look_max_ms": rounded(max((1000 * reply.latency_s for reply in observed.probes), default=None)),
        "inputs_per_s": f"{len(records) / observed.elapsed_s:.0f}",
    }
    wrong = [
        f"{fault} (--seed {seed} --only {record.kind}, {record.method} of {record.message})"
        for record in records
        for fault in record.faults
    ]
    replies = (*observed.undisturbed, *observed.translations, *observed.probes)
    failed = [f"{reply.status}: {reply.message}" for reply in replies if reply.status != "OK"]
    checks = [
        Check(name="each input is answered according to the contract", failures=wrong),
        Check(name="the server is healthy between batches", failures=observed.server_faults),
        Check(name="control traffic is answered as before", failures=failed),
        at_most("memory growth of the server", rss_growth_mb, max_rss_growth_mb, unit="MB"),
        at_most("translations of control traffic at p99", translated_s or 0, _MAX_TRANSLATION_P99_S, unit="s"),
        at_most("probes of the event loop at p99", probed_s or 0, _MAX_PROBE_P99_S, unit="s"),
    ]
    return Report(name="bad_inputs", figures=figures, checks=checks)


def _details(observed: Observations) -> dict[str, Any]:
    """Return further JSON: faults, slowest requests, statuses by kind, memory."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for record in observed.records:
        by_kind[record.kind][record.status] += 1
    slowest = sorted(observed.records, key=lambda record: -record.seconds)[:10]
    return {
        "faults": [asdict(record) for record in observed.records if record.faults],
        "slowest": [asdict(record) for record in slowest],
        "statuses_by_kind": {kind: dict(statuses) for kind, statuses in sorted(by_kind.items())},
        "retried": sum(record.num_retries > 0 for record in observed.records),
        "memory_mb": [round(size_mb, 1) for size_mb in observed.memory_mb],
    }


def _p99(values: Sequence[float]) -> float | None:
    return percentile(values, 0.99) if values else None


def _plan(count: int, kinds: Sequence[str], seed: int) -> list[tuple[str, int]]:
    """Return kind and index of each request: one of each kind, and others by weight, mixed."""
    generator = random.Random(seed)
    weights = [KINDS[kind].weight for kind in kinds]
    counts = Counter([*kinds, *generator.choices(kinds, weights, k=max(0, count - len(kinds)))])
    planned = [(kind, index) for kind in kinds for index in range(counts[kind])]
    generator.shuffle(planned)
    return planned


def _send_all(server: ServerProcess, kinds: Sequence[str], count: int, options: argparse.Namespace) -> Observations:
    """Send the requests after a warm-up; ends early if the server does."""
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
    observed = Observations(server_faults=list(_server_faults(server, known_requests)))
    batch = _BATCHES[options.mode]
    with ExitStack() as stack:
        channels = [stack.enter_context(connect(server.target)).channels[0] for _ in range(options.callers)]
        send_planned = partial(_send_planned, channels, model=ready, timeout_s=options.timeout)
        list(send_planned(_plan(round(_WARM_UP_SHARE * count), kinds, options.seed), seed=-1))
        with control_traffic() as undisturbed:
            time.sleep(1)
        observed.undisturbed = undisturbed.translations
        observed.memory_mb.append(footprint(server.pid).rss_mb)
        planned, began_s = _plan(count, kinds, options.seed), time.monotonic()
        try:
            for first in tqdm(range(0, len(planned), batch), unit="batches", disable=None):
                with control_traffic() as traffic:
                    observed.records += send_planned(planned[first : first + batch], seed=options.seed)
                observed.elapsed_s = time.monotonic() - began_s
                observed.translations += traffic.translations
                observed.probes += traffic.probes
                observed.server_faults += _server_faults(server, known_requests)
                observed.memory_mb.append(footprint(server.pid).rss_mb)
        except (ServerProcessError, grpc.RpcError, OSError) as error:
            observed.server_faults.append(f"the server ended after {len(observed.records)} requests: {error}")
    observed.server_faults += [f"server log: {line[:400]}" for line in log_errors(options.output)]
    return observed


def _send_planned(
    channels: Sequence[grpc.Channel],
    planned: Sequence[tuple[str, int]],
    *,
    model: pb.ModelVersion,
    timeout_s: float,
    seed: int,
) -> Iterator[Record]:
    """Send requests in parallel, alternating the connections; yield the records in order."""

    def send_next(channel: grpc.Channel, kind: str, request: HostileRequest) -> Record:
        result = send(channel, request, model=model, timeout_s=timeout_s)
        found = list(faults(request, result))
        return Record(
            kind=kind,
            method=request.method.value,
            num_characters=request.num_characters,
            status=result.status,
            seconds=result.seconds,
            num_retries=result.num_retries,
            faults=found,
            message=repr(request.message[:200]) if found else "",
        )

    kinds = [kind for kind, _ in planned]
    requests = (make(kind, index, seed=seed, model=model) for kind, index in planned)
    with ThreadPoolExecutor(len(channels)) as pool:
        yield from pool.map(send_next, itertools.cycle(channels), kinds, requests)


def _server_faults(server: ServerProcess, known_requests: Sequence[KnownRequest]) -> Iterator[str]:
    """Yield the faults of a server without other callers that is not healthy and idle, or translates otherwise."""
    if left := wait_until_idle(server, timeout_s=30):
        yield f"work remains on the server: {left}"
    with connect(server.target) as client:
        replies = [client.check(), *(known.send(client) for known in known_requests[:4])]
    yield from (f"an ordinary call: {reply.status} {reply.message}" for reply in replies if reply.status != "OK")
    if not all(pb.TranslateResponse.FromString(known.answer).translations for known in known_requests):
        yield "an ordinary request has no translation"
