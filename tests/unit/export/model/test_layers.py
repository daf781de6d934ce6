import pytest
import torch

from export.model.config import PRESETS
from export.model.layers import EncoderLayer, FeedForward, sinusoidal_positions


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
