import pytest
import torch

from export.model.config import PRESETS
from export.model.layers import (
    Dropout,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    scaled_dot_product_attention,
    sinusoidal_positions,
)

NUMBERS = 1_000_000
FOUR_SIGMA = 4 * (0.1 * 0.9 / NUMBERS) ** 0.5
"""Four standard deviations of the share that is dropped."""


def test_the_wanted_share_is_dropped_and_the_mean_stays() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.1)(torch.ones(NUMBERS))

    share = float((dropped == 0).double().mean())
    assert share == pytest.approx(26 / 256, abs=FOUR_SIGMA)  # 0.1 rounded to 256ths
    assert float(dropped.double().mean()) == pytest.approx(1.0, abs=2 * FOUR_SIGMA)


def test_what_is_kept_is_scaled_alike() -> None:
    dropped = Dropout(0.5)(torch.ones(3, 5, 7))

    assert set(dropped.flatten().tolist()) == {0.0, 2.0}


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.5)(torch.ones(NUMBERS)) == 0

    both = float((dropped[1:] & dropped[:-1]).double().mean())
    assert both == pytest.approx(0.25, abs=0.002)


@pytest.mark.parametrize("dropout", [Dropout(0.0), Dropout(0.5).eval()])
def test_nothing_is_dropped_at_probability_0_or_outside_training(dropout: Dropout) -> None:
    states = torch.randn(100)

    assert dropout(states) is states


def test_the_same_seed_drops_the_same() -> None:
    dropout, states = Dropout(0.3), torch.randn(1000)

    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(dropout(states))

    assert torch.equal(*results)


def test_the_type_stays_under_autocast() -> None:
    assert Dropout(0.3)(torch.ones(9, dtype=torch.bfloat16)).dtype == torch.bfloat16


QUERY = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
KEY = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
VALUE = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]])

TO_THREE_DIGITS = 5e-4
WEIGHTS_ROUNDED_FIRST = 1e-3
"""The published result rounds the attention weights (.456 .225 .320) to three digits before it multiplies by them."""


@pytest.mark.parametrize(
    ("expected", "tolerance"),
    [
        ([[0.385, 0.615], [0.547, 0.453], [0.467, 0.533]], TO_THREE_DIGITS),
        ([[0.386, 0.615], [0.547, 0.454], [0.467, 0.533]], WEIGHTS_ROUNDED_FIRST),
    ],
)
def test_attention_gives_the_worked_example(expected: list[list[float]], tolerance: float) -> None:
    attended = scaled_dot_product_attention(QUERY, KEY, VALUE)

    torch.testing.assert_close(attended, torch.tensor(expected), atol=tolerance, rtol=0)


def test_a_query_that_sees_one_key_gets_its_value() -> None:
    mask = torch.eye(3, dtype=torch.bool)

    attended = scaled_dot_product_attention(QUERY, KEY, VALUE, mask)

    assert torch.equal(attended, VALUE)


def test_a_causal_query_sees_no_later_position() -> None:
    attention, states = MultiHeadAttention(8, 2), torch.randn(1, 5, 8)
    changed = states.clone()
    changed[:, 3:] = torch.randn(1, 2, 8)

    one, other = (attention(x, attention.project(x), is_causal=True) for x in (states, changed))

    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.equal(one[:, 3:], other[:, 3:])


def test_keys_and_values_have_a_head_dimension() -> None:
    keys, values = MultiHeadAttention(8, 2).project(torch.randn(3, 5, 8))

    assert keys.shape == values.shape == (3, 2, 5, 4)


def test_positions_are_those_of_section_3_5_of_the_paper() -> None:
    first, second = sinusoidal_positions(2, 4)

    assert first.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert second.tolist() == pytest.approx([0.841, 0.540, 0.010, 1.000], abs=5e-4)


def test_the_feed_forward_block_is_equation_2_of_the_paper() -> None:
    block, states = FeedForward(4, 6), torch.randn(3, 4)

    expected = (states @ block.inner.weight.T + block.inner.bias).clamp(min=0) @ block.outer.weight.T + block.outer.bias

    torch.testing.assert_close(block(states), expected)


def test_post_norm_normalises_the_residual_stream_and_pre_norm_does_not() -> None:
    states = 3 + 5 * torch.randn(1, 4, 512)
    base, small = EncoderLayer(PRESETS["base"]).eval(), EncoderLayer(PRESETS["small"]).eval()

    post, pre = base(states, None), small(states[..., :256], None)

    assert post.std(dim=-1).tolist()[0] == pytest.approx([1.0] * 4, abs=0.01)
    assert pre.std() > 3
