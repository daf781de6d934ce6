"""`load`: the same calls at the same times to this server and to others. `prepare`: its model and sentences only."""

import argparse
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from tqdm import tqdm

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.cli.server_process import SERVE, ServerProcess
from loadtests.benchmarks import report
from loadtests.benchmarks.bench import alternating
from loadtests.benchmarks.cases import add_files, bleu, share_of_equal, workload
from loadtests.benchmarks.interface import AVX2_LIMITS, ModelFiles, SystemName, add_gpu
from loadtests.benchmarks.models import MODELS, prepare_model
from loadtests.benchmarks.serve import PRECISIONS, BatchingSettings
from loadtests.generator.calls import Method
from loadtests.generator.flags import flags_of, parsed_by, several, within
from loadtests.generator.metrics import footprint, process_tree
from loadtests.generator.records import Summary
from loadtests.generator.runner import Generator
from loadtests.generator.server import Target
from loadtests.generator.slo import GRAMMAR, parse_slo
from loadtests.generator.workload import Workload
from loadtests.report.report import environment, num_cores
from loadtests.scenarios.capacity import DEFAULT_SLO, PLANS, Run, SearchPlan, find_capacities, run

Side = Literal["ours", "theirs"]
_DESCRIPTION: Final = f"""\
Starts our server with default settings, and over the same weights a server of another system with the usual dynamic
batching. Both get the same sentences at the same Poisson arrivals, one
call each, alternating; the other server is stopped meanwhile.

First both answer the same texts: their speed is compared only if they do the same work. Then the capacity of both is
searched, the highest rate at which --slo holds, and latencies are compared at shares of the other's capacity. Latency
counts from the scheduled time of a call.

Prints a line for each load, with the CPU time per call of both servers and the targets: p50 and p95 at most 0.6 of the
other's, capacity at least 1.5 times. A missed target is reported, but is not an error. Writes {report.LOAD_NAME} and
{report.PICTURE_NAME} to --output.

exit codes: 0 measured, 1 a server failed or both do not do the same work, 2 invalid usage"""
_PREPARE_DESCRIPTION: Final = """\
Writes a model as `load` compares it, and sentences for it, and prints the flags with which `capacity` and `load` of
`python -m loadtests` use them:

    eval "python -m loadtests capacity $(python -m loadtests benchmarks prepare --model base)\""""
