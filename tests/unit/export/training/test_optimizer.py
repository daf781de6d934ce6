from typing import Any

import pytest
import torch

from dragoman_export.errors import CheckpointConflictError, DivergenceError
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.optimizer import (
    Muon,
    ScheduledOptimizer,
    cooldown_factor,
    inverse_sqrt_rate,
    learning_rate,
    relative_rate,
)
from tests.unit.export.tiny_training import tiny_model

NEGLIGIBLE = 1e-30  # A rate so low that a float32 weight of the order of 0.1 stays as it is.


@pytest.mark.parametrize(("step", "rate"), [(1, 1.74693e-7), (4000, 6.98771e-4), (50_000, 1.97642e-4)])
def test_rate_of_section_5_3_of_the_paper(step: int, rate: float) -> None:
    assert inverse_sqrt_rate(step, d_model=512, warmup_steps=4000) == pytest.approx(rate, rel=1e-5)


def test_factor_multiplies_the_rate() -> None:
    one, double = (learning_rate(7, TrainingConfig(lr_factor=factor), d_model=64) for factor in (1.0, 2.0))

    assert double == pytest.approx(2 * one)


@pytest.mark.parametrize(
    ("max_steps", "cooldown_steps", "expected"),
    [(10, 4, [1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0]), (None, 0, [1.0] * 8), (10, 0, [1.0] * 8)],
)
def test_cooldown_is_linear(max_steps: int | None, cooldown_steps: int, expected: list[float]) -> None:
    steps = (1, 6, 7, 8, 9, 10, 11, 12)

    factors = [cooldown_factor(step, max_steps=max_steps, cooldown_steps=cooldown_steps) for step in steps]

    assert factors == pytest.approx(expected)


def test_relative_rate() -> None:
    config = TrainingConfig(warmup_steps=100, max_steps=400, cooldown_steps=1)

    rates = [relative_rate(step, config) for step in (50, 100, 399, 400)]

    assert rates == pytest.approx([0.5, 1.0, (100 / 399) ** 0.5, 0.5 * 0.5])


def make_optimizer(model: Transformer, **settings: Any) -> ScheduledOptimizer:
    return ScheduledOptimizer(model, TrainingConfig(**{"warmup_steps": 1, "clip_norm": 0.0, **settings}))


def set_gradients(model: Transformer) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.fixture
def model() -> Transformer:
    """A network with gradients."""
    model = tiny_model()
    set_gradients(model)
    return model


def changed_by_a_step(**settings: Any) -> set[str]:
    model = tiny_model()
    for weight in model.parameters():
        torch.nn.init.constant_(weight, 0.1)
    set_gradients(model)

    make_optimizer(model, **settings).step(1, num_tokens=1)

    return {name for name, weight in model.named_parameters() if not torch.all(weight == 0.1)}


def test_muon_takes_the_projection_matrices_and_adam_the_rest() -> None:
    names = {name for name, _ in tiny_model().named_parameters()}
    matrices = {name for name in names if name.endswith(".weight") and "norm" not in name and "embedding" not in name}

    assert changed_by_a_step(optimizer="muon", muon_lr=0.01, lr_factor=NEGLIGIBLE) == matrices
    assert changed_by_a_step(optimizer="muon", muon_lr=NEGLIGIBLE, lr_factor=1.0) == names - matrices
    assert changed_by_a_step(optimizer="adam") == names


def test_first_adam_step_has_the_size_of_the_rate_and_clears_gradients(model: Transformer) -> None:
    before = model.embedding.weight.clone()

    rate, _ = make_optimizer(model).step(1, num_tokens=1)

    moved = (model.embedding.weight - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-3, atol=0)
    assert all(weight.grad is None for weight in model.parameters())


def test_norm_of_the_mean_gradient(model: Transformer) -> None:
    total = sum(float(weight.grad.square().sum()) for weight in model.parameters() if weight.grad is not None)

    _, norm = make_optimizer(model).step(1, num_tokens=5)

    assert norm == pytest.approx(total**0.5 / 5, rel=1e-5)


def test_gradients_are_clipped(model: Transformer) -> None:
    moments = []
    for clip_norm in (0.5, 0.0):
        set_gradients(model)
        optimizer = make_optimizer(model, clip_norm=clip_norm)
        _, norm = optimizer.step(1, num_tokens=1)
        moments.append(optimizer.state_dict()["adam"]["state"][0]["exp_avg"])

    torch.testing.assert_close(moments[0], moments[1] * (0.5 / norm), rtol=1e-5, atol=0)


def test_infinite_gradient_keeps_the_weights(model: Transformer) -> None:
    before = model.embedding.weight.clone()
    model.get_parameter("decoder.layers.1.feed_forward.inner.bias").grad = torch.full((32,), torch.nan)

    with pytest.raises(DivergenceError, match="gradient norm of step 7 is nan"):
        make_optimizer(model).step(7, num_tokens=1)
    assert torch.equal(model.embedding.weight, before)


@pytest.mark.parametrize(("stored", "requested"), [("adam", "muon"), ("muon", "adam")])
def test_state_of_the_other_optimizer_is_rejected(stored: str, requested: str) -> None:
    state = make_optimizer(tiny_model(), optimizer=stored).state_dict()

    with pytest.raises(CheckpointConflictError, match=f"optimizer is '{stored}', requested '{requested}'"):
        make_optimizer(tiny_model(), optimizer=requested).load_state_dict(state)


def test_muon_equals_that_of_pytorch() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((8, 8), (8, 24), (24, 8), (8, 8))
    first, second = ([torch.nn.Parameter(torch.full(shape, 0.5)) for shape in shapes] for _ in range(2))
    muon, expected = Muon(first), torch.optim.Muon(second, lr=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")

    for _ in range(3):
        for weight, other in zip(first, second, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator)
            other.grad = weight.grad.clone()
        for optimizer in (muon, expected):
            optimizer.param_groups[0]["lr"] = 0.1
            optimizer.step()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(first, second, atol=2e-3, rtol=0)  # bfloat16 products in another order
    assert float((first[0].detach() - 0.5).abs().max()) > 0.1
