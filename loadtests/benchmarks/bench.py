"""`bench`: each case on every system, at the best set-up that is found for it, in turn; `table` prints the last one."""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from dragoman_service.text.tokenizer import open_tokenizer
from loadtests.benchmarks import work
from loadtests.benchmarks.models import prepare_model
from loadtests.benchmarks.report import BENCH_NAME, bench_table, pair_lines, write_bench
from loadtests.benchmarks.systems import (
    GPU_PRECISIONS,
    Device,
    ModelFiles,
    Peer,
    Precision,
    SystemSettings,
    TokenIds,
    WorkDone,
    Workers,
    add_gpu,
)
from loadtests.generator.records import percentile
from loadtests.report.machine import num_cores
from loadtests.report.report import circumstances

SystemName = tuple[Peer, Precision]
Pairing = tuple[SystemName, SystemName]
"""Ours, and what it is compared with."""
_INT8: Final[Pairing] = (("dragoman", "int8"), ("ctranslate2", "int8"))
_FP32: Final[Pairing] = (("dragoman", "fp32"), ("ctranslate2", "fp32"))
_TRANSFORMERS: Final[Pairing] = (("dragoman", "int8"), ("transformers", "fp32"))
_PYTORCH: Final[Pairing] = (("dragoman", "int8"), ("pytorch", "fp32"))
_ON_GPU: Final[tuple[Peer, ...]] = ("ctranslate2", "transformers")
"""Whom ours is compared with on a GPU, at the same precision."""
_NUM_SENTENCES: Final[Mapping[work.Mode, int]] = {"short": 200, "full": 300}  # of each set
_SLOW_PEERS_CASE: Final = "batch8"
"""Of Transformer-base, the case in which Transformers and plain PyTorch take part: all would fill two hours."""
_MAX_SLOW_SOURCES: Final = 40  # of the model that ships, they take part in cases of no more sources
_MANY_SOURCES: Final = 64  # above so many at once, systems cut the work into batches of a size that suits them
_BATCH_SIZES: Final = (16, 32, 64)
_GPU_BATCH_SIZES: Final = (64, 128, 256)
"""The same on a GPU, which takes as many at once as the smaller of these sizes in any case."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How thoroughly is measured."""

    mode: work.Mode
    num_repetitions: int
    thread_counts: tuple[int, ...]  # cores a system may use; each is compared by itself
    isas: tuple[str, ...]  # instruction sets that CTranslate2 is tried with, the empty one for its own choice
    gpu: Device | None = None  # if it is a comparison on a GPU: that, or what is in its place


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare both commands and their flags."""
    parser = add_command("bench", help="compare with other systems on this machine")
    parser.add_argument("--mode", choices=("short", "full"), default="full", help="short: under 5 minutes (full)")
    parser.add_argument("--cases", default="*", metavar="C,C", help="such as batch1, length* (all)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of each measurement (5; short: 3)")
    work.add_files(parser, "build/bench", has_models=True)
    add_gpu(parser)
    parser.set_defaults(run=_run)
    parser = add_command("table", help="print the results of the last comparison as Markdown")
    work.add_files(parser, "build/bench", has_data=False)
    parser.set_defaults(run=_print_table)


def _print_table(arguments: argparse.Namespace) -> int:
    print(bench_table(json.loads((arguments.output / BENCH_NAME).read_text(encoding="utf-8"))), end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """Compare; return the exit code: 2 if there is no case as asked for."""
    is_short, record = arguments.mode == "short", {**circumstances("peers"), "cases": list[dict[str, Any]]()}
    plan = Plan(
        mode=arguments.mode,
        num_repetitions=arguments.repetitions or (3 if is_short else 5),
        thread_counts=(num_cores(),) if arguments.gpu else tuple(sorted({1, num_cores()})),
        isas=("",)
        if is_short or arguments.gpu
        else ("", *("AVX512",) * ("avx512f" in record["machine"]["instruction_sets"]), "AVX2"),
        gpu=arguments.gpu,
    )
    for model in arguments.models:
        files = arguments.files or prepare_model(arguments.output / "models" / model, model, gpu=arguments.gpu)
        decode = open_tokenizer(files.open()).decode
        with Workers(files) as workers:
            for case in _cases(model, files, plan, arguments.data):
                if any(fnmatchcase(case.name, name) for name in arguments.cases.split(",")):
                    compared = _compare(workers, case, plan, decode)
                    print(*pair_lines(compared), sep="\n", flush=True)
                    record["cases"].append(compared)
                    write_bench(arguments.output, record)  # after each case: one that fails takes no other with it
    if not record["cases"]:
        print(f"no case is named {arguments.cases}; without data there are other sentences", file=sys.stderr)
        return 2
    print(f"results, table and plots are in {arguments.output}")
    return 0


def _cases(model: str, files: ModelFiles, plan: Plan, data: Path | None) -> list[work.Case]:
    mode = plan.mode
    if model == "base":
        return work.base_cases(mode, on_gpu=plan.gpu is not None)
    cases, sets = list[work.Case](), work.sentence_sets(data, size=_NUM_SENTENCES[mode])
    for name, texts, references in sets[:1] if mode == "short" else sets:
        cases += work.shipped_cases(name, work.encode(files.open(), texts), references=references, mode=mode)
    return cases


def _pairings(case: work.Case, plan: Plan) -> Sequence[Pairing]:
    """Return whom a case is compared with."""
    mode = plan.mode
    if plan.gpu:
        precision = GPU_PRECISIONS[plan.gpu]
        return [(("dragoman", precision), (peer, precision)) for peer in _ON_GPU]
    if case.kind != "speed":
        return (_FP32,) if case.kind == "agreement" else (_INT8,)
    has_slow_peers = case.name == _SLOW_PEERS_CASE
    if mode == "short":
        return (_INT8, _TRANSFORMERS) if has_slow_peers else (_INT8,)
    has_slow_peers |= case.model == "shipped" and len(case.sources) <= _MAX_SLOW_SOURCES
    return (_INT8, _FP32, _TRANSFORMERS, _PYTORCH) if has_slow_peers else (_INT8, _FP32)


def _compare(workers: Workers, case: work.Case, plan: Plan, decode: Callable[[TokenIds], str]) -> dict[str, Any]:
    """Run a case on all systems of its pairings, each at the set-up that did best in a trial; return what to keep.

    A ratio above 1 says that ours is faster: of tokens a second, or of the median latency if calls come one by one.
    """
    pairings = _pairings(case, plan)
    systems = list(dict.fromkeys(itertools.chain(*pairings)))
    thread_counts = plan.thread_counts if case.kind == "speed" else plan.thread_counts[-1:]
    trials, loaded = dict[SystemSettings, float](), set[SystemSettings]()
    for settings in (settings for system in systems for settings in setups(case, system, plan)):
        if settings.loaded_as not in loaded:  # one more run, to warm it up
            workers.run(settings, case)
            loaded.add(settings.loaded_as)
        trials[settings] = workers.run(settings, case).elapsed_s
    best = dict[tuple[SystemName, int], SystemSettings]()
    for system, threads in itertools.product(systems, thread_counts):
        own = [one for one in trials if (one.peer, one.precision) == system]
        fitting = [one for one in own if one.num_streams * one.num_threads <= threads]
        best[system, threads] = min(fitting, key=trials.__getitem__)
    runs: dict[SystemSettings, list[WorkDone]] = {settings: [] for settings in best.values()}
    for _, settings in alternating(list(runs), 1 if case.kind == "agreement" else plan.num_repetitions):
        runs[settings].append(workers.run(settings, case))
    said = {settings: [output.token_ids for output in done[-1].outputs] for settings, done in runs.items()}
    measured = dict[SystemSettings, dict[str, Any]]()
    for settings, done in runs.items():
        bleu = work.bleu([*map(decode, said[settings])], case.references) if case.references else None
        measured[settings] = _figures(settings, done, bleu)
    pairs = []
    for pairing, threads in itertools.product(pairings, thread_counts):
        sides = [best[system, threads] for system in pairing]
        ours, theirs = (measured[side] for side in sides)
        speeds = ours["tokens_per_s"] / theirs["tokens_per_s"]
        pairs.append(
            {
                "threads": threads,
                "ratio": theirs["p50_s"] / ours["p50_s"] if case.call_size == 1 else speeds,
                "bleu_delta": ours["bleu"] - theirs["bleu"] if case.references else None,
                "identical": work.share_of_equal(*(said[side] for side in sides)) if case.has_meaning else None,
                "ours": ours,
                "theirs": theirs,
            }
        )
    return {
        "model": case.model,
        "case": case.name,
        "kind": case.kind,
        "search": asdict(case.search),
        "num_sources": len(case.sources),
        "sources_per_call": case.call_size,
        "trials": [{**asdict(settings), "elapsed_s": elapsed_s} for settings, elapsed_s in trials.items()],
        "pairs": pairs,
    }


def _figures(settings: SystemSettings, runs: Sequence[WorkDone], bleu_score: float | None) -> dict[str, Any]:
    """Return what all repetitions of one set-up came to."""
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


def setups(case: work.Case, system: SystemName, plan: Plan) -> list[SystemSettings]:
    """Return every set-up of a system that is worth a try in a case, up to the most threads of the plan."""
    (peer, precision), max_threads = system, plan.thread_counts[-1]
    if case.kind == "agreement":
        return [SystemSettings(peer=peer, precision=precision, num_threads=max_threads)]
    has_streams = peer in ("dragoman", "ctranslate2") and case.call_size > 1
    counts = sorted({max_threads, *(2**power for power in range(max_threads.bit_length()))})
    usual = SystemSettings(peer=peer, precision=precision, device=plan.gpu or "cpu")
    layouts: Iterable[tuple[int, int]] = itertools.product(counts if has_streams else (1,), counts)
    if plan.gpu:  # cores decide nothing, but a second batch in flight may
        layouts = [(streams, -(-max_threads // streams)) for streams in ((1, 2) if has_streams else (1,))]
    return [
        replace(usual, num_streams=streams, num_threads=threads, batch_size=size, isa=isa)
        for streams, threads in layouts
        if streams * threads <= max_threads
        for isa in (plan.isas if peer == "ctranslate2" else ("",))
        for size in _batch_sizes(case.call_size, peer, streams, plan)[: 1 if isa else None]
    ]


def _batch_sizes(call_size: int, peer: Peer, num_streams: int, plan: Plan) -> list[int]:
    share, is_short = -(-call_size // num_streams), plan.mode == "short"
    if plan.gpu:
        return [share] if call_size <= _GPU_BATCH_SIZES[1] else list(_GPU_BATCH_SIZES)
    if call_size > _MANY_SOURCES:
        return list(_BATCH_SIZES[::2] if is_short else _BATCH_SIZES)
    other = min(16, share) if peer == "dragoman" else call_size  # ours deals shares by itself
    return [share] if is_short else sorted({share, other})


def alternating(sides: Sequence[_T], num_repetitions: int) -> Iterator[tuple[int, _T]]:
    """Yield all sides in each repetition, forwards and backwards by turns: a change of the machine meets all alike."""
    for repetition in range(num_repetitions):
        for side in sides if repetition % 2 == 0 else reversed(sides):
            yield repetition, side
