"""Numbers of the paper (Vaswani et al. 2017, arXiv:1706.03762) and of courses on it, computed with the layers."""

import math

import pytest
import torch
from torch import Tensor, nn

from dragoman_export.model.config import PRESETS
from dragoman_export.model.layers import (
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from dragoman_export.model.positions import sinusoidal_positions
from dragoman_export.training.loss import smoothed_cross_entropy
from dragoman_export.training.optimizer import inverse_sqrt_rate

FLOAT = 1e-5


def near(expected: object, tolerance: float = FLOAT) -> object:
    return pytest.approx(torch.tensor(expected).numpy(), abs=tolerance)


def test_scores_are_products_of_queries_and_keys() -> None:
    tokens = torch.tensor([[1.0, 0.5], [0.9, 0.6], [-0.3, 0.8]])
    # Values of the identity return the weights: their logarithms are the scores up to a constant per row.
    weights = scaled_dot_product_attention(tokens, tokens, torch.eye(3))

    scores = torch.tensor([[1.25, 1.20, 0.10], [1.20, 1.17, 0.21], [0.10, 0.21, 0.73]])
    assert weights.numpy() == near(torch.softmax(scores / math.sqrt(2), dim=-1).tolist())


def test_attention_is_a_weighted_mean_of_the_values() -> None:
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    key = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    value = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])

    attended = scaled_dot_product_attention(query, key, value)

    # Scores are [1, 0, .5], [0, 1, .5] and [1, 1, 1] over the square root of 2.
    first = [math.exp(score / math.sqrt(2)) for score in (1.0, 0.0, 0.5)]
    row = [
        sum(weight * column for weight, column in zip(first, values, strict=True)) / sum(first)
        for values in value.T.tolist()
    ]
    assert attended[0].numpy() == near(row)
    assert attended[2].numpy() == near([1.4 / 3, 1.6 / 3])


def test_first_head_of_two_tokens() -> None:
    attention = MultiHeadAttention(4, 2)
    weight = torch.tensor([[0.5, 0.1], [-0.2, 0.4], [0.3, -0.1], [0.1, 0.3]])
    tokens = torch.tensor([[[1.0, 0.5, -0.5, 0.2], [0.3, -0.1, 0.8, 0.6]]])
    with torch.no_grad():
        nn.init.zeros_(attention.query.bias)
        attention.query.weight[:2] = weight.T

    first_head = attention.query(tokens)[0, :, :2]

    assert first_head.detach().numpy() == near([[0.27, 0.41], [0.47, 0.09]])


def test_positions_of_512_dimensions() -> None:
    assert sinusoidal_positions(6, 512)[5, :2].tolist() == pytest.approx([-0.9589, 0.2837], abs=5e-5)


@pytest.mark.parametrize("offset", [1, 7, 100])
def test_position_plus_offset_is_a_rotation(offset: int) -> None:
    table = sinusoidal_positions(200, 64).astype("float64")
    angles = [offset / 10000 ** (2 * pair / 64) for pair in range(32)]

    for pair, angle in enumerate(angles):
        sine, cosine = table[:100, 2 * pair], table[:100, 2 * pair + 1]
        assert table[offset : 100 + offset, 2 * pair] == near(sine * math.cos(angle) + cosine * math.sin(angle))
        assert table[offset : 100 + offset, 2 * pair + 1] == near(cosine * math.cos(angle) - sine * math.sin(angle))


def test_self_attention_ignores_order_without_positions() -> None:
    torch.manual_seed(1)
    layer = EncoderLayer(PRESETS["tiny"]).eval()
    tokens, order = torch.randn(1, 6, PRESETS["tiny"].d_model), torch.tensor([3, 0, 5, 1, 4, 2])
    positions = torch.from_numpy(sinusoidal_positions(6, PRESETS["tiny"].d_model))

    with torch.no_grad():
        plain, permuted = layer(tokens, None), layer(tokens[:, order], None)
        placed, placed_permuted = layer(tokens + positions, None), layer(tokens[:, order] + positions, None)

    assert permuted.numpy() == near(plain[:, order].tolist())
    assert not torch.allclose(placed_permuted, placed[:, order], atol=0.1)


