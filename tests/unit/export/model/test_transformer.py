import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_export.model.config import PRESETS
from dragoman_export.model.positions import sinusoidal_positions
from dragoman_export.model.transformer import Transformer
from tests.unit.export.tiny_training import mask_of, random_ids, tiny_config, tiny_model

ROUNDING = 1e-5  # float32 sums in another order, over widths of at most 32.

# Table 3 of the paper says 65 and 213 million; no single vocabulary gives both, and 37,000 tokens give 63 and 214.
TABLE_3 = 2_000_000


@pytest.mark.parametrize(
    ("preset", "exact", "published"), [("base", 63_082_496, 65_000_000), ("big", 214_245_376, 213_000_000)]
)
def test_presets_have_the_parameters_of_the_paper(preset: str, exact: int, published: int) -> None:
    with torch.device("meta"):
        model = Transformer(PRESETS[preset])

    num_parameters = sum(parameter.numel() for parameter in model.parameters())

    assert num_parameters == exact
    assert abs(num_parameters - published) < TABLE_3


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_attention_starts_like_that_of_pytorch(name: str) -> None:
    weights = Transformer(PRESETS["small"]).get_parameter(f"encoder.layers.0.self_attention.{name}.weight").detach()
    theirs = nn.MultiheadAttention(256, 4).in_proj_weight.detach()

    assert float(weights.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=1e-3)


def _embedded(model: Transformer) -> Tensor:
    return model.embedding.weight[[7, 8]]


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ({}, lambda model: _embedded(model) * math.sqrt(16) + torch.from_numpy(sinusoidal_positions(2, 16))),
        (
            {"scale_embeddings": False, "position_offset": 2, "embedding_norm": True},
            lambda model: functional.layer_norm(
                _embedded(model) + torch.from_numpy(sinusoidal_positions(4, 16)[2:]), (16,)
            ),
        ),
        (
            {"positions": "learned", "max_positions": 5, "position_offset": 2},
            lambda model: _embedded(model) * 4 + model.get_parameter("encoder.positions.weight")[2:4],
        ),
    ],
    ids=["scaled embeddings", "unscaled, normalised, offset", "learned positions"],
)
def test_input_of_the_encoder(variant: dict[str, Any], expected: Callable[[Transformer], Tensor]) -> None:
    model, entered = tiny_model(**variant), []
    model.encoder.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))

    model.encode(torch.tensor([[7, 8]]), None)

    torch.testing.assert_close(entered[0][0], expected(model))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_has_no_influence(norm: str) -> None:
    model, mask = tiny_model(norm=norm), mask_of([7, 3])
    source_ids, target_ids = random_ids(2, 7), random_ids(2, 5, seed=1)

    memory = model.encode(source_ids, mask)
    alone = model.encode(source_ids[1:, :3], None)

    torch.testing.assert_close(memory[1, :3], alone[0], atol=ROUNDING, rtol=0)
    padded = model.decode(target_ids, memory, mask)[1]
    torch.testing.assert_close(padded, model.decode(target_ids[1:], alone, None)[0], atol=ROUNDING, rtol=0)


def test_long_sequences_extend_the_positions() -> None:
    model, source_ids = tiny_model(), random_ids(1, 1500)

    with torch.inference_mode():
        model.encode(source_ids, None)
    memory = model.train().encode(source_ids, None)

    torch.autograd.backward(memory.sum())  # training can use positions that an evaluation has added
    assert memory.shape == (1, 1500, 16)


def _tables(model: Transformer) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.named_parameters() if weight.size(0) in (40, 50)}


def test_tied_embedding_projects_states() -> None:
    model, states = tiny_model(), torch.randn(3, 16)

    assert _tables(model) == {"embedding.weight": (40, 16)}
    torch.testing.assert_close(model.project(states), states @ model.embedding.weight.T)


def test_separate_tables_and_logit_bias() -> None:
    model = tiny_model(tied_embeddings="none", projection_bias=True, source_vocabulary_size=50)
    weight, bias, states = (
        model.get_parameter("projection.weight"),
        model.get_parameter("projection.bias"),
        torch.eye(16),
    )
    torch.nn.init.uniform_(bias)

    assert _tables(model) == {
        "embedding.weight": (40, 16),
        "encoder.embedding.weight": (50, 16),
        "projection.weight": (40, 16),
        "projection.bias": (40,),
    }
    torch.testing.assert_close(model.project(states), states @ weight.T + bias)
    assert model.encode(torch.tensor([[49]]), None).shape == (1, 1, 16)


def test_embeddings_have_unit_variance() -> None:
    embedded = Transformer(tiny_config(vocabulary_size=2000, d_model=64)).embedding.weight.detach() * math.sqrt(64)

    assert float(embedded.std()) == pytest.approx(1.0, abs=0.02)


def test_only_pre_norm_has_a_final_norm() -> None:
    assert {norm: tiny_model(norm=norm).encoder.norm is not None for norm in ("pre", "post")} == {
        "pre": True,
        "post": False,
    }
