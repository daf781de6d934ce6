"""`dragoman export ablate`: trains variants of a model and compares them in a table.

The rows are those of table 3 of Vaswani et al. 2017 (arXiv:1706.03762), and later proposals (F).
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
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.reader import Pair
from dragoman_export.errors import DivergenceError, RunFolderError, SettingError
from dragoman_export.evaluation.ensemble import float_bundle
from dragoman_export.evaluation.translation import TextModel, translate_texts
from dragoman_export.trained_model import TrainedModel
from dragoman_export.training.checkpoint import write_atomically
from dragoman_export.training.config import RunConfig
from dragoman_export.training.report import read_log
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer

_GROUPS: Mapping[str, str] = {
    "A": "number of heads, same width",
    "B": "size of heads",
    "C": "size of the model",
    "D": "dropout and label smoothing",
    "E": "positions",
    "F": "norms, activations, shared key heads, depth and tables",
}
_COLUMNS = ("Model", "Parameters, 10^6", "Steps", "Perplexity", "BLEU", "Learned tokens/s", "Decoded tokens/s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "output", help="directory with a run folder per model")
    parser.add_argument("--test", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>reference lines")
    groups = "; ".join(f"{name}: {text}" for name, text in _GROUPS.items())
    parser.add_argument("--rows", default=",".join(_GROUPS), metavar="LIST", help=f"groups of models ({groups}; all)")
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
    """Results of a model."""

    num_parameters: int
    steps: int
    perplexity: float  # of the tokens of the development text, without label smoothing
    bleu: float
    train_tokens_per_s: float  # target tokens
    decode_tokens_per_s: float  # target tokens of the float32 graphs on one core, 16 sentences at a time


def run(args: argparse.Namespace) -> int:
    """Train and score the models without a result; print the table and write it to the output."""
    groups = args.rows.split(",")
    if unknown := set(groups) - _GROUPS.keys():
        raise SettingError("--rows", ",".join(sorted(unknown)), f"some of {', '.join(_GROUPS)}, separated by commas")
    if {"--output", "--resume"} & set(args.training):
        raise SettingError("--", " ".join(args.training), "flags of `train` without --output and --resume")
    base = train.new_config(_parsed(args.output, args.training))
    pairs = read_pairs(args.test, args.limit)
    rows = [f"| {' | '.join(_COLUMNS)} |", "| --- |" + " ---: |" * (len(_COLUMNS) - 1)]
    for variant in variants(base, groups):
        rows.append(_row(variant.name, _result(args, variant, pairs)))
        write_atomically(args.output / "table.md", "".join(f"{row}\n" for row in rows).encode())
    print("\n".join(rows))
    return 0


def variants(base: RunConfig, groups: Sequence[str]) -> Iterator[Variant]:
    """Yield the base and the variants of the requested groups, without duplicates."""
    yield Variant(name="base", changes={})
    old = {**base.model.to_dict(), **base.training.to_dict()}
    seen: list[Mapping[str, Any]] = []
    for group in groups:
        for changes in _changes(base)[group]:
            if changes not in seen and any(old[field] != value for field, value in changes.items()):
                seen.append(changes)
                name = "-".join(f"{field}-{value}" for field, value in changes.items())
                yield Variant(name=f"{group}-{name}", changes=changes)


def _changes(base: RunConfig) -> dict[str, list[dict[str, Any]]]:
    model = base.model
    heads, depth = model.num_heads, (model.num_encoder_layers, model.num_decoder_layers)
    layers = [
        {"num_encoder_layers": max(1, round(depth[0] * factor)), "num_decoder_layers": max(1, round(depth[1] * factor))}
        for factor in (0.5, 2)
    ]
    widths = [{name: int(getattr(model, name) * factor)} for name in ("d_model", "ffn_size") for factor in (0.5, 2)]
    return {
        "A": [
            {"num_heads": count}
            for count in sorted({1, max(1, heads // 2), 2 * heads, 4 * heads})
            if model.head_dim is None and model.d_model % count == 0
        ],
        "B": [{"head_dim": max(2, model.head_size // part)} for part in (4, 2)],
        "C": [*layers, *widths],
        "D": [{name: share} for name in ("dropout", "label_smoothing") for share in (0.0, 0.2)],
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


def _result(args: argparse.Namespace, variant: Variant, pairs: Sequence[Pair]) -> Result | None:
    # Trains the model unless it has a result; None if training diverged.
    folder, base = RunFolder(args.output / variant.name), RunFolder(args.output / "base")
    stored = folder.path / "ablation.json"
    if stored.is_file():
        fields = json.loads(stored.read_text(encoding="utf-8"))
        return fields and Result(**fields)
    if folder.checkpoints.exists():
        raise RunFolderError(f"{folder.path} contains an unfinished training: delete the folder to train again")
    print(f"{variant.name}: training", flush=True)
    changes = [part for field, value in variant.changes.items() for part in (train.flag_of(field), str(value))]
    vocabulary = [] if folder.path == base.path else ["--vocabulary", str(base.vocabulary)]
    result: Result | None = None
    try:
        train.run(_parsed(folder.path, [*args.training, *changes, *vocabulary]))
        result = _measured(folder, pairs, beam_size=args.beam)
    except DivergenceError as error:
        print(f"{variant.name}: {error}", flush=True)
    write_atomically(stored, json.dumps(result and dataclasses.asdict(result), indent=2).encode())
    return result


def _measured(folder: RunFolder, pairs: Sequence[Pair], *, beam_size: int) -> Result:
    # Scores the best checkpoint with the graphs and the search of the service.
    trained = TrainedModel.find(folder.path)
    bundle = float_bundle(trained, folder.path / "bundle")
    graph = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision="fp32"))
    model = TextModel.of(graph, open_tokenizer(bundle), bundle.manifest)
    done = translate_texts(model, [pair.source for pair in pairs], beam_size=beam_size, batch_size=16)
    records = read_log(folder.log)
    evaluations = [record for record in records if record["event"] == "evaluation"]
    if not evaluations:
        raise RunFolderError(f"{folder.path} has no evaluation: train for longer, or with a lower --eval-interval")
    speeds = [record["tokens_per_s"] for record in records if record["event"] == "step"]
    return Result(
        num_parameters=sum(parameter.numel() for parameter in trained.load().parameters()),
        steps=max(record["step"] for record in evaluations),
        perplexity=math.exp(min(record["loss"] for record in evaluations)),
        bleu=float(sacrebleu.corpus_bleu(done.texts, [[pair.target for pair in pairs]]).score),
        train_tokens_per_s=sum(speeds) / max(1, len(speeds)),
        decode_tokens_per_s=done.tokens_per_s,
    )


def _row(name: str, result: Result | None) -> str:
    if result is None:
        return f"| {name} | diverged | | | | | |"
    quality = f"{result.num_parameters / 1e6:.2f} | {result.steps:,} | {result.perplexity:.2f} | {result.bleu:.2f}"
    return f"| {name} | {quality} | {result.train_tokens_per_s:,.0f} | {result.decode_tokens_per_s:,.0f} |"
