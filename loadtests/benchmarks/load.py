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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from tqdm import tqdm

from dragoman.v1 import translation_pb2 as pb
from loadtests.benchmarks import report
from loadtests.benchmarks.bench import alternating
from loadtests.benchmarks.models import MODELS, prepare_model
from loadtests.benchmarks.serve import PRECISIONS, BatchingSettings
from loadtests.benchmarks.systems import Device, ModelFiles, Peer, add_gpu
from loadtests.benchmarks.work import add_files, bleu, share_of_equal, some_of, workload
from loadtests.generator.calls import Method
from loadtests.generator.flags import flags_of, parsed_by, within
from loadtests.generator.metrics import process_tree
from loadtests.generator.records import Summary
from loadtests.generator.runner import Generator
from loadtests.generator.server import SERVE, ServerProcess, Target
from loadtests.generator.slo import GRAMMAR, parse_slo
from loadtests.generator.workload import Workload
from loadtests.report.machine import num_cores
from loadtests.report.report import circumstances
from loadtests.scenarios.capacity import DEFAULT_SLO, PLANS, Run, SearchPlan, System, find_capacities, run

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
_SLOS: Final = {"shipped": DEFAULT_SLO, "base": "p95<3s,goodput>99%"}  # by model: what holds at the capacity
_STRETCHED: Final = {"shipped": 1.0, "base": 2.0}
"""How much longer runs are, by model: the larger one answers a few calls a second, of which a p95 must come."""
_MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "short": {
        "model": "shipped",
        "against": ("ctranslate2",),
        "loads": (60,),
        "repetitions": 2,
        "run_s": 6.0,
        "search": SearchPlan(closed_loop_s=4.0, probe_s=5.0, resolution=0.1),
        "num_agreeing": 100,
    },
    "full": {
        "model": "both",
        "against": tuple(PRECISIONS),
        "loads": (30, 60, 90),
        "repetitions": 3,
        "run_s": 20.0,
        "search": PLANS["full"],
        "num_agreeing": 400,
    },
}
"""What flags leave open; then seconds of a run at a load, the search for capacities, and the texts that both translate
to see whether they do the same work."""
_USUAL: Final[dict[Peer, BatchingSettings]] = {
    "ctranslate2": BatchingSettings(num_streams=num_cores(), batch_size=16, max_wait_ms=0.0),
    "transformers": BatchingSettings(num_threads=num_cores(), batch_size=16, max_wait_ms=0.0),
}
"""Of the short form, which has no time for trials: what won those of CTranslate2 with the model that ships on two
cores. Transformers has one stream; no wait and small batches are taken over."""
_TUNED: Final[dict[str, Sequence[Any]]] = {"max_wait_ms": (0.0, 2.0, 5.0, 10.0), "batch_size": (8, 16, 32, 64)}
"""What is tried of each setting."""
_TUNED_LOADS: Final = (0.3, 0.9)
"""Shares of the other's throughput at which its set-ups are compared: alone, and with company."""
_TRIAL: Final = 0.4  # how long a set-up is tried at each of them, as a share of a run at a load
_MIN_BLEU: Final = 50.0
"""Rounding to int8, which each system does in its own way, changes a word or more of a third of the sentences (78 BLEU
between both on test sets, for the model that ships), and of more where it is unsure: 60 to 67 BLEU on sentences that
are nothing like what it was trained on."""
_MAX_TOKENS_APART: Final = 0.1  # a server that says a tenth more has a tenth more to do
_NUM_CALLERS: Final = 8  # who want to know what is answered, not how quickly
_PATIENCE_S: Final = 120.0  # for them, and for servers that start


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare both commands and their flags."""
    parser = add_command("load", help="compare with servers of other systems under load", description=_DESCRIPTION)
    add = parser.add_argument
    add("--mode", choices=tuple(_MODES), default="full", help="short: 3 minutes, a first impression (full)")
    add("--model", choices=(*MODELS, "both"), help="whose weights (both; short: shipped)")
    against = "ctranslate2, transformers (both; short: ctranslate2)"
    add("--against", type=some_of(*PRECISIONS), metavar="P,P", help=against)
    of_capacity = "of the other's capacity, in percent (30,60,90; short: 60)"
    percents = within(0.1, 200)
    add("--loads", type=lambda text: [*map(percents, text.split(","))], metavar="N,N", help=of_capacity)
    add("--repetitions", type=within(1, 100, int), metavar="N", help="of each run at a load (3; short: 2)")
    usual = ", ".join(f"{model}: {slo}" for model, slo in _SLOS.items())
    add("--slo", type=parsed_by(parse_slo), metavar="SLO", help=f"{GRAMMAR} ({usual})".replace("%", "%%"))
    what = "of the other server, as `serve` takes them (the best of some trials; short: those that won before)"
    add("--settings", type=parsed_by(BatchingSettings.parse), metavar="STREAMSxTHREADS,bN,wMS", help=what)
    add("--seed", type=int, default=1, metavar="N", help="of texts and arrivals (1)")
    add_files(parser, "build/peers-load")
    add_gpu(parser)
    parser.set_defaults(run=_run)
    parser = add_command("prepare", help="lay out a model for other load tests", description=_PREPARE_DESCRIPTION)
    parser.add_argument("--model", choices=MODELS, default="base", help="random weights, or the shipped one (base)")
    add_files(parser, "build/prepared")
    add_gpu(parser)
    parser.set_defaults(run=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    files, calls = _laid_out(arguments.model, arguments)
    print(shlex.join([f"--model-dir={files.served_path}", *flags_of(calls)]))
    return 0


def _laid_out(model: str, arguments: argparse.Namespace) -> tuple[ModelFiles, Workload]:
    """Write a model, and what to ask it."""
    directory, gpu = arguments.output / "models" / model, arguments.gpu
    files = arguments.files or prepare_model(directory, model, ends=True, gpu=gpu)
    return files, workload(model, arguments.data, directory=arguments.output / "texts")


def _run(arguments: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    options = argparse.Namespace(**{"slo": None, "settings": None, "gpu": None, **_MODES[arguments.mode], **given})
    comparisons = list[dict[str, Any]]()
    for model in MODELS if options.model == "both" else (options.model,):
        files, calls = _laid_out(model, arguments)
        for peer in options.against:
            found = _compare(options, model, peer, files, calls)
            print(*report.load_lines(found), sep="\n", flush=True)
            comparisons.append(found)
            report.write_load(options.output, {**circumstances("peers"), "comparisons": comparisons})
    print(f"results and picture are in {options.output}")
    return 0


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
        with self.running(), self.target.channel() as channel, ThreadPoolExecutor(_NUM_CALLERS) as pool:
            method = channel.unary_unary(Method.TRANSLATE.path, response_deserializer=pb.TranslateResponse.FromString)
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
    flags = ["--models", str(files.served_path)]
    if other is not None:
        module = ("loadtests", "peers", "serve")
        flags = ["--port=0", f"--system={other.peer}", f"--files={files.directory}", f"--settings={other.name}"]
        flags += [f"--gpu={other.device}"] if other.precision != PRECISIONS[other.peer] else []
    with ServerProcess(log, *flags, module=module) as process:
        process.wait_until_ready(timeout_s=_PATIENCE_S)
        server = PausedServer(target=Target(address=process.target, process=process), workload=workload)
        with server.running():  # and stop it
            pass
        yield server


def _compare(options: argparse.Namespace, model: str, peer: Peer, files: ModelFiles, calls: Workload) -> dict[str, Any]:
    """Start both servers, set up the other one, ask both the same, search their capacities, compare at some loads.

    Raises ServerError if a server does not start, TimeoutError if one stops answering, and RuntimeError if both do not
    do the same work, or one does not hold the objective at any rate.
    """
    slo, longer, trials = options.slo or parse_slo(_SLOS[model]), _STRETCHED[model], list[dict[str, Any]]()
    run_s, durations = longer * options.run_s, {"closed_loop_s": longer * options.search.closed_loop_s}
    search = replace(options.search, **durations, probe_s=longer * options.search.probe_s, seed=options.seed)
    serve, logs = partial(serving, files, calls), options.output / f"{model}-{peer}"
    with tqdm(desc=f"{model}, {peer}", unit="run", disable=None, leave=False) as bar:

        def keep(trial: dict[str, Any]) -> None:
            trials.append(trial)
            bar.write(report.trial_line(trial, peer=peer, model=model))
            bar.update()

        settings = options.settings or (_USUAL[peer] if options.mode == "short" else None)
        if settings is None:
            start = partial(serve, log=logs / "trial.log")
            settings = _best_settings(start, peer, options.gpu, keep, duration_s=_TRIAL * run_s, seed=options.seed)
        other = settings.of(peer, options.gpu)
        with serve(log=logs / "ours.log") as ours, serve(log=logs / "theirs.log", other=other) as theirs:
            systems: dict[Side, PausedServer] = {"ours": ours, "theirs": theirs}
            answers = [server.answers(count=options.num_agreeing) for server in systems.values()]  # warms them up, too
            agreement = agreement_of(*answers, has_meaning=model == "shipped")
            if not agreement["holds"]:
                raise RuntimeError(f"both do not do the same work on the {model} model: {agreement}")
            capacities = find_capacities(systems, slo, search, note=bar.update)
            ours_per_s, theirs_per_s = (capacities[side].per_s for side in systems)
            if not (ours_per_s and theirs_per_s):
                raise RuntimeError(f"{slo} holds at no rate that was tried; give another --slo")
            points = []
            for percent in options.loads:
                runs: dict[Side, list[Run]] = {side: [] for side in systems}
                for repetition, side in alternating(list(systems), options.repetitions):
                    rate_per_s = percent / 100 * theirs_per_s
                    runs[side].append(run(systems[side], rate_per_s, run_s, options.seed + repetition))
                    bar.update()
                points.append(_point(percent / 100, runs, ours_per_s / theirs_per_s))
    asked = {"model": model, "peer": peer, "objective": str(slo), "settings": settings.name, "trials": trials}
    both = {"our_capacity": asdict(capacities["ours"]), "their_capacity": asdict(capacities["theirs"])}
    ratio = ours_per_s / theirs_per_s
    return {**asked, "agreement": agreement, **both, "capacity_ratio": ratio, "points": points}


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


def _best_settings(
    start: Callable[..., AbstractContextManager[System]],
    peer: Peer,
    gpu: Device | None,
    keep: Callable[[dict[str, Any]], None],
    *,
    duration_s: float,
    seed: int,
) -> BatchingSettings:
    """Try set-ups one feature after another, each from the best so far, and `keep` what came of each; return the best.

    That is of the threads by what callers who wait get; of the size of batches and the waiting by p95 at a low and a
    high load, each counting alike: by the product.
    """
    cores, has_streams = num_cores(), peer == "ctranslate2"
    speeds, p95_ms = dict[BatchingSettings, float](), dict[BatchingSettings, list[float]]()
    for streams, threads in dict.fromkeys([(cores, 1), (1, cores)] if has_streams else [(1, cores)]):
        settings = BatchingSettings(num_streams=streams, num_threads=threads).of(peer, gpu)
        with start(other=settings) as system:
            speeds[settings] = system.throughput_per_s(duration_s=duration_s)
        keep({"settings": settings.name, "closed_loop_per_s": speeds[settings], "runs": [], "p95_ms": []})
    best = max(speeds, key=speeds.__getitem__)
    rates_per_s = [load * speeds[best] for load in _TUNED_LOADS]
    for name, values in _TUNED.items():
        for settings in [replace(best, **{name: value}) for value in values]:
            if settings not in p95_ms:
                with start(other=settings) as system:
                    runs = [run(system, rate_per_s, duration_s, seed) for rate_per_s in rates_per_s]
                p95_ms[settings] = [one.p95_ms for one in runs]
                found = {"runs": [asdict(one) for one in runs], "p95_ms": p95_ms[settings]}
                keep({"settings": settings.name, "closed_loop_per_s": None, **found})
        best = min(p95_ms, key=lambda one: math.prod(p95_ms[one]))
    return best


def _point(load: float, runs: Mapping[Side, Sequence[Run]], capacity_ratio: float) -> dict[str, Any]:
    """Return what runs at a share of the other's capacity came to, by their medians; and which targets are reached."""
    point: dict[str, Any] = {side: [asdict(one) for one in done] for side, done in runs.items()}
    for name in ("p50", "p95"):
        ours, theirs = (median(getattr(one, f"{name}_ms") for one in done) for done in runs.values())
        point |= {f"ours_{name}_ms": ours, f"theirs_{name}_ms": theirs, f"{name}_ratio": ours / theirs}
    reached = {name: point[f"{name}_ratio"] <= report.MAX_LATENCY_RATIO for name in ("p50", "p95")}
    reached["capacity"] = capacity_ratio >= report.MIN_CAPACITY_RATIO
    return {"load": load, "rate_per_s": runs["ours"][0].rate_per_s, **point, "reached": reached}
