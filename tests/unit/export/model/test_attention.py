import pytest
import torch

from export.model.attention import MultiHeadAttention, scaled_dot_product_attention

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