@pytest.mark.parametrize("size", [64, 512])
def test_scaling_keeps_the_variance_of_scores_and_the_gradient_of_the_softmax(size: int) -> None:
    torch.manual_seed(1)
    queries, keys = torch.randn(2000, size), torch.randn(64, size)
    scores = queries @ keys.T

    def gradient(scaled: Tensor) -> float:
        weights = torch.softmax(scaled, dim=-1)
        return float((weights * (1 - weights)).mean())  # of a weight, by its own score

    assert float(scores.var()) == pytest.approx(size, rel=0.1)
    assert float((scores / math.sqrt(size)).var()) == pytest.approx(1.0, rel=0.1)
    # A scaled softmax of 64 scores has the same gradient for any size; without scaling it saturates.
    assert gradient(scores / math.sqrt(size)) == pytest.approx(0.015, rel=0.05)
    assert gradient(scores) < {64: 0.005, 512: 0.002}[size]


def test_feed_forward_of_three_dimensions() -> None:
    layer = FeedForward(3, 6)
    weight = torch.tensor(
        [[0.2, -0.1, 0.3, 0.5, -0.2, 0.1], [0.4, 0.3, -0.2, 0.1, 0.6, -0.3], [-0.1, 0.5, 0.2, -0.3, 0.1, 0.4]]
    )
    with torch.no_grad():
        layer.inner.weight.copy_(weight.T)
        nn.init.zeros_(layer.inner.bias)

    hidden = layer.inner(torch.tensor([0.5, -0.3, 0.8]))

    assert hidden.detach().numpy() == near([-0.10, 0.26, 0.37, -0.02, -0.20, 0.46])
    assert int((torch.relu(hidden) > 0).sum()) == 3
    with torch.no_grad():
        layer.outer.weight.copy_(torch.eye(6)[:3])
        nn.init.zeros_(layer.outer.bias)
    assert layer(torch.tensor([0.5, -0.3, 0.8])).detach().numpy() == near([0.0, 0.26, 0.37])


def test_smoothed_distribution_of_five_classes() -> None:
    target = torch.tensor([0.02, 0.02, 0.92, 0.02, 0.02])
    logits = torch.randn(1, 5, requires_grad=True)

    smoothed_cross_entropy(logits, torch.tensor([2]), 0.1).backward()  # type: ignore[no-untyped-call]

    # The gradient of a cross-entropy is the softmax minus the target distribution.
    assert logits.grad is not None
    assert (torch.softmax(logits, dim=-1) - logits.grad)[0].detach().numpy() == near(target.tolist())


@pytest.mark.parametrize(("step", "rate"), [(1, 1.747e-7), (4000, 6.988e-4), (100_000, 1.398e-4)])
def test_learning_rate_of_base(step: int, rate: float) -> None:
    assert inverse_sqrt_rate(step, d_model=512, warmup_steps=4000) == pytest.approx(rate, rel=5e-4)


def test_parameters_of_a_base_encoder_layer() -> None:
    with torch.device("meta"):
        layer = EncoderLayer(PRESETS["base"])
    parameters = dict(layer.named_parameters())

    def count(*parts: str) -> int:
        return sum(one.numel() for name, one in parameters.items() if all(part in name for part in parts))

    attention, feed_forward = count("self_attention.", "weight"), count("feed_forward.", "weight")
    norms = count("norm.")
    assert (attention, feed_forward, norms) == (1_048_576, 2_097_152, 2_048)
    assert 6 * (attention + feed_forward + norms) == 18_886_656
    assert 6 * sum(one.numel() for one in parameters.values()) == 18_914_304
