"""`dragoman export plot`: draws the curves of a run, its learning rate, and what a model attends to and adds."""

import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from dragoman_export.errors import RunFolderError, SettingError
from dragoman_export.importers.bundle import open_model
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.config import RunConfig, TrainingConfig
from dragoman_export.training.evaluation import decode_greedily
from dragoman_export.training.optimizer import learning_rate, relative_rate
from dragoman_export.training.report import plot_curves, read_log
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_KINDS = {
    "curves": "loss, BLEU, rate and speed over the steps of a run, from its log",
    "schedule": "learning rate over all steps of a run",
    "attention": "weights of every layer and head for a sentence and its translation",
    "positions": "what tells the place of a token",
}
_STACKS = ("cross", "encoder", "decoder")
_DPI = 110
_MAX_RATES = 2000
"""Points of a schedule's line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("path", type=Path, metavar="PATH", help="run folder; for a model also checkpoint or bundle")
    kinds = "; ".join(f"{kind}: {what}" for kind, what in _KINDS.items())
    parser.add_argument("--picture", choices=_KINDS, default="curves", help=f"{kinds}. Default: curves.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="PNG to write. Default: PICTURE.png in PATH.")
    attention = parser.add_argument_group("with --picture attention")
    attention.add_argument("--source", metavar="TEXT", help="sentence")
    attention.add_argument("--target", metavar="TEXT", help="its translation. Default: that of the model, greedy.")
    attention.add_argument("--attention", choices=_STACKS, default="cross", help="which weights. Default: cross.")
    attention.add_argument("--layers", type=int, nargs="+", metavar="N", help="layers, from 1 on. Default: all.")
    parser.add_argument("--length", type=int, default=128, metavar="T", help="positions drawn. Default: 128.")


def run(args: argparse.Namespace) -> int:
    """Draw.

    Raises:
        RunFolderError: if the folder lacks what is drawn.
        SettingError: naming a flag that is missing or out of range.
    """
    output = args.output or (args.path if args.path.is_dir() else args.path.parent) / f"{args.picture}.png"
    draw = {"curves": _curves, "schedule": _schedule, "attention": _attention, "positions": _positions}[args.picture]
    temporary = output.with_name(f".{os.getpid()}.{output.name}")
    draw(args).savefig(temporary, dpi=_DPI)
    temporary.replace(output)
    print(output)
    return 0


def _curves(args: argparse.Namespace) -> Figure:
    log = RunFolder(args.path).log
    if not log.exists():
        raise RunFolderError(f"{args.path} holds no log")
    return plot_curves(read_log(log))


def _schedule(args: argparse.Namespace) -> Figure:
    config = RunConfig.from_dict(RunFolder(args.path).read_settings())
    return plot_schedule(config.training, d_model=config.model.d_model)


def plot_schedule(config: TrainingConfig, *, d_model: int) -> Figure:
    """Return the rates of each optimizer up to `max_steps`, or ten times the warm-up where that is not set."""
    end = config.max_steps or 10 * config.warmup_steps
    steps = np.unique(np.linspace(1, end, min(end, _MAX_RATES)).round()).astype(int).tolist()
    figure = Figure(figsize=(8, 4), layout="constrained")
    axis = figure.subplots()
    axis.plot(steps, [learning_rate(step, config, d_model=d_model) for step in steps], label="Adam")
    if config.optimizer == "muon":
        axis.plot(steps, [config.muon_lr * relative_rate(step, config) for step in steps], label="Muon")
    axis.set(xlabel="step", ylabel="learning rate")
    axis.grid(alpha=0.3)
    axis.legend()
    return figure


def _positions(args: argparse.Namespace) -> Figure:
    if args.length < 1:
        raise SettingError("--length", args.length, "at least 1")
    model, _ = open_model(args.path)
    tables = model.position_tables(args.length)
    if not tables:
        raise SettingError("--picture", "positions", "another one: this network has no positions")
    figure = Figure(figsize=(8, 4 * len(tables)), layout="constrained")
    for axis, (name, table) in zip(np.atleast_1d(figure.subplots(len(tables))), tables.items(), strict=True):
        image = axis.imshow(table.detach().numpy(), aspect="auto", cmap="RdBu", interpolation="nearest")
        axis.set(title=name, xlabel="element", ylabel="position")
        figure.colorbar(image, ax=axis)
    return figure


def _attention(args: argparse.Namespace) -> Figure:
    if args.source is None:
        raise SettingError("--source", None, "a sentence")
    model, tokenizer = open_model(args.path)
    source_ids, target_ids = tokenizer.encode_pair(args.source, args.target or "")
    if args.target is None:
        target_ids = [*decode_greedily(model, torch.tensor([source_ids]), None)[0], tokenizer.eos_id]
    weights = attention_weights(model, source_ids, target_ids)[args.attention]
    rows, columns = _labels(tokenizer, source_ids, target_ids, args.attention)
    layers = args.layers or range(1, len(weights) + 1)
    if not all(1 <= layer <= len(weights) for layer in layers):
        raise SettingError("--layers", list(layers), f"from 1 to {len(weights)}")
    return plot_attention({layer: weights[layer - 1] for layer in layers}, rows, columns)


def attention_weights(model: Transformer, source_ids: Sequence[int], target_ids: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights with which a network attends when it scores a target.

    Args:
        model: in evaluation mode, on a CPU.
        source_ids: S token ids, EOS last.
        target_ids: T token ids, EOS last.

    Returns:
        `cross` [L, H, T, S] and `decoder` [L, H, T, T] of the decoder, `encoder` [L, H, S, S]; rows add up to 1. Row t
        of the decoder's chose target token t, and saw in column t what precedes it.
    """
    seen: dict[str, list[Tensor]] = {stack: [] for stack in _STACKS}

    def keep(stack: str, _: nn.Module, __: tuple[Tensor, ...], weights: Tensor) -> None:
        seen[stack].append(weights[0])

    # attention weights pass through a dropout of their own, which keeps them as they are here
    blocks = [(layer.self_attention, "encoder") for layer in model.encoder.layers]
    for layer in model.decoder.layers:
        blocks += [(layer.self_attention, "decoder"), (layer.cross_attention, "cross")]
    hooks = [block.dropout.register_forward_hook(partial(keep, stack)) for block, stack in blocks]  # type: ignore[union-attr]
    try:
        with torch.inference_mode():
            decoder_ids = torch.tensor([[model.config.start_id, *target_ids[:-1]]])
            model.decode_states(decoder_ids, model.encode(torch.tensor([source_ids]), None), None)
    finally:
        for hook in hooks:
            hook.remove()
    return {stack: torch.stack(weights) for stack, weights in seen.items()}


