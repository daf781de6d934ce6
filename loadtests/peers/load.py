"""`load`: the same calls to this server and to others, at the same moments; `prepare`: only what that needs."""

import argparse
import itertools
import math
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import grpc
from dragoman.v1 import translation_pb2 as pb
from tqdm import tqdm

from loadtests.capacity import DEFAULT_SLO, PLANS, Run, SearchPlan, System, find_capacities, run
from loadtests.flags import flags_of, parsed_by, within
from loadtests.machine import num_cores
from loadtests.offer import Generator
from loadtests.peers import report
from loadtests.peers.bench import alternating
from loadtests.peers.models import MODELS, prepare_model, served_models
from loadtests.peers.serve import PRECISIONS, BatchingSettings
from loadtests.peers.systems import ModelFiles, Peer
from loadtests.peers.work import add_files, bleu, real_sentences, share_of_equal, workload
from loadtests.records import Summary
from loadtests.report import circumstances
from loadtests.sampler import process_tree
from loadtests.slo import GRAMMAR, Slo, parse_slo
from loadtests.target import SERVE, ServerProcess, Target
from loadtests.wire import TRANSLATE
from loadtests.workload import Workload

Side = Literal["ours", "theirs"]

_DESCRIPTION: Final = f"""\
Starts our server with its defaults, and over the same weights a server of another system with the usual dynamic
batching, set up as it does best (what was tried is in load.json). Both get the same sentences at the same random
moments (Poisson), one call each, in turn; the other one is stopped meanwhile.

First both answer the same texts: their speed is compared only if they do the same work. Then the capacity of both is
searched, the highest rate at which --slo holds, and at shares of the other's capacity latencies are compared. Times
count from the moment at which a call should have been sent.

Prints a line for each load, with the targets: p50 and p95 at most 0.6 of the other's, capacity at least 1.5 times.
A missed target is reported, and no error. Leaves {report.LOAD_NAME} and {report.PICTURE_NAME} in --output.

exit codes: 0 all was measured, 1 a server failed or both do not do the same work, 2 called wrongly"""
_PREPARE_DESCRIPTION: Final = """\
Writes a model as `load` compares it, and sentences for it, and prints the flags by which `python -m loadtests capacity`
and `python -m loadtests load` serve the one and send the other:

    eval "python -m loadtests capacity $(python -m loadtests peers prepare --model base)\""""

_SLOS: Final = {"shipped": DEFAULT_SLO, "base": "p95<3s,goodput>99%"}
"""By model: what holds at the capacity."""

_USUAL: Final[dict[Peer, BatchingSettings]] = {
    "ctranslate2": BatchingSettings(num_streams=num_cores(), batch_size=16, max_wait_ms=0.0),
    "transformers": BatchingSettings(num_threads=num_cores(), batch_size=16, max_wait_ms=0.0),
}
"""Of the short form, which has no time for trials: what won those of CTranslate2 with the model that ships on two
cores. Transformers has one stream; no wait and small batches are taken over."""

