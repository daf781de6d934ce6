"""`bench`: each case on every system, at its best settings, in turn."""

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from dragoman_service.text.tokenizer import open_tokenizer
from loadtests.benchmarks import cases
from loadtests.benchmarks.engine import engine_speed
from loadtests.benchmarks.interface import (
    AVX2_LIMITS,
    GPU_PRECISIONS,
    Device,
    ModelFiles,
    Precision,
    SystemName,
    SystemSettings,
    TokenIds,
    WorkDone,
    add_gpu,
)
from loadtests.benchmarks.models import MODELS, prepare_model
from loadtests.benchmarks.report import BENCH_NAME, engine_line, pair_lines
from loadtests.benchmarks.systems import Workers
from loadtests.generator.flags import several
from loadtests.generator.records import percentile
from loadtests.report.report import environment, num_cores, write_json

System = tuple[SystemName, Precision]
Pairing = tuple[System, System]  # ours and another one
_INT8: Final[Pairing] = (("dragoman", "int8"), ("ctranslate2", "int8"))
_FP32: Final[Pairing] = (("dragoman", "fp32"), ("ctranslate2", "fp32"))
_TRANSFORMERS: Final[Pairing] = (("dragoman", "int8"), ("transformers", "fp32"))
_ON_GPU: Final[tuple[SystemName, ...]] = ("ctranslate2", "transformers")
_NUM_SENTENCES: Final[Mapping[cases.Mode, int]] = {"short": 200, "full": 300}  # of each set
_SLOW_CASE: Final = "batch8"  # the only case of Transformer-base for the slow systems, to limit the total time
_MAX_SLOW_SOURCES: Final = 40  # of the bundled model, slow systems run cases of at most this size
_MANY_SOURCES: Final = 64  # above it, systems split the work into batches of a size that suits them
_BATCH_SIZES: Final = (16, 32, 64)
_GPU_BATCH_SIZES: Final = (64, 128, 256)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Thoroughness of a comparison."""

    mode: cases.Mode
    num_repetitions: int
    thread_counts: tuple[int, ...]  # cores of a system; each count is compared separately
    isas: tuple[str, ...]  # instruction sets of CTranslate2, "" for its own choice
    native_isa: str = ""  # instruction set of the native engine, "" for its own choice
    gpu: Device | None = None


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command and its flags."""
    parser = add_command("bench", help="compare with other systems on this machine")
    parser.add_argument("--mode", choices=("short", "full"), default="full", help="short: under 5 minutes (full)")
    parser.add_argument("--cases", default="*", metavar="C,C", help="such as batch1, batch* (all)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of each measurement (5; short: 3)")
    models = several({name: name for name in MODELS})
    parser.add_argument("--models", type=models, default=MODELS, metavar="M,M", help="base, shipped (both)")
    instructions = "limit this system and CTranslate2 to AVX2 on a CPU that has more (default: no limit)"
    parser.add_argument("--instruction-set", choices=("avx2",), help=instructions)
    cases.add_files(parser, "build/bench")
    add_gpu(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    is_short, record = arguments.mode == "short", {**environment("benchmarks"), "cases": list[dict[str, Any]]()}
    record["engine"] = {}  # by model
    limit = (arguments.instruction_set or "").upper()
    if limit:
        record["instruction_set"] = limit
        os.environ.update(AVX2_LIMITS)  # of the processes of the systems
    plan = Plan(
        mode=arguments.mode,
        num_repetitions=arguments.repetitions or (3 if is_short else 5),
        thread_counts=(num_cores(),) if arguments.gpu else tuple(sorted({1, num_cores()})),
        native_isa=limit,
        isas=(limit,)
        if limit or is_short or arguments.gpu
        else ("", *("AVX512",) * ("avx512f" in record["machine"]["instruction_sets"]), "AVX2"),
        gpu=arguments.gpu,
    )
    for model in arguments.models:
        files = arguments.files or prepare_model(arguments.output / "models" / model, model, gpu=arguments.gpu)
        decode = open_tokenizer(files.open()).decode
        if not arguments.gpu and (speed := engine_speed(files, isa=limit)):
            record["engine"][model] = speed
            print(engine_line(model, speed), flush=True)
        with Workers(files) as workers:
            for case in _cases(model, files, plan, arguments.data):
                if any(fnmatchcase(case.name, name) for name in arguments.cases.split(",")):
                    compared = _compare(workers, case, plan, decode)
                    print(*pair_lines(compared), sep="\n", flush=True)
                    record["cases"].append(compared)
                    write_json(arguments.output / BENCH_NAME, record)  # after each case, in case a later one fails
    if not record["cases"]:
        print(f"no case matches {arguments.cases}; names depend on the test sets", file=sys.stderr)
        return 2
    print(f"results are in {arguments.output}")
    return 0


def _cases(model: str, files: ModelFiles, plan: Plan, data: Path | None) -> list[cases.Case]:
    mode = plan.mode
    if model == "base":
        return cases.base_cases(mode, on_gpu=plan.gpu is not None)
    found, sets = list[cases.Case](), cases.sentence_sets(data, size=_NUM_SENTENCES[mode])
    for name, texts, references in sets[:1] if mode == "short" else sets:
        found += cases.shipped_cases(name, cases.encode(files.open(), texts), references=references, mode=mode)
    return found


def _pairings(case: cases.Case, plan: Plan) -> Sequence[Pairing]:
    mode = plan.mode
    if plan.gpu:
        precision = GPU_PRECISIONS[plan.gpu]
        return [(("dragoman", precision), (name, precision)) for name in _ON_GPU]
    has_slow = case.name == _SLOW_CASE
    if mode == "short":
        return (_INT8, _TRANSFORMERS) if has_slow else (_INT8,)
    has_slow |= case.model == "shipped" and len(case.sources) <= _MAX_SLOW_SOURCES
    return (_INT8, _FP32, _TRANSFORMERS) if has_slow else (_INT8, _FP32)


def _compare(workers: Workers, case: cases.Case, plan: Plan, decode: Callable[[TokenIds], str]) -> dict[str, Any]:
    """Run a case on all systems of its pairings, each at its best settings in a trial; return a JSON-ready record.

    A ratio above 1 means that ours is faster: in tokens per second, or in median latency for single calls.
    """
    pairings = _pairings(case, plan)
    systems = list(dict.fromkeys(itertools.chain(*pairings)))
    best, trials = _best_settings(workers, case, plan, systems)
    runs: dict[SystemSettings, list[WorkDone]] = {settings: [] for settings in best.values()}
    for _, settings in alternating(list(runs), plan.num_repetitions):
        runs[settings].append(workers.run(settings, case))
    outputs = {settings: [output.token_ids for output in done[-1].outputs] for settings, done in runs.items()}
    measured = dict[SystemSettings, dict[str, Any]]()
    for settings, done in runs.items():
        bleu = cases.bleu([*map(decode, outputs[settings])], case.references) if case.references else None
        measured[settings] = _figures(settings, done, bleu)
    pairs = []
    for pairing, threads in itertools.product(pairings, plan.thread_counts):
        sides = [best[system, threads] for system in pairing]
        ours, theirs = (measured[side] for side in sides)
        speeds = ours["tokens_per_s"] / theirs["tokens_per_s"]
        pairs.append(
            {
                "threads": threads,
                "ratio": theirs["p50_s"] / ours["p50_s"] if case.call_size == 1 else speeds,
                "bleu_delta": ours["bleu"] - theirs["bleu"] if case.references else None,
                "identical": cases.share_of_equal(*(outputs[side] for side in sides)) if case.has_meaning else None,
                "ours": ours,
                "theirs": theirs,
            }
        )
    return {
        "model": case.model,
        "case": case.name,
        "search": asdict(case.search),
        "num_sources": len(case.sources),
        "sources_per_call": case.call_size,
        "trials": trials,
        "pairs": pairs,
    }


def _best_settings(
    workers: Workers, case: cases.Case, plan: Plan, systems: Sequence[System]
) -> tuple[dict[tuple[System, int], SystemSettings], list[dict[str, Any]]]:
    """Try all settings once; return the fastest by system and number of threads, and the trials."""
    trials, loaded = dict[SystemSettings, float](), set[SystemSettings]()
    for settings in (settings for system in systems for settings in setups(case, system, plan)):
        if settings.loaded_as not in loaded:  # warm up
            workers.run(settings, case)
            loaded.add(settings.loaded_as)
        trials[settings] = workers.run(settings, case).elapsed_s
    best = dict[tuple[System, int], SystemSettings]()
    for system, threads in itertools.product(systems, plan.thread_counts):
        own = [one for one in trials if (one.system, one.precision) == system]
        fitting = [one for one in own if one.num_streams * one.num_threads <= threads]
        best[system, threads] = min(fitting, key=trials.__getitem__)
    return best, [{**asdict(settings), "elapsed_s": elapsed_s} for settings, elapsed_s in trials.items()]


def _figures(settings: SystemSettings, runs: Sequence[WorkDone], bleu_score: float | None) -> dict[str, Any]:
    elapsed_s, num_target_tokens = [run.elapsed_s for run in runs], runs[-1].num_target_tokens
    latencies_s = [latency_s for run in runs for latency_s in run.latencies_s]
    return {
        **asdict(settings),
        "name": settings.name,
        "setup": settings.setup,
        "elapsed_s": elapsed_s,
        "latencies_s": latencies_s,
        "num_target_tokens": num_target_tokens,
        "tokens_per_s": num_target_tokens / median(elapsed_s),
        "p50_s": percentile(latencies_s, 0.5),
        "p95_s": percentile(latencies_s, 0.95),
        "bleu": bleu_score,
    }


def setups(case: cases.Case, system: System, plan: Plan) -> list[SystemSettings]:
    """Return the settings of a system that are worth a trial."""
    (name, precision), max_threads = system, plan.thread_counts[-1]
    has_streams = name in ("dragoman", "ctranslate2") and case.call_size > 1
    counts = sorted({max_threads, *(2**power for power in range(max_threads.bit_length()))})
    usual = SystemSettings(system=name, precision=precision, device=plan.gpu or "cpu")
    isas = plan.isas if name == "ctranslate2" else (plan.native_isa if system == ("dragoman", "int8") else "",)
    layouts: Iterable[tuple[int, int]] = itertools.product(counts if has_streams else (1,), counts)
    if plan.gpu:  # one or two batches in flight; cores do not matter
        layouts = [(streams, -(-max_threads // streams)) for streams in ((1, 2) if has_streams else (1,))]
    return [
        replace(usual, num_streams=streams, num_threads=threads, batch_size=size, isa=isa)
        for streams, threads in layouts
        if streams * threads <= max_threads
        for isa in isas
        for size in _batch_sizes(case.call_size, name, streams, plan)[: 1 if isa and len(isas) > 1 else None]
    ]


def _batch_sizes(call_size: int, name: SystemName, num_streams: int, plan: Plan) -> list[int]:
    share, is_short = -(-call_size // num_streams), plan.mode == "short"
    if plan.gpu:
        return [share] if call_size <= _GPU_BATCH_SIZES[1] else list(_GPU_BATCH_SIZES)
    if call_size > _MANY_SOURCES:
        return list(_BATCH_SIZES[::2] if is_short else _BATCH_SIZES)
    other = min(16, share) if name == "dragoman" else call_size  # ours distributes shares itself
    return [share] if is_short else sorted({share, other})


def alternating(sides: Sequence[_T], num_repetitions: int) -> Iterator[tuple[int, _T]]:
    """Yield all sides in each repetition, alternating the direction, so that drift affects all equally."""
    for repetition in range(num_repetitions):
        for side in sides if repetition % 2 == 0 else reversed(sides):
            yield repetition, side