def _labels(
    tokenizer: SentencePieceTokenizer, source_ids: Sequence[int], target_ids: Sequence[int], stack: str
) -> tuple[list[str], list[str]]:
    """Return the tokens of rows and columns."""
    source, target = tokenizer.source_pieces(source_ids), tokenizer.pieces(target_ids)
    if stack == "encoder":
        return source, source
    return target, source if stack == "cross" else ["start", *target[:-1]]


def plot_attention(weights: Mapping[int, Tensor], rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Return a heatmap of each head, [H, T, S] by layer, with all layers below each other on one scale."""
    num_heads = len(next(iter(weights.values())))
    height, width = 0.19 * len(rows) + 0.3, 0.19 * len(columns) + 0.3
    size = (num_heads * width + 1.5, len(weights) * height + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(weights), num_heads, squeeze=False, sharex=True, sharey=True)
    for line, (layer, heads) in zip(axes, weights.items(), strict=True):
        for head, (axis, matrix) in enumerate(zip(line, heads, strict=True), start=1):
            image = axis.imshow(matrix.numpy(), vmin=0.0, vmax=1.0, cmap="viridis", interpolation="nearest")
            axis.set_title(f"layer {layer}, head {head}", fontsize=8)
            axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7, parse_math=False)
            axis.set_yticks(range(len(rows)), rows, fontsize=7, parse_math=False)
    figure.colorbar(image, ax=axes, shrink=0.6, label="weight")
    return figure
