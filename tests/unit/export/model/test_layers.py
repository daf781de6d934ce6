import pytest
import torch
from torch import nn

from dragoman_export.model.config import PRESETS
from dragoman_export.model.layers import (
    Dropout,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from dragoman_export.model.positions import rotary_positions
from dragoman_service.bundle.architecture import Activation

_NUMBERS = 1_000_000
_SHARE = 26 / 256  # 0.1 rounded to 256ths
_FOUR_SIGMA = 4 * (_SHARE * (1 - _SHARE) / _NUMBERS) ** 0.5


def test_dropout_is_unbiased_independent_and_deterministic_per_seed() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.1)(torch.ones(_NUMBERS))

    is_zero = (dropped == 0).double()
    assert dropped.unique().tolist() == [0, pytest.approx(1 / (1 - _SHARE))]
    assert float(is_zero.mean()) == pytest.approx(_SHARE, abs=_FOUR_SIGMA)
    assert float((is_zero[1:] * is_zero[:-1]).mean()) == pytest.approx(_SHARE**2, abs=_FOUR_SIGMA)
    torch.manual_seed(1)
    assert torch.equal(Dropout(0.1)(torch.ones(_NUMBERS)), dropped)


def test_dropout_keeps_the_type_and_is_off_at_0_and_in_evaluation() -> None:
    states = torch.ones(9, dtype=torch.bfloat16)

    assert Dropout(0.3)(states).dtype == torch.bfloat16
    assert Dropout(0.0)(states) is states
    assert Dropout(0.5).eval()(states) is states


def test_attention_dropout_is_for_training_only() -> None:
    torch.manual_seed(1)
    attention, states = MultiHeadAttention(8, 2, dropout=0.5), torch.randn(2, 5, 8)
    seen = attention.project(states)

    served = attention.eval()(states, seen)

    assert torch.equal(served, attention(states, seen))
    assert not torch.allclose(served, attention.train()(states, seen))
    dropped = scaled_dot_product_attention(torch.ones(3, 2), torch.eye(3, 2), torch.ones(3, 1), dropout=Dropout(0.5))
    assert not torch.allclose(dropped, torch.ones(3, 1))  # the remaining weights do not add up to 1


def test_rotary_scores_depend_on_distance_only() -> None:
    attention, rotary = MultiHeadAttention(8, 1), torch.from_numpy(rotary_positions(12, 8))
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


def test_keys_and_queries_have_their_own_size() -> None:
    attention, states = MultiHeadAttention(16, 4, key_head_size=2), torch.randn(3, 5, 16)

    keys, values = attention.project(states)

    assert (keys.shape, values.shape) == ((3, 4, 5, 2), (3, 4, 5, 4))
    queries = attention.query(states).view(3, 5, 4, 2).transpose(1, 2)
    heads = torch.softmax(queries @ keys.transpose(2, 3) / 2**0.5, dim=-1) @ values
    torch.testing.assert_close(attention(states, (keys, values)), attention.output(heads.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(("activation", "applied"), [("relu", nn.ReLU()), ("gelu", nn.GELU()), ("swish", nn.SiLU())])
def test_feed_forward_is_equation_2_of_the_paper(activation: Activation, applied: nn.Module) -> None:
    block, states = FeedForward(4, 6, activation), torch.randn(3, 4)

    torch.testing.assert_close(block(states), block.outer(applied(block.inner(states))))


def test_swiglu_gate() -> None:
    block, states = FeedForward(4, 6, "swiglu"), torch.randn(3, 4)

    assert block.gate is not None
    gate = block.gate(states)
    torch.testing.assert_close(block(states), block.outer(gate * torch.sigmoid(gate) * block.inner(states)))


def test_only_post_norm_normalises_the_residual_stream() -> None:
    states = 3 + 5 * torch.randn(1, 4, 512)
    base, small = EncoderLayer(PRESETS["base"]).eval(), EncoderLayer(PRESETS["small"]).eval()

    post, pre = base(states, None), small(states[..., :256], None)

    assert post.std(dim=-1).tolist()[0] == pytest.approx([1.0] * 4, abs=0.01)
    assert pre.std() > 3
