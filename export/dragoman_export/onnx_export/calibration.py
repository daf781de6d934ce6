"""Measures how the inputs of each product are rounded to 7 or 8 bits, on given sentences."""

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_export.onnx_export.blocks import projection_table
from dragoman_export.onnx_export.quantize import SMALLEST_SCALE, Rounding

_MEASURED_TOGETHER = 16  # sentences per forward pass; one alone would read all weights for a few rows
_NUM_ROWS = 1024  # tokens per side that are measured; the mean is then known to 1/30 of a rounding error
_NUM_BINS = 4096  # of a histogram of activations
_MAX_ERROR_SHARE = 0.0003  # of the variance of the states; inputs with a larger error with 127 levels use 255
_CUTS = np.geomspace(0.1, 1.0, 20)  # candidate ends of the represented range, as shares of the extreme values


@torch.inference_mode()
def calibrate(
    model: Transformer, pairs: Sequence[tuple[list[int], list[int]]], *, levels: Literal[127, 255] = 255
) -> dict[str, Rounding]:
    """Return the rounding of each projection's input, measured while sentences are translated.

    The pairs are source and target token ids, EOS last, of a few hundred real sentences. Inputs that lose too much
    precision with 127 levels use 255. The result is by path of the
    projection, such as `encoder.layers.0.self_attention.query`, or of the output table; projections with only zero
    inputs are omitted.
    """
    rows: dict[str, list[Tensor]] = {}
    masks: tuple[Tensor, Tensor]  # of the sources and targets of the batch: True at real tokens
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
            source_ids, source_mask = padded([source for source, _ in batch], model.config.pad_id)
            inputs, target_mask = padded([[model.config.start_id, *target[:-1]] for _, target in batch], 0)
            masks = source_mask, target_mask
            states = model.decode_states(inputs, model.encode(source_ids, source_mask), source_mask)
            note(projection_table(model.config).removesuffix(".weight"), states)
    finally:
        for hook in hooks:
            hook.remove()
    found = {path: _choose_rounding(torch.cat(chosen).float().numpy(), levels) for path, chosen in rows.items()}
    return {path: rounding for path, rounding in found.items() if rounding is not None}


def _choose_rounding(states: FloatArray, levels: Literal[127, 255]) -> Rounding | None:
    rounding = fit_rounding(states, levels)
    if rounding is None or rounding.levels == 255:
        return rounding
    error = np.square(_rounded(states, rounding.scale, rounding.zero_point, levels) - states).mean()
    return rounding if error <= _MAX_ERROR_SHARE * states.var() else fit_rounding(states, 255)


def fit_rounding(states: FloatArray, levels: Literal[127, 255] = 255) -> Rounding | None:
    """Return the rounding of states [rows, inputs] with the smallest mean squared error; None if all are zeros.

    Clipping the few extreme values makes all others more precise. The range may be asymmetric, so that no integers are
    spent on values that do not occur, such as large negative outputs of swish.
    """
    least, most = min(float(states.min()), 0.0), max(float(states.max()), 0.0)
    if most - least < levels * SMALLEST_SCALE:
        return None
    counts, edges = np.histogram(states, _NUM_BINS, (least, most))
    seen = counts > 0
    counts, centres = counts[seen], ((edges[:-1] + edges[1:]) / 2)[seen]

    def error(scale: float, zero_point: int) -> float:
        return float(counts @ np.square(_rounded(centres, scale, zero_point, levels) - centres))

    ranges = itertools.product(np.unique(least * _CUTS), np.unique(most * _CUTS))
    scales = ((float(last - first) / levels, first) for first, last in ranges)
    # zero is represented exactly
    scale, zero_point = min(((scale, round(-first / scale)) for scale, first in scales), key=lambda each: error(*each))
    means = states.mean(axis=0), _rounded(states, scale, zero_point, levels).mean(axis=0)
    return Rounding(scale=scale, zero_point=zero_point, levels=levels, means=means)


def _rounded(numbers: FloatArray, scale: float, zero_point: int, levels: int) -> FloatArray:
    integers: FloatArray = np.clip(np.rint(numbers / scale), -zero_point, levels - zero_point)
    return integers * scale


def padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, T] and the mask of real tokens."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]
