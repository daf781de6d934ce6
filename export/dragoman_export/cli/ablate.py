"""`dragoman export ablate`: trains variants of a model alike and says in a table what each change costs or gains.

The rows are those of table 3 of Vaswani et al. 2017 (arXiv:1706.03762), and what has been proposed since (F).
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sacrebleu

from dragoman_export.cli import train
from dragoman_export.cli.evaluate import read_pairs
from dragoman_export.data.reader import Pair
from dragoman_export.ensemble import float_bundle
from dragoman_export.errors import DivergenceError, RunFolderError, SettingError
from dragoman_export.onnx_export.network import TrainedModel
from dragoman_export.onnx_export.translation import TextModel, translate_texts
from dragoman_export.training.checkpoint import write_atomically
from dragoman_export.training.config import RunConfig
from dragoman_export.training.report import read_log
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer

_GROUPS: Mapping[str, str] = {
    "A": "heads, as many numbers in all",
    "B": "size of heads",
    "C": "size of the model",
    "D": "dropout and label smoothing",
    "E": "positions",
    "F": "norms, activations, shared heads of keys, depth and tables",
}

_RESULT_NAME = "ablation.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="has a run folder for each model")
    parser.add_argument("--test", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>reference lines")
    told = "; ".join(f"{name}: {what}" for name, what in _GROUPS.items())
    parser.add_argument("--rows", default=",".join(_GROUPS), metavar="LIST", help=f"groups of models ({told}; all)")
    parser.add_argument("--limit", type=int, metavar="N", help="translate the first N lines only")
    parser.add_argument("--beam", type=int, default=4, metavar="K", help="live hypotheses; 1 is greedy search (4)")
    parser.add_argument(
        "training",
        nargs="+",
        metavar="-- FLAG",
        help="flags of `train`, which say what the base model is, from which text and for how long each is trained",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model of the table."""

    name: str
    """Of its run folder, such as `A-num_heads-1`."""
    changes: Mapping[str, Any]
    """Fields of `ModelConfig` and `TrainingConfig` in which it differs from the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What is told of a model."""

    num_parameters: int
    steps: int
    perplexity: float
    """Of the development text, of tokens, without label smoothing."""
    bleu: float
    train_tokens_per_s: float
    """Target tokens learned from."""
    decode_tokens_per_s: float
    """Target tokens of the float32 graphs on one core, 16 sentences at a time."""


def run(args: argparse.Namespace) -> int:
    """Train and score what has no result yet, and print the table; it is written to the output as well."""
    groups = args.rows.split(",")
    if unknown := set(groups) - _GROUPS.keys():
        raise SettingError("--rows", ",".join(sorted(unknown)), f"some of {', '.join(_GROUPS)}, separated by commas")
    if {"--output", "--resume"} & set(args.training):
        raise SettingError("--", " ".join(args.training), "flags of `train` without --output and --resume")
    base = train.new_config(_parsed(args.output, args.training))
    pairs = read_pairs(args.test, args.limit)
    results: dict[str, Result | None] = {}
    for variant in variants(base, groups):
        results[variant.name] = _result(args, variant, pairs)
        table = "\n".join(_table(results))
        write_atomically(args.output / "table.md", (table + "\n").encode())
    print(table)
    return 0


def variants(base: RunConfig, groups: Sequence[str]) -> Iterator[Variant]:
    """Yield the base and what differs from it in the groups of rows asked for; no model comes twice."""
    yield Variant(name="base", changes={})
    told: list[Mapping[str, Any]] = []
    for group in groups:
        for changes in _rows(base)[group]:
            old = {**base.model.to_dict(), **base.training.to_dict()}
            if changes in told or all(old[field] == value for field, value in changes.items()):
                continue
            told.append(changes)
            name = "-".join(f"{field}-{value}" for field, value in changes.items())
            yield Variant(name=f"{group}-{name}", changes=changes)


