"""`dragoman export ablate`: trains variants of a model and compares them in a table.

The rows are those of table 3 of Vaswani et al. 2017 (arXiv:1706.03762), and later proposals (F).
"""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import signal
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import sacrebleu
import torch

from dragoman_export.cli import train
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.reader import read_pairs
from dragoman_export.errors import DivergenceError, ExportError, RunFolderError, SettingError
from dragoman_export.evaluation.report import bleu_difference
from dragoman_export.evaluation.torch_search import translate_whole
from dragoman_export.model.config import ModelConfig
from dragoman_export.trained_model import open_model
from dragoman_export.training.checkpoint import list_checkpoints, write_atomically
from dragoman_export.training.config import RunConfig
from dragoman_export.training.report import read_log
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.bundle.files import file_entry
from dragoman_service.errors import DragomanError

_GROUPS: Mapping[str, str] = {
    "A": "number of heads, same width",
    "B": "size of keys and queries",
    "C": "size of the model",
    "D": "dropout and label smoothing",
    "E": "positions",
    "F": "norms, activations, shared key heads, depth and tables",
}
_BASE = "base"
_OTHER_SEEDS = (2, 3)  # rows with the seed of the base plus 1 and 2
_COLUMNS = ("Model", "Parameters, 10^6", "Steps", "Perplexity", "BLEU", "Difference (95 % interval)", "Tokens/s")
_RESULT, _TRANSLATIONS, _OUTPUT = "ablation.json", "translations.txt", "output.log"  # in the folder of a row
_NOT_FOR_ROWS = ("run_file", "resume", "dump", "dry_run", "initialize_from")  # flags of `train`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "output", help="directory with a run folder per model")
    parser.add_argument("--test", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>reference lines")
    groups = "; ".join(f"{name}: {text}" for name, text in _GROUPS.items())
    rows_help = f"groups of models ({groups}), and names of single rows; base is always included (all groups)"
    parser.add_argument("--rows", default=",".join(_GROUPS), metavar="LIST", help=rows_help)
    workers_help = f"models trained at a time; with several, training prints to {_OUTPUT} in the run folder (1)"
    parser.add_argument("--workers", type=int, default=1, metavar="N", help=workers_help)
    add_shared(parser, "limit", "beam")
    training_help = "flags of `train` for the base model, its text and the length of each training"
    parser.add_argument("training", nargs="+", metavar="-- FLAG", help=training_help)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model of the table."""

    name: str  # of its run folder, such as `A-num_heads-1`
    changes: Mapping[str, Any]  # fields of `ModelConfig` and `TrainingConfig` that differ from the base


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Results of a model; `ablation.json` of its run folder."""

    num_parameters: int
    steps: int
    perplexity: float  # of the tokens of the development text, without label smoothing
    bleu: float
    train_tokens_per_s: float  # target tokens, median over the run
    scoring: Mapping[str, Any]  # test files and flags that determine BLEU: a row with others is scored again


def run(args: argparse.Namespace) -> int:
    """Train and score the models without a result; print the table and write it to the output."""
    if args.workers < 1:
        raise SettingError("--workers", args.workers, "at least 1")
    flags = _parsed(args.output, args.training)
    if flags.output != args.output or any(getattr(flags, name) for name in _NOT_FOR_ROWS):
        unusable = ", ".join(f"--{name.replace('_', '-')}" for name in _NOT_FOR_ROWS[2:])
        expected = f"flags of `train` without --output and --resume, {unusable} or a run file"
        raise SettingError("--", " ".join(args.training), expected)
    rows = chosen_rows(train.new_config(flags), args.rows.split(","))
    pairs = read_pairs(args.test, args.limit)
    waiting = [row for row in rows if _stored(args, row)[0] == "unfinished"]
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        _complete_all(args, waiting, flags.vocabulary or RunFolder(args.output / _BASE).vocabulary)
    finally:
        signal.signal(signal.SIGTERM, previous)
        table = _write_table(args, rows, [pair.target for pair in pairs])
    print(table, end="")
    return int(any(_stored(args, row)[0] == "unfinished" for row in rows))


def chosen_rows(base: RunConfig, chosen: Sequence[str]) -> list[Variant]:
    """Return the rows of groups and names; the base, with each of its seeds, is always included."""
    rows = list(variants(base))
    known = {*_GROUPS, *(row.name for row in rows)}
    if unknown := [name for name in chosen if name not in known]:
        names = ", ".join(row.name for row in rows)
        raise SettingError("--rows", ",".join(unknown), f"some of {', '.join(_GROUPS)}, {names}, separated by commas")
    return [row for row in rows if row.name.startswith(_BASE) or {row.name, row.name[0]} & set(chosen)]


def variants(base: RunConfig) -> Iterator[Variant]:
    """Yield the base with each of its seeds, and the variants of all groups that differ from it."""
    yield Variant(name=_BASE, changes={})
    for number in _OTHER_SEEDS:
        yield Variant(name=f"{_BASE}-seed-{number}", changes={"seed": base.training.seed + number - 1})
    old = {**base.model.to_dict(), **base.training.to_dict()}
    for group, all_changes in _changes(base).items():
        for changes in all_changes:
            if any(old[field] != value for field, value in changes.items()):
                name = "-".join(f"{field}-{value}" for field, value in changes.items())
                yield Variant(name=f"{group}-{name}", changes=changes)


def _changes(base: RunConfig) -> dict[str, list[dict[str, Any]]]:
    model = base.model
    depth = (model.num_encoder_layers, model.num_decoder_layers)
    layers = [
        {"num_encoder_layers": max(1, round(depth[0] * factor)), "num_decoder_layers": max(1, round(depth[1] * factor))}
        for factor in (0.5, 2)
    ]
    widths = [{name: int(getattr(model, name) * factor)} for name in ("d_model", "ffn_size") for factor in (0.5, 2)]
    return {
        "A": [{"num_heads": count} for count in (1, 2, 4, 8) if model.head_dim is None and model.d_model % count == 0],
        "B": [{"key_dim": max(2, model.key_head_size // part)} for part in (4, 2)],
        "C": [*layers, *widths],
        "D": [
            *({"dropout": share} for share in (0.0, 0.1, 0.3)),
            *({"label_smoothing": share} for share in (0.0, 0.1)),
        ],
        "E": [
            {"positions": "learned", "max_positions": base.training.max_tokens},
            {"positions": "rotary"},
            {"positions": "none"},
        ],
        "F": [
            {"norm": "post" if model.norm == "pre" else "pre"},
            {"norm_kind": "rms"},
            *({"activation": name} for name in ("gelu", "swish")),
            {"activation": "swiglu", "ffn_size": model.ffn_size * 2 // 3},  # the same number of parameters
            {"num_kv_heads": 1},
            {"num_encoder_layers": sum(depth) - 1, "num_decoder_layers": 1},
            {"tied_embeddings": "none"},
        ],
    }


def _parsed(output: Path, flags: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ablate ... --", description="Flags of `train`.")
    train.add_arguments(parser)
    return parser.parse_args(["--output", str(output), *flags])


def _complete_all(args: argparse.Namespace, rows: Sequence[Variant], vocabulary: Path) -> None:
    # Each row has a process of its own, so a failure or a lack of memory ends only that row.
    waiting, running = list(rows), dict[int, tuple[Variant, Any]]()
    try:
        while waiting or running:
            is_learned = vocabulary.is_file()  # otherwise the base learns it first, for all rows
            while waiting and len(running) < (args.workers if is_learned else 1):
                row = waiting.pop(0)
                process = multiprocessing.get_context("spawn").Process(target=_in_process, args=(args, row))
                print(f"{row.name}: training", flush=True)
                process.start()
                running[process.sentinel] = row, process
            for sentinel in wait(list(running), timeout=None if is_learned else 1.0):
                row, process = running.pop(sentinel)  # type: ignore[arg-type]
                process.join()
                status, result = _stored(args, row)
                log = f", see {args.output / row.name / _OUTPUT}" if args.workers > 1 else ""
                failure = f"{status}, exit status {process.exitcode}{log}"
                scores = result and f"BLEU {result.bleu:.2f}, perplexity {result.perplexity:.2f}"
                print(f"{row.name}: {scores or failure}", flush=True)
    finally:  # on an interruption a training stops after its step and saves a checkpoint
        for child in multiprocessing.active_children():
            child.terminate()
        for child in multiprocessing.active_children():
            child.join()


def _in_process(args: argparse.Namespace, row: Variant) -> None:
    os.setpgid(0, 0)  # Ctrl-C reaches only the parent, which sends one SIGTERM: a second signal would save nothing
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if args.workers > 1:
        folder = args.output / row.name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _OUTPUT).open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        complete_row(args, row)
    except (ExportError, DragomanError) as error:
        sys.exit(f"error: {row.name}: {error}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and wait([parent.sentinel]):
        os.kill(os.getpid(), signal.SIGTERM)


def complete_row(args: argparse.Namespace, row: Variant) -> None:
    """Train a row, from its last checkpoint if there is one, score it and store the result.

    RunFolderError if a signal stopped the training.
    """
    folder, result = RunFolder(args.output / row.name), None
    try:
        train.run(_flags(args, row, folder))
        end = read_log(folder.log)[-1]
        if end["reason"].startswith("SIG"):
            raise RunFolderError(f"{end['reason']} stopped the training at step {end['step']}: repeat the command")
        result = _measured(args, folder)
    except DivergenceError as error:
        print(f"{row.name}: {error}", flush=True)
    content = json.dumps(result and dataclasses.asdict(result), indent=2)
    write_atomically(folder.path / _RESULT, f"{content}\n".encode())


def _flags(args: argparse.Namespace, row: Variant, folder: RunFolder) -> argparse.Namespace:
    # A resumed training keeps its network and vocabulary, and has the other settings of an uninterrupted one.
    changes = [part for field, value in row.changes.items() for part in (train.flag_of(field), str(value))]
    flags = _parsed(folder.path, [*args.training, *changes])
    if not list_checkpoints(folder.checkpoints):
        if flags.vocabulary is None and row.name != _BASE:
            flags.vocabulary = RunFolder(args.output / _BASE).vocabulary
        return flags
    kept = {name: value for name, value in vars(flags).items() if name not in ModelConfig.__slots__}
    settings = train.new_config(flags).training.to_dict()
    return argparse.Namespace(**{**kept, **settings, **dict.fromkeys(train.ONLY_NEW), "resume": True})


def _measured(args: argparse.Namespace, folder: RunFolder) -> Result:
    # Scores the best checkpoint and writes its translations.
    model, tokenizer = open_model(folder.path)
    if torch.cuda.is_available():
        model.cuda()
    pairs = read_pairs(args.test, args.limit)
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    texts = translate_whole(model, tokenizer, sources, beam_size=args.beam)
    lines = [" ".join(text.splitlines()) for text in texts]
    write_atomically(folder.path / _TRANSLATIONS, "".join(f"{line}\n" for line in lines).encode())
    records = read_log(folder.log)
    evaluations = [record for record in records if record["event"] == "evaluation"]
    speeds = {record["step"]: record["tokens_per_s"] for record in records if record["event"] == "step"}
    return Result(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=max(record["step"] for record in evaluations),
        perplexity=math.exp(min(record["loss"] for record in evaluations)),
        bleu=float(sacrebleu.corpus_bleu(lines, [references]).score),
        train_tokens_per_s=statistics.median(speeds.values() or [0.0]),
        scoring=_scoring(args),
    )


def _scoring(args: argparse.Namespace) -> dict[str, Any]:
    return {"test": [file_entry(path).sha256 for path in args.test], "limit": args.limit, "beam": args.beam}


def _stored(args: argparse.Namespace, row: Variant) -> tuple[str, Result | None]:
    # Status, `done`, `diverged` or `unfinished`, and result.
    path = args.output / row.name / _RESULT
    fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if fields is None:
        return "diverged", None
    return ("done", Result(**fields)) if fields.get("scoring") == _scoring(args) else ("unfinished", None)


def _write_table(args: argparse.Namespace, rows: Sequence[Variant], references: Sequence[str]) -> str:
    # Writes table.md and results.json and returns the table.
    results = {row.name: _stored(args, row) for row in rows}
    done = {name: result for name, (_, result) in results.items() if result is not None}
    texts = {
        name: (args.output / name / _TRANSLATIONS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for name in done
    }
    bases = [name for name in done if name.startswith(_BASE)]
    lines = [f"| {' | '.join(_COLUMNS)} |", "| --- |" + " ---: |" * (len(_COLUMNS) - 1)]
    records = []
    for row in rows:
        status, result = results[row.name]
        record: dict[str, Any] = {"name": row.name, "changes": row.changes, "status": status}
        difference = ""
        if result is not None:
            record.update(dataclasses.asdict(result))
            if bases and row.name not in bases:
                mean, (low, high) = bleu_difference(texts[row.name], [texts[base] for base in bases], references)
                record.update(difference=mean, interval=(low, high))
                difference = f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
        records.append(record)
        lines.append(_line(row.name, status, result, difference))
    spread = {field: _spread([getattr(done[name], field) for name in bases]) for field in ("perplexity", "bleu")}
    lines += [
        "",
        f"- BLEU of the base with {len(bases)} seeds: {_in_words(spread['bleu'])}.",
        f"- Perplexity of the base: {_in_words(spread['perplexity'])}.",
        "- Difference: BLEU minus the mean of the base, by paired bootstrap over the sentences.",
        f"- Tokens/s: learned target tokens, with {args.workers} models trained at a time.",
    ]
    table = "".join(f"{line}\n" for line in lines)
    args.output.mkdir(parents=True, exist_ok=True)
    write_atomically(args.output / "table.md", table.encode())
    content = json.dumps({"scoring": _scoring(args), "base": spread, "rows": records}, indent=2)
    write_atomically(args.output / "results.json", f"{content}\n".encode())
    return table


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"min": min(values), "max": max(values), "mean": statistics.mean(values), "deviation": deviation}


def _in_words(spread: Mapping[str, float]) -> str:
    words = "mean {mean:.2f}, {min:.2f} to {max:.2f}, standard deviation {deviation:.2f}"
    return words.format(**spread) if spread else "none"


def _line(name: str, status: str, result: Result | None, difference: str) -> str:
    if result is None:
        return f"| {name} | {status} | | | | | |"
    quality = f"{result.num_parameters / 1e6:.2f} | {result.steps:,} | {result.perplexity:.2f} | {result.bleu:.2f}"
    return f"| {name} | {quality} | {difference} | {result.train_tokens_per_s:,.0f} |"
