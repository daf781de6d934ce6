"""Tables of position encodings that are computed, not learned; NumPy only, so that the ONNX export needs no PyTorch."""

import math

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import SinusoidLayout


def sinusoidal_positions(
    length: int, d_model: int, *, offset: int = 0, layout: SinusoidLayout = "interleaved"
) -> NDArray[np.float32]:
    """Return the position encodings [length, d_model] of section 3.5 of Vaswani et al. 2017, or a variant.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same angle. Marian puts all sines before
    all cosines. fairseq does so too, and divides by 10000^(2i / (d_model - 2)). Positions start at `offset`.
    """
    num_steps = max(d_model - 2, 1) if layout == "fairseq" else d_model
    angles = _angles(offset, length, d_model, num_steps)  # [length, d_model / 2]
    parts = np.sin(angles), np.cos(angles)
    if layout == "interleaved":
        return np.stack(parts, axis=-1).reshape(length, -1).astype(np.float32)
    return np.concatenate(parts, axis=-1).astype(np.float32)


def rotary_positions(length: int, head_size: int) -> NDArray[np.float32]:
    """Return cosines, then sines, of the rotary angles [length, D].

    The angles are the paper's over the width of a head (Su et al. 2021, arXiv:2104.09864, equation 15). Element i forms
    a pair with element i + D / 2.
    """
    angles = _angles(0, length, head_size, head_size)
    return np.concatenate((np.cos(angles), np.sin(angles)), axis=-1).astype(np.float32)


def _angles(first: int, length: int, width: int, num_steps: int) -> NDArray[np.float64]:
    positions = np.arange(first, first + length, dtype=np.float64)
    frequencies = np.exp(np.arange(0, width, 2, dtype=np.float64) * (-math.log(10000.0) / num_steps))
    return positions[:, None] * frequencies
