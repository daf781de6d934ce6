"""Sampling: temperature, top_k and top_p, and the random generator of a segment.

Everything here depends on one segment's own rows only, so that other segments cannot change a draw.
"""

import numpy as np

from service.datatypes import SamplingConfig
from service.decoding.step_model import DoubleArray, FloatArray, IntArray


class Sampler:
    """Draws the next tokens of one segment's samples: hypotheses that do not compete with each other."""

    def __init__(self, config: SamplingConfig, *, num_samples: int) -> None:
        self._config = config
        self._num_samples = num_samples
        # Philox: its stream is fixed by the seed on every platform and by numpy's compatibility policy.
        self._generator = np.random.Generator(np.random.Philox(config.seed))

    def num_choices(self, vocabulary_size: int) -> int:
        """Return how many of the likeliest tokens a draw may choose among."""
        return min(self._config.top_k or vocabulary_size, vocabulary_size)

    def draw(self, log_probs: FloatArray) -> IntArray:
        """Return the column drawn in each row; takes as many random numbers as there are samples in all.

        Args:
            log_probs: [N, C] of the live samples, descending in C; -inf stands for tokens not allowed, and the
                first column is finite.
        """
        uniforms = self._generator.random(self._num_samples)[: len(log_probs)]
        weights = remaining_weights(log_probs, self._config)
        reached = weights.cumsum(axis=1)
        columns = (reached <= uniforms[:, None] * reached[:, -1:]).sum(axis=1)
        # Rounding may make the product the whole sum, which no column exceeds.
        drawn: IntArray = np.minimum(columns, (weights > 0).sum(axis=1) - 1)
        return drawn


def remaining_weights(log_probs: FloatArray, config: SamplingConfig) -> DoubleArray:
    """Return the weights after temperature, then top_k, then top_p, relative to the likeliest token of each row.

    top_p keeps a token (Holtzman et al. 2020, arXiv:1904.09751) if the likelier ones do not reach the sum without it;
    the sum is over what top_k keeps, normalised again.

    Args:
        log_probs: [N, C] descending in C, -inf for tokens not allowed, the first column finite.
        config: of the segment.

    Returns:
        [N, min(C, top_k)] weights, not normalised: the first of each row is 1; 0 if the token cannot be drawn.
    """
    considered = log_probs[:, : config.top_k].astype(np.float64)
    weights: DoubleArray = np.exp((considered - considered[:, :1]) / config.temperature)
    if config.top_p < 1:
        reached = weights.cumsum(axis=1)
        likelier = np.zeros_like(reached)
        likelier[:, 1:] = reached[:, :-1]
        weights[likelier >= config.top_p * reached[:, -1:]] = 0.0
    return weights
