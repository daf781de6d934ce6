"""Sizes and random weights of tiny checkpoints."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# odd sizes of vocabularies, filled with unused words
NUM_TOKENS, NUM_SOURCE_TOKENS = 101, 97
D, HEADS, FFN, LAYERS, POSITIONS = 16, 2, 24, 2, 64
# added to the logit of EOS, so that most targets end before the limit
_EOS_LOGIT, _EOS_BIAS = 8.0, 3.0


def filled(words: Sequence[str], size: int) -> list[str]:
    return [*words, *(f"madeupword{number:04d}" for number in range(size - len(words)))]


class Draw:
    """Random tensors, deterministic per seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int, std: float = 0.4) -> Tensor:
        return torch.randn(*shape, generator=self._generator) * std

    def linear(self, name: str, outputs: int, inputs: int, *, has_bias: bool = True) -> dict[str, Tensor]:
        weight, bias = self.matrix(outputs, inputs), self.matrix(outputs, std=0.1)
        return {f"{name}.weight": weight, **({f"{name}.bias": bias} if has_bias else {})}

    def norm(self, name: str, *, has_bias: bool = True) -> dict[str, Tensor]:
        weight, bias = 1 + self.matrix(D, std=0.2), self.matrix(D, std=0.1)
        return {f"{name}.weight": weight, **({f"{name}.bias": bias} if has_bias else {})}

    def end_by_itself(self, state: dict[str, Tensor], norm: str, eos: Tensor) -> None:
        """Favour EOS, with random signs: shared tables would repeat each token."""
        state[f"{norm}.weight"] *= torch.sign(self.matrix(D))
        state[f"{norm}.bias"] = _EOS_LOGIT * eos / eos.square().sum()

    def projection_bias(self, size: int) -> Tensor:
        """Favour EOS (3) and exclude padding (1), which OpenNMT-py and eole may generate otherwise."""
        bias = self.matrix(size, std=0.1)
        bias[3] += _EOS_BIAS
        bias[1] = -100.0
        return bias


def sinusoids(*, is_in_turn: bool) -> Tensor:
    """Return the table [5000, 1, D] that OpenNMT-py and eole store."""
    steps = torch.arange(D // 2) / (D // 2 if is_in_turn else D // 2 - 1)
    angles = torch.arange(5000)[:, None] * torch.exp(steps * -math.log(10000.0))
    parts = torch.stack((angles.sin(), angles.cos()), dim=-1 if is_in_turn else 1)
    return parts.flatten(1)[:, None]