_SEARCHES: Final = {"short": SearchPlan(closed_loop_s=4.0, probe_s=5.0, resolution=0.1), "full": PLANS["full"]}
_TUNED: Final[dict[str, Sequence[Any]]] = {"max_wait_ms": (0.0, 2.0, 5.0, 10.0), "batch_size": (8, 16, 32, 64)}
"""What is tried of each setting."""
_TUNED_LOADS: Final = (0.3, 0.9)
"""Shares of the other's throughput at which its set-ups are compared: alone, and with company."""
_TRIAL: Final = 0.4
"""How long a set-up is tried at each of them, as a share of a run at a load."""
_STRETCHED: Final = {"shipped": 1.0, "base": 2.0}
"""How much longer runs are, by model: the larger one answers a few calls a second, of which a p95 must come."""
_MIN_BLEU: Final = 50.0
"""Rounding to int8, which each system does in its own way, changes a word or more of a third of the sentences (78 BLEU
between both on test sets, for the model that ships), and of more where it is unsure: 60 to 67 BLEU on sentences that
are nothing like what it was trained on."""
_MAX_TOKENS_APART: Final = 0.1
"""A server that says a tenth more has a tenth more to do."""
_MAX_LOAD: Final = 2.0
_START_S: Final = 120.0
_NUM_CALLERS: Final = 8
_PATIENCE_S: Final = 120.0
"""Of callers who want to know what is answered, not how quickly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared, and how thoroughly; durations are those of one run that count."""

    model: str
    peer: Peer
    slo: Slo
    settings: BatchingSettings | None
    """Of the other server; None: the best of some trials."""
    run_s: float
    """Of a run at a load."""
    num_repetitions: int
    loads: tuple[float, ...]
    """Shares of the other's capacity."""
    num_agreeing: int
    """Texts that both translate to see whether they do the same work."""
    search: SearchPlan
    """Its seed is that of all runs."""


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare both commands and their flags."""
    parser = add_command("load", help="compare with servers of other systems under load", description=_DESCRIPTION)
    add = parser.add_argument
    add("--mode", choices=("short", "full"), default="full", help="short: 3 minutes, a first impression (full)")
    add("--model", choices=(*MODELS, "both"), help="whose weights (both; short: shipped)")
    add("--against", type=parsed_by(_peers), metavar="P,P", help="ctranslate2, transformers (both; short: ctranslate2)")
    of_capacity = "of the other's capacity, in percent (30,60,90; short: 60)"
    add("--loads", type=parsed_by(_loads), metavar="N,N", help=of_capacity)
    add("--repetitions", type=within(1, 100, int), metavar="N", help="of each run at a load (3; short: 2)")
    usual = ", ".join(f"{model}: {slo}" for model, slo in _SLOS.items())
    add("--slo", type=parsed_by(parse_slo), metavar="SLO", help=f"{GRAMMAR} ({usual})".replace("%", "%%"))
    what = "of the other server, as `serve` takes them (the best of some trials; short: those that won before)"
    add("--settings", type=parsed_by(BatchingSettings.parse), metavar="STREAMSxTHREADS,bN,wMS", help=what)
    add("--seed", type=int, default=1, metavar="N", help="of texts and arrivals (1)")
    add_files(parser, "build/peers-load")
    parser.set_defaults(run=_run)
    parser = add_command("prepare", help="lay out a model for other load tests", description=_PREPARE_DESCRIPTION)
    parser.add_argument("--model", choices=MODELS, default="base", help="random weights, or the shipped one (base)")
    add_files(parser, "build/prepared")
    parser.set_defaults(run=_prepare)


def _peers(text: str) -> tuple[Peer, ...]:
    known = {str(peer): peer for peer in PRECISIONS}
    unknown = set(text.split(",")) - set(known)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: expected {', '.join(known)}")
    return tuple(known[name] for name in text.split(","))


def _loads(text: str) -> tuple[float, ...]:
    loads = tuple(float(part) / 100 for part in text.split(","))
    if not all(0 < load <= _MAX_LOAD for load in loads):
        raise ValueError(f"{text}: expected percents above 0, at most {_MAX_LOAD:.0%}")
    return loads


def _prepare(arguments: argparse.Namespace) -> int:
    files, calls = _laid_out(arguments.model, real_sentences(arguments.data), arguments.output)
    print(shlex.join([f"--model-dir={served_models(files)}", *flags_of(calls)]))
    return 0


def _laid_out(model: str, sentences: Sequence[str], output: Path) -> tuple[ModelFiles, Workload]:
    """Write a model, and what to ask it."""
    files = prepare_model(output / "models" / model, model, ends=True)
    return files, workload(model, sentences, directory=output / "texts")


def _run(arguments: argparse.Namespace) -> int:
    is_short, sentences = arguments.mode == "short", real_sentences(arguments.data)
    record: dict[str, Any] = {**circumstances("peers"), "comparisons": []}
    asked = arguments.model or ("shipped" if is_short else "both")
    peers: Sequence[Peer] = arguments.against or (("ctranslate2",) if is_short else tuple(PRECISIONS))
    for model in MODELS if asked == "both" else (asked,):
        files, calls = _laid_out(model, sentences, arguments.output)
        for peer in peers:
            plan = _plan(arguments, model, peer)
            found = compare(plan, files, calls, directory=arguments.output / f"{model}-{peer}")
            print(*report.load_lines(found), sep="\n", flush=True)
            record["comparisons"].append(found)
            report.write_load(arguments.output, record)
    print(f"results and picture are in {arguments.output}")
    return 0


def _plan(arguments: argparse.Namespace, model: str, peer: Peer) -> Plan:
    is_short, longer, search = arguments.mode == "short", _STRETCHED[model], _SEARCHES[arguments.mode]
    return Plan(
        model=model,
        peer=peer,
        slo=arguments.slo or parse_slo(_SLOS[model]),
        settings=arguments.settings or (_USUAL[peer] if is_short else None),
        run_s=longer * (6.0 if is_short else 20.0),
        num_repetitions=arguments.repetitions or (2 if is_short else 3),
        loads=arguments.loads or ((0.6,) if is_short else (0.3, 0.6, 0.9)),
        num_agreeing=100 if is_short else 400,
        search=replace(
            search,
            closed_loop_s=longer * search.closed_loop_s,
            probe_s=longer * search.probe_s,
            seed=arguments.seed,
        ),
    )


class PausedServer(Generator):
    """A server that runs only while load is offered to it; stopped (SIGSTOP) it takes nothing from the other.

    It was started here: `target` has its process.
    """

    def offer(self, **load: Any) -> Summary:
        """Let it run under load."""
        with self.running():
            return super().offer(**load)

    def throughput_per_s(self, **load: Any) -> float:
        """Let it run for callers who wait."""
        with self.running():
            return super().throughput_per_s(**load)

    def answers(self, *, count: int) -> list[pb.TranslateResponse]:
        """Let it answer so many requests; grpc.RpcError if one fails."""
        requests = [call.messages[0] for call in itertools.islice(self.workload.calls(0), count)]
        channel = grpc.insecure_channel(self.target.address)
        with self.running(), channel, ThreadPoolExecutor(_NUM_CALLERS) as pool:
            method = channel.unary_unary(TRANSLATE, response_deserializer=pb.TranslateResponse.FromString)
            return list(pool.map(partial(method, timeout=_PATIENCE_S, wait_for_ready=True), requests))

    @property
    def pids(self) -> list[int]:
        """Of its processes, the first one first."""
        return process_tree(self.target.process.pid)  # type: ignore[union-attr]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run meanwhile; no thread of its first process runs after that."""
        pids = self.pids
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pids[0], os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def serving(
    files: ModelFiles, workload: Workload, *, log: Path, other: BatchingSettings | None = None
) -> Iterator[PausedServer]:
    """Serve a model as an operator would, with all defaults, or with another system; ServerError if it fails."""
    module: Sequence[str] = SERVE
    flags = ["--models", str(served_models(files))]
    if other is not None:
        module, directory = ("loadtests", "peers", "serve"), str(files.directory.resolve())
        flags = ["--port", "0", "--system", other.peer, "--files", directory, "--settings", other.name]
    with ServerProcess(log, *flags, module=module) as process:
        process.wait_until_ready(timeout_s=_START_S)
        server = PausedServer(target=Target(address=process.target, process=process), workload=workload)
        with server.running():  # and stop it
            pass
        yield server