def _rows(base: RunConfig) -> dict[str, list[dict[str, Any]]]:
    model = base.model
    heads, depth = model.num_heads, (model.num_encoder_layers, model.num_decoder_layers)
    halves = [{"d_model": model.d_model // 2}, {"d_model": model.d_model * 2}]
    layers = [
        {"num_encoder_layers": max(1, round(depth[0] * factor)), "num_decoder_layers": max(1, round(depth[1] * factor))}
        for factor in (0.5, 2)
    ]
    return {
        "A": [
            {"num_heads": count}
            for count in sorted({1, max(1, heads // 2), 2 * heads, 4 * heads})
            if model.head_dim is None and model.d_model % count == 0
        ],
        "B": [{"head_dim": max(2, model.head_size // part)} for part in (4, 2)],
        "C": [*layers, *halves, {"ffn_size": model.ffn_size // 2}, {"ffn_size": model.ffn_size * 2}],
        "D": [*({"dropout": share} for share in (0.0, 0.2)), *({"label_smoothing": share} for share in (0.0, 0.2))],
        "E": [
            {"positions": "learned", "max_positions": base.training.max_tokens},
            {"positions": "rotary"},
            {"positions": "none"},
        ],
        "F": [
            {"norm": "post" if model.norm == "pre" else "pre"},
            {"norm_kind": "rms"},
            *({"activation": name} for name in ("gelu", "swish")),
            {"activation": "swiglu", "ffn_size": model.ffn_size * 2 // 3},  # as many parameters
            {"num_kv_heads": 1},
            {"num_encoder_layers": sum(depth) - 1, "num_decoder_layers": 1},
            {"tied_embeddings": "none"},
        ],
    }


def _parsed(output: Path, flags: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ablate ... --", description="Flags of `train`.")
    train.add_arguments(parser)
    return parser.parse_args(["--output", str(output), *flags])


def _result(args: argparse.Namespace, variant: Variant, pairs: Sequence[Pair]) -> Result | None:
    """Return the result of a model, which is trained unless it has one; None if training diverged."""
    folder, base = RunFolder(args.output / variant.name), RunFolder(args.output / "base")
    stored = folder.path / _RESULT_NAME
    if stored.is_file():
        fields = json.loads(stored.read_text(encoding="utf-8"))
        return fields and Result(**fields)
    if folder.checkpoints.exists():
        raise RunFolderError(f"{folder.path} holds a model whose training did not end; delete it to train it anew")
    print(f"{variant.name}: training", flush=True)
    flags = [*args.training, *_flags(variant.changes)]
    if folder.path != base.path:
        flags += ["--vocabulary", str(base.vocabulary)]
    result: Result | None = None
    try:
        train.run(_parsed(folder.path, flags))
        result = _measured(folder, pairs, beam_size=args.beam)
    except DivergenceError as error:
        print(f"{variant.name}: {error}", flush=True)
    write_atomically(stored, json.dumps(result and dataclasses.asdict(result), indent=2).encode())
    return result


def _flags(changes: Mapping[str, Any]) -> list[str]:
    return [part for field, value in changes.items() for part in (train.flag_of(field), str(value))]


def _measured(folder: RunFolder, pairs: Sequence[Pair], *, beam_size: int) -> Result:
    """Return what is told of a trained model: its best checkpoint, in the graphs and the search that serve."""
    trained = TrainedModel.find(folder.path)
    bundle = float_bundle(trained, folder.path / "bundle")
    graph = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision="fp32"))
    text_model = TextModel.of(graph, open_tokenizer(bundle), bundle.manifest)
    done = translate_texts(text_model, [pair.source for pair in pairs], beam_size=beam_size, batch_size=16)
    steps, evaluations = _of_log(folder, "step"), _of_log(folder, "evaluation")
    return Result(
        num_parameters=sum(parameter.numel() for parameter in trained.load().parameters()),
        steps=max(record["step"] for record in evaluations),
        perplexity=math.exp(min(record["loss"] for record in evaluations)),
        bleu=float(sacrebleu.corpus_bleu(done.texts, [[pair.target for pair in pairs]]).score),
        train_tokens_per_s=sum(record["tokens_per_s"] for record in steps) / max(1, len(steps)),
        decode_tokens_per_s=done.tokens_per_s,
    )


def _of_log(folder: RunFolder, event: str) -> list[dict[str, Any]]:
    records = [record for record in read_log(folder.log) if record["event"] == event]
    if event == "evaluation" and not records:
        raise RunFolderError(f"{folder.path} was never evaluated; train for longer, or with a lower --eval-interval")
    return records


def _table(results: Mapping[str, Result | None]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| Model | Parameters, 10^6 | Steps | Perplexity | BLEU | Learned tokens/s | Decoded tokens/s |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, result in results.items():
        if result is None:
            yield f"| {name} | diverged | | | | | |"
            continue
        speed = f"{result.train_tokens_per_s:,.0f} | {result.decode_tokens_per_s:,.0f}"
        quality = f"{result.perplexity:.2f} | {result.bleu:.2f}"
        yield f"| {name} | {result.num_parameters / 1e6:.2f} | {result.steps:,} | {quality} | {speed} |"