_SLOS: Final = {"shipped": DEFAULT_SLO, "base": "p95<3s,goodput>99%"}
_DURATION_FACTORS: Final = {"shipped": 1.0, "base": 2.0}  # the larger model answers few calls per second
_MODES: Final[Mapping[str, Mapping[str, Any]]] = {  # defaults of flags; seconds per run, search, compared texts
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
# the best for the bundled model on two cores
_BEST_KNOWN: Final[dict[SystemName, BatchingSettings]] = {
    "ctranslate2": BatchingSettings(num_streams=num_cores(), batch_size=16, max_wait_ms=0.0),
    "transformers": BatchingSettings(num_threads=num_cores(), batch_size=16, max_wait_ms=0.0),
}
# Rounding to int8 differs between systems and changes a word or more in a third of the sentences: 78 BLEU between both
# on test sets for the bundled model, 60 to 67 BLEU on sentences unlike its training data.
_MIN_BLEU: Final = 50.0
_MAX_TOKENS_APART: Final = 0.1  # relative difference of the number of target tokens
_NUM_CALLERS: Final = 8  # for the comparison of texts
_TIMEOUT_S: Final = 120.0
_NEIGHBOUR: Final = """\
import sys, time
share, began_s = float(sys.argv[1]), time.monotonic()
while True:
    while time.process_time() < share * (time.monotonic() - began_s):
        pass
    time.sleep(0.005)
"""


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add both commands and their flags."""
    parser = add_command("load", help="compare with servers of other systems under load", description=_DESCRIPTION)
    add = parser.add_argument
    add("--mode", choices=tuple(_MODES), default="full", help="short: 3 minutes, a quick check (full)")
    add("--model", choices=(*MODELS, "both"), help="whose weights (both; short: shipped)")
    against = "ctranslate2, transformers (both; short: ctranslate2)"
    add("--against", type=several({name: name for name in PRECISIONS}), metavar="S,S", help=against)
    of_capacity = "percent of the other's capacity (30,60,90; short: 60)"
    percents = within(0.1, 200)
    add("--loads", type=lambda text: [*map(percents, text.split(","))], metavar="N,N", help=of_capacity)
    add("--repetitions", type=within(1, 100, int), metavar="N", help="of each run at a load (3; short: 2)")
    usual = ", ".join(f"{model}: {slo}" for model, slo in _SLOS.items())
    add("--slo", type=parsed_by(parse_slo), metavar="SLO", help=f"{GRAMMAR} ({usual})".replace("%", "%%"))
    instructions = "limit both servers to AVX2 on a CPU that has more (default: no limit)"
    add("--instruction-set", choices=("avx2",), help=instructions)
    neighbour = "share of a core that another process uses meanwhile (0)"
    add("--neighbour", type=within(0, 1), default=0.0, metavar="X", help=neighbour)
    settings = "of the other server, as for `serve` (default: the best for the bundled model on two cores)"
    add("--settings", type=parsed_by(BatchingSettings.parse), metavar="STREAMSxTHREADS,bN,wMS", help=settings)
    add("--seed", type=int, default=1, metavar="N", help="seed of texts and arrivals (1)")
    add_files(parser, "build/benchmarks-load")
    add_gpu(parser)
    parser.set_defaults(run=_run)
    parser = add_command("prepare", help="write a model for other load tests", description=_PREPARE_DESCRIPTION)
    parser.add_argument("--model", choices=MODELS, default="base", help="random weights, or the bundled model (base)")
    add_files(parser, "build/prepared")
    add_gpu(parser)
    parser.set_defaults(run=_prepare)


def _prepare(arguments: argparse.Namespace) -> int:
    files, calls = _files_and_calls(arguments.model, arguments)
    print(shlex.join([f"--model-dir={files.served_path}", *flags_of(calls)]))
    return 0


def _files_and_calls(model: str, arguments: argparse.Namespace) -> tuple[ModelFiles, Workload]:
    directory, gpu = arguments.output / "models" / model, arguments.gpu
    files = arguments.files or prepare_model(directory, model, ends=True, gpu=gpu)
    return files, workload(model, arguments.data, directory=arguments.output / "texts")


def _run(arguments: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    options = argparse.Namespace(
        **{**dict.fromkeys(("slo", "settings", "gpu", "instruction_set")), **_MODES[arguments.mode], **given}
    )
    comparisons = list[dict[str, Any]]()
    conditions = {name: value for name in ("instruction_set", "neighbour") if (value := getattr(options, name))}
    if options.instruction_set:
        os.environ.update(AVX2_LIMITS)  # of the servers
    with neighbour(options.neighbour):
        for model in MODELS if options.model == "both" else (options.model,):
            files, calls = _files_and_calls(model, arguments)
            for system in options.against:
                comparisons.append(_compare(options, model, system, files, calls))
                print(*report.load_lines(comparisons[-1]), sep="\n", flush=True)
                record = {**environment("benchmarks"), **conditions, "comparisons": comparisons}
                report.write_load(options.output, record)
    print(f"results and plot are in {options.output}")
    return 0


@contextmanager
def neighbour(share: float) -> Iterator[None]:
    """Run a process that uses this share of a core."""
    if not share:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", _NEIGHBOUR, str(share)]) as process:  # noqa: S603 - our own program
        try:
            yield
        finally:
            process.kill()


class PausedServer(Generator):
    """A started server that runs only while load is offered; otherwise it is stopped (SIGSTOP) to free the cores."""

    def offer(self, **load: Any) -> Summary:
        """Resume it for a load."""
        with self.running():
            return super().offer(**load)

    def throughput_per_s(self, **load: Any) -> float:
        """Resume it for a closed loop."""
        with self.running():
            return super().throughput_per_s(**load)

    def answers(self, *, count: int) -> list[pb.TranslateResponse]:
        """Return the responses to the first requests of the workload; raises grpc.RpcError."""
        requests = [call.messages[0] for call in itertools.islice(self.workload.calls(0), count)]
        with self.running(), self.target.channel() as channel, ThreadPoolExecutor(_NUM_CALLERS) as pool:
            method = channel.unary_unary(Method.TRANSLATE.path, response_deserializer=pb.TranslateResponse.FromString)
            return list(pool.map(partial(method, timeout=_TIMEOUT_S, wait_for_ready=True), requests))

    @property
    def pids(self) -> list[int]:
        """Its processes, the main process first."""
        return process_tree(self.target.process.pid)  # type: ignore[union-attr]

    @property
    def cpu_s(self) -> float:
        """CPU time of its processes so far."""
        return footprint(self.pids[0]).cpu_s

    @contextmanager
    def running(self) -> Iterator[None]:
        """Resume it; afterwards no thread of its main process runs."""
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
    """Serve a model with our default settings, or with another system; raises ServerProcessError."""
    module: Sequence[str] = SERVE
    flags = ["--models", str(files.served_path)]
    if other is not None:
        module = ("loadtests", "benchmarks", "serve")
        flags = ["--port=0", f"--system={other.system}", f"--files={files.directory}", f"--settings={other.name}"]
        flags += [f"--gpu={other.device}"] if other.precision != PRECISIONS[other.system] else []
    with ServerProcess(*flags, log=log, module=module) as process:
        process.wait_until_ready(timeout_s=_TIMEOUT_S)
        server = PausedServer(target=Target(address=process.target, process=process), workload=workload)
        with server.running():  # stops it at the end
            pass
        yield server


def _compare(
    options: argparse.Namespace, model: str, system: SystemName, files: ModelFiles, calls: Workload
) -> dict[str, Any]:
    """Start both servers, check that they agree, search capacities, compare latencies.

    Raises ServerProcessError, TimeoutError if a server stops answering, RuntimeError if both do not do the same work or
    one does not hold the objective at any rate.
    """
    slo, factor = options.slo or parse_slo(_SLOS[model]), _DURATION_FACTORS[model]
    run_s, plan = factor * options.run_s, options.search
    search = replace(plan, closed_loop_s=factor * plan.closed_loop_s, probe_s=factor * plan.probe_s, seed=options.seed)
    serve, logs = partial(serving, files, calls), options.output / f"{model}-{system}"
    settings = options.settings or _BEST_KNOWN[system]
    other = settings.of(system, options.gpu)
    with (
        tqdm(desc=f"{model}, {system}", unit="run", disable=None, leave=False) as bar,
        serve(log=logs / "ours.log") as ours,
        serve(log=logs / "theirs.log", other=other) as theirs,
    ):
        servers: dict[Side, PausedServer] = {"ours": ours, "theirs": theirs}
        answers = [server.answers(count=options.num_agreeing) for server in servers.values()]  # also the warm-up
        agreement = agreement_of(*answers, has_meaning=model == "shipped")
        if not agreement["holds"]:
            raise RuntimeError(f"both do not do the same work on the {model} model: {agreement}")
        capacities = find_capacities(servers, slo, search, on_probe=bar.update)
        ours_per_s, theirs_per_s = (capacities[side].per_s for side in servers)
        if not (ours_per_s and theirs_per_s):
            raise RuntimeError(f"{slo} holds at no rate; choose another --slo")
        points = []
        for percent in options.loads:
            runs: dict[Side, list[Run]] = {side: [] for side in servers}
            used_s = dict.fromkeys(servers, 0.0)
            for repetition, side in alternating(list(servers), options.repetitions):
                rate_per_s, used_s[side] = percent / 100 * theirs_per_s, used_s[side] - servers[side].cpu_s
                runs[side].append(run(servers[side], rate_per_s, run_s, options.seed + repetition))
                used_s[side] += servers[side].cpu_s
                bar.update()
            points.append(_point(percent / 100, runs, ours_per_s / theirs_per_s, used_s))
    return {
        "model": model,
        "system": system,
        "objective": str(slo),
        "settings": settings.name,
        "agreement": agreement,
        "our_capacity": asdict(capacities["ours"]),
        "their_capacity": asdict(capacities["theirs"]),
        "capacity_ratio": ours_per_s / theirs_per_s,
        "points": points,
    }


def agreement_of(
    ours: Sequence[pb.TranslateResponse], theirs: Sequence[pb.TranslateResponse], *, has_meaning: bool
) -> dict[str, Any]:
    """Compare the responses of both servers to the same requests: equal texts, BLEU if texts have a meaning, tokens."""
    our_texts, their_texts = (
        [translation.hypotheses[0].text for answer in answers for translation in answer.translations]
        for answers in (ours, theirs)
    )
    our_tokens, their_tokens = (sum(answer.num_target_tokens for answer in answers) for answers in (ours, theirs))
    similarity = bleu(our_texts, their_texts) if has_meaning else None
    tokens_ratio = our_tokens / max(1, their_tokens)
    return {
        "num_texts": len(our_texts),
        "identical": share_of_equal(our_texts, their_texts),
        "bleu": similarity,
        "tokens_ratio": tokens_ratio,
        "holds": (similarity is None or similarity >= _MIN_BLEU) and abs(tokens_ratio - 1) <= _MAX_TOKENS_APART,
    }


def _point(
    load: float, runs: Mapping[Side, Sequence[Run]], capacity_ratio: float, used_s: Mapping[Side, float]
) -> dict[str, Any]:
    """Return the medians at a share of the other's capacity, CPU time per call, and which targets are reached."""
    point: dict[str, Any] = {side: [asdict(one) for one in done] for side, done in runs.items()}
    for side, done in runs.items():
        point[f"{side}_cpu_ms"] = 1000 * used_s[side] / max(1, sum(one.summary.answered for one in done))
    for name in ("p50", "p95"):
        ours, theirs = (median(getattr(one, f"{name}_ms") for one in done) for done in runs.values())
        point |= {f"ours_{name}_ms": ours, f"theirs_{name}_ms": theirs, f"{name}_ratio": ours / theirs}
    reached = {name: point[f"{name}_ratio"] <= report.MAX_LATENCY_RATIO for name in ("p50", "p95")}
    reached["capacity"] = capacity_ratio >= report.MIN_CAPACITY_RATIO
    return {"load": load, "rate_per_s": runs["ours"][0].rate_per_s, **point, "reached": reached}