def compare(plan: Plan, files: ModelFiles, workload: Workload, *, directory: Path) -> dict[str, Any]:
    """Start both servers, set up the other one, ask both the same, search their capacities, compare at some loads.

    Logs go to the directory. Raises ServerError if a server does not start, TimeoutError if one stops answering, and
    RuntimeError if both do not do the same work, or one does not hold the objective at any rate.
    """
    trials = []

    def start(settings: BatchingSettings, log: str = "trial") -> AbstractContextManager[PausedServer]:
        return serving(files, workload, log=directory / f"{log}.log", other=settings.of(plan.peer))

    with tqdm(desc=f"{plan.model}, {plan.peer}", unit="run", disable=None, leave=False) as bar:

        def advance(*_: object) -> None:
            bar.update()

        if (settings := plan.settings) is None:
            for trial in _tune(start, plan):
                trials.append(trial)
                bar.write(report.trial_line(trial, peer=plan.peer, model=plan.model))
                advance()
            settings = _best(trials)
        with serving(files, workload, log=directory / "ours.log") as ours, start(settings, "theirs") as theirs:
            systems: dict[Side, PausedServer] = {"ours": ours, "theirs": theirs}
            answers = [server.answers(count=plan.num_agreeing) for server in systems.values()]  # warms them up, too
            agreement = agreement_of(*answers, has_meaning=plan.model == "shipped")
            if not agreement["holds"]:
                raise RuntimeError(f"both do not do the same work on the {plan.model} model: {agreement}")
            capacities = find_capacities(systems, plan.slo, plan.search, note=advance)
            ours_per_s, theirs_per_s = (capacities[side].per_s for side in systems)
            if not (ours_per_s and theirs_per_s):
                raise RuntimeError(f"{plan.slo} holds at no rate that was tried; give another --slo")
            points = [
                measure_load(systems, load, (ours_per_s, theirs_per_s), plan, note=advance) for load in plan.loads
            ]
    made = {"model": plan.model, "peer": plan.peer, "objective": str(plan.slo), "settings": settings.name}
    found = {"our_capacity": asdict(capacities["ours"]), "their_capacity": asdict(capacities["theirs"])}
    ratio = ours_per_s / theirs_per_s
    return {**made, "trials": trials, "agreement": agreement, **found, "capacity_ratio": ratio, "points": points}


