"""How what enters each product is rounded to 8 bits, measured while given sentences are translated."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_export.onnx_export.blocks import projection_table

LARGEST_INTEGER = 255
"""Of rounded activations; the smallest is 0."""

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Below it floats lose digits: what has such a scale, as nothing but zeros has, counts as zeros."""

_MEASURED_TOGETHER = 16
"""Sentences whose activations are measured at once: one alone reads all weights for a few rows."""

_NUM_ROWS = 1024
"""Tokens whose activations are looked at, of each side: their mean is known to a thirtieth of a rounding error."""

_NUM_BINS = 4096
"""Of a histogram of activations."""

_CUTS = np.geomspace(0.1, 1.0, 20)
"""Where the range that is represented may end, as shares of the largest and of the smallest number seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How what enters a product becomes integers: x / scale + zero_point, to nearest even, cut to 0 to 255."""

    scale: float
    zero_point: int
    means: tuple[FloatArray, FloatArray] | None = None
    """Of what enters and of what its integers represent, each [inputs], over the text it was measured on. None: not
    known, as of a bundle that was imported."""


@torch.inference_mode()
def calibrate(model: Transformer, pairs: Sequence[tuple[list[int], list[int]]]) -> dict[str, Rounding]:
    """Return how to round what enters each projection, as it is while given sentences are translated.

    Args:
        model: in evaluation mode.
        pairs: source and target token ids, EOS last; a few hundred real sentences.

    Returns:
        By the path of the projection, such as `encoder.layers.0.self_attention.query`; of the projection to the
        vocabulary by the path of its table. One that only zeros entered is left out.
    """
    rows: dict[str, list[Tensor]] = {}
    masks: tuple[Tensor, Tensor]  # of the sources and targets at hand: True at real tokens
    strides = [max(1, sum(len(pair[side]) for pair in pairs) // _NUM_ROWS) for side in (0, 1)]

    def note(path: str, states: Tensor) -> None:
        is_source = path.startswith("encoder.") or path.endswith((".cross_attention.key", ".cross_attention.value"))
        side = 0 if is_source else 1
        rows.setdefault(path, []).append(states[masks[side]][:: strides[side]].clone())

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, path=path: note(path, inputs[0]))
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    by_length = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1])))
    try:
        for start in tqdm(range(0, len(pairs), _MEASURED_TOGETHER), desc="calibrating", unit="batch", leave=False):
            batch = by_length[start : start + _MEASURED_TOGETHER]
            source_ids, source_mask = _padded([source for source, _ in batch], model.config.pad_id)
            inputs, target_mask = _padded([[model.config.start_id, *target[:-1]] for _, target in batch], 0)
            masks = source_mask, target_mask
            states = model.decode_states(inputs, model.encode(source_ids, source_mask), source_mask)
            note(projection_table(model.config).removesuffix(".weight"), states)
    finally:
        for hook in hooks:
            hook.remove()
    found = {path: fit_rounding(torch.cat(chosen).float().numpy()) for path, chosen in rows.items()}
    return {path: rounding for path, rounding in found.items() if rounding is not None}


def fit_rounding(states: FloatArray) -> Rounding | None:
    """Return the rounding of states [rows, inputs] with the smallest mean squared error; None if all are zeros.

    A range that leaves out the few largest and smallest numbers makes all others more precise, and one that need not be
    symmetric spends no integers on what does not occur, as the negative numbers that swish has few of.
    """
    least, most = min(float(states.min()), 0.0), max(float(states.max()), 0.0)
    if most - least < LARGEST_INTEGER * SMALLEST_SCALE:
        return None
    counts, edges = np.histogram(states, _NUM_BINS, (least, most))
    seen = counts > 0
    counts, centres = counts[seen], ((edges[:-1] + edges[1:]) / 2)[seen]

    def error(scale: float, zero_point: int) -> float:
        return float(counts @ np.square(_rounded(centres, scale, zero_point) - centres))

    ranges = itertools.product(np.unique(least * _CUTS), np.unique(most * _CUTS))
    scale, zero_point = min((_scale_of(*ends) for ends in ranges), key=lambda found: error(*found))
    means = states.mean(axis=0), _rounded(states, scale, zero_point).mean(axis=0)
    return Rounding(scale=scale, zero_point=zero_point, means=means)


def _scale_of(least: float, most: float) -> tuple[float, int]:
    """Return the scale and zero point that represent a range in which zero lies; zero is represented exactly."""
    scale = float(most - least) / LARGEST_INTEGER
    return scale, round(-least / scale)


def _rounded(numbers: FloatArray, scale: float, zero_point: int) -> FloatArray:
    """Return what the integers of numbers represent."""
    integers: FloatArray = np.clip(np.rint(numbers / scale), -zero_point, LARGEST_INTEGER - zero_point)
    return integers * scale


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, T] and True where they are no padding."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]
