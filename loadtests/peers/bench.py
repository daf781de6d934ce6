"""`bench`: all cases on all systems; prints a line for each pair and leaves JSON, a table and plots behind.

`table`: the table of the last comparison.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtests.machine import describe_machine, num_cores
from loadtests.peers.bench_report import RESULTS_NAME, pair_line, record_of, table, write_bench
from loadtests.peers.cases import Case, Mode, base_cases, selected, shipped_cases
from loadtests.peers.comparison import CaseResult, Pairing, Plan, compare
from loadtests.peers.models import MODELS, prepare_model
from loadtests.peers.sentences import encode, judge_of, sentence_sets
from loadtests.peers.systems import ModelFiles
from loadtests.peers.workers import Workers
from loadtests.report import command_line
from loadtests.texts import DATA_VARIABLE

_INT8: Final = Pairing(ours="int8", peer="ctranslate2", theirs="int8")
_FP32: Final = Pairing(ours="fp32", peer="ctranslate2", theirs="fp32")
_TRANSFORMERS: Final = Pairing(ours="int8", peer="transformers", theirs="fp32")
_PYTORCH: Final = Pairing(ours="int8", peer="pytorch", theirs="fp32")

_NUM_SENTENCES: Final[Mapping[Mode, int]] = {"short": 200, "full": 300}
"""Of each set."""

_SLOW_PEERS_CASE: Final = "batch8"
"""Of Transformer-base, the case in which Transformers and plain PyTorch take part: all would fill two hours."""

_MAX_SLOW_SOURCES: Final = 40
"""Of the model that ships, they take part in cases of no more sources."""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser("bench", help="compare with other systems on this machine")
    parser.add_argument("--mode", choices=("short", "full"), default="full", help="short: under 5 minutes (full)")
    parser.add_argument("--models", type=_names, default=MODELS, metavar="M,M", help="base, shipped (both)")
    parser.add_argument("--cases", type=_names, default=(), metavar="C,C", help="such as batch1, length* (all)")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of each measurement (5; short: 3)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"holds test sets ({DATA_VARIABLE}; without it: built-in sentences, no BLEU)",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR", help="(build/bench)")
    parser.set_defaults(run=_run)
    parser = commands.add_parser("table", help="print the results of the last comparison as Markdown")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR", help="(build/bench)")
    parser.set_defaults(run=_print_table)


def _print_table(arguments: argparse.Namespace) -> int:
    """Print; return the exit code."""
    print(table(json.loads((arguments.output / RESULTS_NAME).read_text(encoding="utf-8"))), end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """Compare; return the exit code: 2 if there is no case as asked for."""
    plan = _plan(arguments)
    machine, results = describe_machine(), list[CaseResult]()
    for model in arguments.models:
        for result in _compare_all(model, plan, arguments):
            results.append(result)  # kept after each case, as one that fails would take the others with it
            write_bench(arguments.output, record_of(results, machine, command_line("peers")))
    if not results:
        print(f"no case is named {', '.join(arguments.cases)}; without data there are other sentences", file=sys.stderr)
        return 2
    print(f"results, table and plots are in {arguments.output}")
    return 0


def _compare_all(model: str, plan: Plan, arguments: argparse.Namespace) -> Iterator[CaseResult]:
    """Yield the result of each case of a model and print its pairs."""
    files = prepare_model(arguments.output / "models" / model, model)
    judge = judge_of(files.open())
    with Workers(files) as workers:
        for case in selected(_cases(model, files, plan.mode, arguments.data), arguments.cases):
            result = compare(workers, case, _pairings(case, plan.mode), plan, judge)
            for pair in result.pairs:
                print(pair_line(pair), flush=True)
            yield result


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _plan(arguments: argparse.Namespace) -> Plan:
    is_short = arguments.mode == "short"
    machine = describe_machine()
    forced = ("AVX512",) * ("avx512f" in machine["instruction_sets"]) + ("AVX2",)
    cores = num_cores()
    return Plan(
        mode=arguments.mode,
        num_repetitions=arguments.repetitions or (3 if is_short else 5),
        thread_counts=tuple(sorted({1, cores})),
        isas=("",) if is_short else ("", *forced),
    )


def _cases(model: str, files: ModelFiles, mode: Mode, data: Path | None) -> list[Case]:
    bundle = files.open()
    if model == "base":
        size, eos_id = bundle.manifest.architecture.vocabulary_size, bundle.manifest.special_ids.eos
        return base_cases(vocabulary_size=size, eos_id=eos_id, mode=mode)
    return [
        case
        for sentences in sentence_sets(data, size=_NUM_SENTENCES[mode])[: 1 if mode == "short" else None]
        for case in shipped_cases(
            sentences.name, encode(bundle, sentences.texts), references=sentences.references, mode=mode
        )
    ]


def _pairings(case: Case, mode: Mode) -> Sequence[Pairing]:
    """Return whom a case is compared with."""
    if case.kind == "agreement":
        return (_FP32,)
    if mode == "short":
        return (_INT8, _TRANSFORMERS) if case.name == _SLOW_PEERS_CASE else (_INT8,)
    if case.kind == "growth":
        return (_INT8,)
    has_slow_peers = (
        len(case.sources) <= _MAX_SLOW_SOURCES if case.model == "shipped" else case.name == _SLOW_PEERS_CASE
    )
    return (_INT8, _FP32, _TRANSFORMERS, _PYTORCH) if has_slow_peers else (_INT8, _FP32)