def agreement_of(
    ours: Sequence[pb.TranslateResponse], theirs: Sequence[pb.TranslateResponse], *, has_meaning: bool
) -> dict[str, Any]:
    """Compare the answers of both servers to the same requests, in order, at least one; it `holds` if both do the same.

    Texts are compared by the share of the same ones and, if they have a meaning, by BLEU, with theirs for references.
    """
    our_texts, their_texts = (
        [translation.hypotheses[0].text for answer in answers for translation in answer.translations]
        for answers in (ours, theirs)
    )
    our_tokens, their_tokens = (sum(answer.num_target_tokens for answer in answers) for answers in (ours, theirs))
    likeness, tokens_ratio = bleu(our_texts, their_texts) if has_meaning else None, our_tokens / max(1, their_tokens)
    return {
        "num_texts": len(our_texts),
        "identical": share_of_equal(our_texts, their_texts),
        "bleu": likeness,
        "tokens_ratio": tokens_ratio,
        "holds": (likeness is None or likeness >= _MIN_BLEU) and abs(tokens_ratio - 1) <= _MAX_TOKENS_APART,
    }


def _tune(start: Callable[[BatchingSettings], AbstractContextManager[System]], plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield trials of set-ups one feature after another, each from the best so far.

    The threads by what callers who wait get; the size of batches and the waiting by p95 at a low and a high load.
    """
    cores, tried = num_cores(), []
    has_streams = plan.peer == "ctranslate2" and cores > 1
    for streams, threads in [(cores, 1), (1, cores)] if has_streams else [(1, cores)]:
        settings = BatchingSettings(num_streams=streams, num_threads=threads)
        with start(settings) as system:
            tried.append((system.throughput_per_s(duration_s=_TRIAL * plan.run_s), settings))
        yield _trial(settings, [], tried[-1][0])
    most_per_s, best = max(tried, key=lambda pair: pair[0])
    trials: dict[str, dict[str, Any]] = {}
    for name, values in _TUNED.items():
        for settings in [replace(best, **{name: value}) for value in values]:
            if settings.name not in trials:
                with start(settings) as system:
                    runs = [
                        run(system, load * most_per_s, _TRIAL * plan.run_s, plan.search.seed) for load in _TUNED_LOADS
                    ]
                trials[settings.name] = _trial(settings, runs)
                yield trials[settings.name]
        best = _best(list(trials.values()))


def _trial(settings: BatchingSettings, runs: Sequence[Run], closed_loop_per_s: float | None = None) -> dict[str, Any]:
    p95_ms = [one.p95_ms for one in runs]
    runs_json = [asdict(one) for one in runs]
    return {"settings": settings.name, "closed_loop_per_s": closed_loop_per_s, "runs": runs_json, "p95_ms": p95_ms}


def _best(trials: Sequence[Mapping[str, Any]]) -> BatchingSettings:
    """Return the set-up with the least p95 on the whole, each load counting alike: by the product."""
    best = min((trial for trial in trials if trial["runs"]), key=lambda trial: math.prod(trial["p95_ms"]))
    return BatchingSettings.parse(best["settings"])


def measure_load(
    systems: Mapping[Side, System],
    load: float,
    capacities_per_s: tuple[float, float],
    plan: Plan,
    *,
    note: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Offer both the same, arrival by arrival, at a share of the other's capacity; compare medians of all runs."""
    runs: dict[Side, list[Run]] = {side: [] for side in systems}
    rate_per_s = load * capacities_per_s[1]
    for repetition, side in alternating(list(systems), plan.num_repetitions):
        runs[side].append(run(systems[side], rate_per_s, plan.run_s, plan.search.seed + repetition))
        note()
    middle = {
        f"{side}_{name}": median(getattr(one, name) for one in done)
        for name in ("p50_ms", "p95_ms")
        for side, done in runs.items()
    }
    ratios = {name: middle[f"ours_{name}_ms"] / middle[f"theirs_{name}_ms"] for name in ("p50", "p95")}
    reached = {name: ratio <= report.MAX_LATENCY_RATIO for name, ratio in ratios.items()}
    return {
        "load": load,
        "rate_per_s": rate_per_s,
        **{side: [asdict(one) for one in done] for side, done in runs.items()},
        **middle,
        **{f"{name}_ratio": ratio for name, ratio in ratios.items()},
        "reached": {**reached, "capacity": capacities_per_s[0] / capacities_per_s[1] >= report.MIN_CAPACITY_RATIO},
    }
