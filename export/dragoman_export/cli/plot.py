"""`dragoman export plot`: plots curves and schedule of a run, or attention and positions of a model."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from dragoman_export.errors import RunFolderError, SettingError
from dragoman_export.evaluation.torch_search import translate_ids
from dragoman_export.model.transformer import Transformer
from dragoman_export.trained_model import open_model
from dragoman_export.training.config import RunConfig, TrainingConfig
from dragoman_export.training.optimizer import learning_rate, relative_rate
from dragoman_export.training.report import plot_curves, read_log, save_figure
from dragoman_export.training.run_folder import RunFolder

_KINDS = {
    "curves": "loss, BLEU, rate and speed of a run, from its log",
    "schedule": "learning rate of a run",
    "attention": "weights of every layer and head for a sentence and its translation",
    "positions": "position encodings",
}
_STACKS = ("cross", "encoder", "decoder")
_MAX_RATES = 2000  # points of the schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("path", type=Path, metavar="PATH", help="run folder, or a checkpoint or bundle")
    kinds = "; ".join(f"{kind}: {what}" for kind, what in _KINDS.items())
    parser.add_argument("--picture", choices=_KINDS, default="curves", help=f"{kinds}. Default: curves.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="PNG to write. Default: PICTURE.png in PATH.")
    attention = parser.add_argument_group("with --picture attention")
    attention.add_argument("--source", metavar="TEXT", help="sentence")
    attention.add_argument("--target", metavar="TEXT", help="its translation. Default: greedy translation.")
    attention.add_argument("--attention", choices=_STACKS, default="cross", help="which weights. Default: cross.")
    attention.add_argument("--layers", type=int, nargs="+", metavar="N", help="layers, counted from 1. Default: all.")
    parser.add_argument("--length", type=int, default=128, metavar="T", help="number of positions. Default: 128.")


def run(args: argparse.Namespace) -> int:
    """Plot; RunFolderError if a file is missing, SettingError if a flag is missing or out of range."""
    output = args.output or (args.path if args.path.is_dir() else args.path.parent) / f"{args.picture}.png"
    if args.picture == "schedule":
        config = RunConfig.from_dict(RunFolder(args.path).read_settings())
        figure = plot_schedule(config.training, d_model=config.model.d_model)
    else:
        figure = {"curves": _curves, "attention": _attention, "positions": _positions}[args.picture](args)
    save_figure(figure, output)
    print(output)
    return 0


def _curves(args: argparse.Namespace) -> Figure:
    log = RunFolder(args.path).log
    if not log.exists():
        raise RunFolderError(f"{args.path} has no log")
    return plot_curves(read_log(log))


def plot_schedule(config: TrainingConfig, *, d_model: int) -> Figure:
    """Return the rates of each optimizer up to `max_steps`, or ten times the warm-up if it is not set."""
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
        raise SettingError("--picture", "positions", "another picture: this network has no positions")
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
        target_ids = [
            *translate_ids(model, [source_ids], batch_tokens=1, beam_size=1, length_penalty=0.0)[0],
            tokenizer.eos_id,
        ]
    weights = attention_weights(model, source_ids, target_ids)[args.attention]
    source, target = tokenizer.source_pieces(source_ids), tokenizer.pieces(target_ids)
    rows = source if args.attention == "encoder" else target
    columns = ["start", *target[:-1]] if args.attention == "decoder" else source
    layers = args.layers or range(1, len(weights) + 1)
    if not all(1 <= layer <= len(weights) for layer in layers):
        raise SettingError("--layers", list(layers), f"from 1 to {len(weights)}")
    return plot_attention({layer: weights[layer - 1] for layer in layers}, rows, columns)


def attention_weights(model: Transformer, source_ids: Sequence[int], target_ids: Sequence[int]) -> dict[str, Tensor]:
    """Return the attention weights of a network, in evaluation mode on a CPU, that scores a target.

    Token ids of source (S) and target (T) have EOS last. The result is `cross` [L, H, T, S] and `decoder` [L, H, T, T]
    of the decoder, `encoder` [L, H, S, S]; rows sum to 1. Row t of the decoder predicts target token t; its column t is
    the preceding token.
    """
    seen: dict[str, list[Tensor]] = {stack: [] for stack in _STACKS}

    def keep(stack: str, _: nn.Module, __: tuple[Tensor, ...], weights: Tensor) -> None:
        seen[stack].append(weights[0])

    # the dropout of attention weights is the identity in evaluation mode
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


def plot_attention(weights: Mapping[int, Tensor], rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Return a heatmap of each head, [H, T, S] by layer, on one scale."""
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
