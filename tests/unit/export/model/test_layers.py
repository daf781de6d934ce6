import math

import pytest
import torch
from torch import nn

from dragoman_export.model.config import PRESETS
from dragoman_export.model.layers import (
    Dropout,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    rotary_positions,
    scaled_dot_product_attention,
    sinusoidal_positions,
)
from dragoman_service.bundle.architecture import Activation

NUMBERS = 1_000_000
FOUR_SIGMA = 4 * (0.1 * 0.9 / NUMBERS) ** 0.5  # Four standard deviations of the share that is dropped.


def test_dropout_preserves_the_mean() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.1)(torch.ones(NUMBERS))

    share = float((dropped == 0).double().mean())
    assert share == pytest.approx(26 / 256, abs=FOUR_SIGMA)  # 0.1 rounded to 256ths
    assert float(dropped.double().mean()) == pytest.approx(1.0, abs=2 * FOUR_SIGMA)


def test_dropout_scales_uniformly() -> None:
    dropped = Dropout(0.5)(torch.ones(3, 5, 7))

    assert set(dropped.flatten().tolist()) == {0.0, 2.0}


def test_dropout_of_neighbours_is_independent() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.5)(torch.ones(NUMBERS)) == 0

    both = float((dropped[1:] & dropped[:-1]).double().mean())
    assert both == pytest.approx(0.25, abs=0.002)


@pytest.mark.parametrize("dropout", [Dropout(0.0), Dropout(0.5).eval()])
def test_dropout_is_off_at_0_and_in_evaluation(dropout: Dropout) -> None:
    states = torch.randn(100)

    assert dropout(states) is states


def test_dropout_is_deterministic_per_seed() -> None:
    dropout, states = Dropout(0.3), torch.randn(1000)

    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(dropout(states))

    assert torch.equal(*results)


def test_dropout_keeps_the_type() -> None:
    assert Dropout(0.3)(torch.ones(9, dtype=torch.bfloat16)).dtype == torch.bfloat16


QUERY = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
KEY = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
VALUE = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])

TO_THREE_DIGITS = 5e-4
# The published result rounds the attention weights (.456 .225 .320) to three digits before it multiplies by them.
WEIGHTS_ROUNDED_FIRST = 1e-3


@pytest.mark.parametrize(
    ("expected", "tolerance"),
    [
        ([[0.385, 0.615], [0.547, 0.453], [0.467, 0.533]], TO_THREE_DIGITS),
        ([[0.386, 0.615], [0.547, 0.454], [0.467, 0.533]], WEIGHTS_ROUNDED_FIRST),
    ],
)
def test_attention_worked_example(expected: list[list[float]], tolerance: float) -> None:
    attended = scaled_dot_product_attention(QUERY, KEY, VALUE)

    torch.testing.assert_close(attended, torch.tensor(expected), atol=tolerance, rtol=0)


def test_query_with_one_key_returns_its_value() -> None:
    mask = torch.eye(3, dtype=torch.bool)

    attended = scaled_dot_product_attention(QUERY, KEY, VALUE, mask)

    assert torch.equal(attended, VALUE)


def test_attention_dropout_is_for_training_only() -> None:
    torch.manual_seed(1)
    attention, states = MultiHeadAttention(8, 2, dropout=0.5), torch.randn(2, 5, 8)
    seen = attention.project(states)

    served = attention.eval()(states, seen)

    assert torch.equal(served, attention(states, seen))
    assert not torch.allclose(served, attention.train()(states, seen))
    dropped = scaled_dot_product_attention(QUERY, KEY, torch.ones(3, 1), dropout=Dropout(0.5))
    assert not torch.allclose(dropped, torch.ones(3, 1))  # weights that are dropped no longer add up to 1


def test_causal_attention_ignores_later_positions() -> None:
    attention, states = MultiHeadAttention(8, 2), torch.randn(1, 5, 8)
    changed = states.clone()
    changed[:, 3:] = torch.randn(1, 2, 8)

    one, other = (attention(x, attention.project(x), is_causal=True) for x in (states, changed))

    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.equal(one[:, 3:], other[:, 3:])


def test_sinusoids_of_section_3_5_of_the_paper() -> None:
    first, second = sinusoidal_positions(2, 4)

    assert first.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert second.tolist() == pytest.approx([0.841, 0.540, 0.010, 1.000], abs=5e-4)


def test_marian_sinusoids_have_sines_first() -> None:
    paper, halves = sinusoidal_positions(9, 8), sinusoidal_positions(9, 8, layout="halves")

    assert torch.equal(halves, torch.cat((paper[:, 0::2], paper[:, 1::2]), dim=1))


def test_sinusoids_with_offset() -> None:
    whole, later = sinusoidal_positions(9, 8), sinusoidal_positions(7, 8, offset=2)

    assert torch.equal(later, whole[2:])


def test_fairseq_wavelengths() -> None:
    (row,) = sinusoidal_positions(1, 6, offset=3, layout="fairseq").tolist()

    angles = [3.0, 3.0 / 100, 3.0 / 10000]
    assert row == pytest.approx([*map(math.sin, angles), *map(math.cos, angles)], abs=1e-6)


def test_rotary_scores_depend_on_distance_only() -> None:
    attention, rotary = MultiHeadAttention(8, 1), rotary_positions(12, 8)
    states = torch.randn(1, 3, 8)

    near, far = (
        attention(states, attention.project(states, places), is_causal=True, rotary=places)
        for places in (rotary[:3], rotary[9:])
    )

    torch.testing.assert_close(near, far)
    assert not torch.allclose(near, attention(states, attention.project(states), is_causal=True))


def test_grouped_query_heads_use_key_heads_modulo() -> None:
    grouped, whole, states = MultiHeadAttention(16, 4, num_kv_heads=2), MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
    weights = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        weights[name] = torch.cat((weights[name], weights[name]))
    whole.load_state_dict(weights)

    found, expected = (block(states, block.project(states)) for block in (grouped, whole))

    assert grouped.project(states)[0].shape == (2, 2, 5, 4)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("activation", "applied"), [("gelu", nn.GELU()), ("swish", nn.SiLU())])
def test_other_activations(activation: Activation, applied: nn.Module) -> None:
    block, states = FeedForward(4, 6, activation), torch.randn(3, 4)

    torch.testing.assert_close(block(states), block.outer(applied(block.inner(states))))


def test_swiglu_gate() -> None:
    block, states = FeedForward(4, 6, "swiglu"), torch.randn(3, 4)

    assert block.gate is not None
    gate = block.gate(states)
    torch.testing.assert_close(block(states), block.outer(gate * torch.sigmoid(gate) * block.inner(states)))


def test_feed_forward_is_equation_2_of_the_paper() -> None:
    block, states = FeedForward(4, 6), torch.randn(3, 4)

    expected = (states @ block.inner.weight.T + block.inner.bias).clamp(min=0) @ block.outer.weight.T + block.outer.bias

    torch.testing.assert_close(block(states), expected)


def test_only_post_norm_normalises_the_residual_stream() -> None:
    states = 3 + 5 * torch.randn(1, 4, 512)
    base, small = EncoderLayer(PRESETS["base"]).eval(), EncoderLayer(PRESETS["small"]).eval()

    post, pre = base(states, None), small(states[..., :256], None)

    assert post.std(dim=-1).tolist()[0] == pytest.approx([1.0] * 4, abs=0.01)
    assert pre.std() > 3
