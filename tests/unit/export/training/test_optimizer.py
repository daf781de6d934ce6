from typing import Any

import pytest
import torch

from dragoman_export.errors import CheckpointConflictError, DivergenceError
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.optimizer import (
    ScheduledOptimizer,
    cooldown_factor,
    inverse_sqrt_rate,
    learning_rate,
    relative_rate,
)
from tests.unit.export.model.tiny_models import tiny_model


@pytest.mark.parametrize(("step", "rate"), [(1, 1.74693e-7), (4000, 6.98771e-4), (50_000, 1.97642e-4)])
def test_rate_of_section_5_3_of_the_paper(step: int, rate: float) -> None:
    assert inverse_sqrt_rate(step, d_model=512, warmup_steps=4000) == pytest.approx(rate, rel=1e-5)


def test_rate_peaks_at_the_end_of_warmup() -> None:
    rates = [inverse_sqrt_rate(step, d_model=512, warmup_steps=100) for step in range(1, 300)]

    assert max(rates) == rates[99]


def test_factor_multiplies_the_rate() -> None:
    one, double = (learning_rate(7, TrainingConfig(lr_factor=factor), d_model=64) for factor in (1.0, 2.0))

    assert double == pytest.approx(2 * one)


def test_cooldown_is_linear() -> None:
    factors = [cooldown_factor(step, max_steps=10, cooldown_steps=4) for step in (1, 6, 7, 8, 9, 10, 11, 12)]

    assert factors == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


@pytest.mark.parametrize(("max_steps", "cooldown_steps"), [(None, 0), (10, 0)])
def test_no_cooldown_by_default(max_steps: int | None, cooldown_steps: int) -> None:
    assert cooldown_factor(10, max_steps=max_steps, cooldown_steps=cooldown_steps) == 1.0


def test_relative_rate() -> None:
    config = TrainingConfig(warmup_steps=100, max_steps=400, cooldown_steps=1)

    rates = [relative_rate(step, config) for step in (50, 100, 399, 400)]

    assert rates == pytest.approx([0.5, 1.0, (100 / 399) ** 0.5, 0.5 * 0.5])


NEGLIGIBLE = 1e-30  # A rate so low that a float32 weight of the order of 0.1 stays as it is.


def make_optimizer(model: Transformer, **settings: Any) -> ScheduledOptimizer:
    return ScheduledOptimizer(model, TrainingConfig(**{"warmup_steps": 1, "clip_norm": 0.0, **settings}))


def set_gradients(model: Transformer) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def changed_by_a_step(**settings: Any) -> set[str]:
    model = tiny_model()
    for weight in model.parameters():
        torch.nn.init.constant_(weight, 0.1)
    set_gradients(model)

    make_optimizer(model, **settings).step(1, num_tokens=1)

    return {name for name, weight in model.named_parameters() if not torch.all(weight == 0.1)}


def is_projection(name: str) -> bool:
    return name.endswith(".weight") and "norm" not in name and "embedding" not in name


def test_muon_takes_the_projection_matrices() -> None:
    names = {name for name, _ in tiny_model().named_parameters()}

    by_muon = changed_by_a_step(optimizer="muon", muon_lr=0.01, lr_factor=NEGLIGIBLE)
    by_adam = changed_by_a_step(optimizer="muon", muon_lr=NEGLIGIBLE, lr_factor=1.0)

    assert by_muon == {name for name in names if is_projection(name)}
    assert by_adam == names - by_muon


def test_adam_takes_all_parameters() -> None:
    assert changed_by_a_step(optimizer="adam") == {name for name, _ in tiny_model().named_parameters()}


def test_first_adam_step_has_the_size_of_the_rate() -> None:
    model = tiny_model()
    before = model.embedding.weight.clone()
    set_gradients(model)

    rate, _ = make_optimizer(model).step(1, num_tokens=1)

    moved = (model.embedding.weight - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-3, atol=0)


def test_norm_of_the_mean_gradient() -> None:
    model = tiny_model()
    set_gradients(model)
    total = sum(float(weight.grad.square().sum()) for weight in model.parameters() if weight.grad is not None)

    _, norm = make_optimizer(model).step(1, num_tokens=5)

    assert norm == pytest.approx(total**0.5 / 5, rel=1e-5)


def test_gradients_are_clipped() -> None:
    moments = []
    for settings in ({"clip_norm": 0.5}, {"clip_norm": 0.0}):
        model = tiny_model()
        set_gradients(model)
        optimizer = make_optimizer(model, **settings)
        _, norm = optimizer.step(1, num_tokens=1)
        moments.append(optimizer.state_dict()["adam"]["state"][0]["exp_avg"])

    torch.testing.assert_close(moments[0], moments[1] * (0.5 / norm), rtol=1e-5, atol=0)


def test_step_clears_gradients() -> None:
    model = tiny_model()
    set_gradients(model)

    make_optimizer(model).step(1, num_tokens=1)

    assert all(weight.grad is None for weight in model.parameters())


def test_infinite_gradient_keeps_the_weights() -> None:
    model = tiny_model()
    set_gradients(model)
    before = model.embedding.weight.clone()
    model.get_parameter("decoder.layers.1.feed_forward.inner.bias").grad = torch.full((32,), torch.nan)

    with pytest.raises(DivergenceError, match="gradient norm of step 7 is nan"):
        make_optimizer(model).step(7, num_tokens=1)

    assert torch.equal(model.embedding.weight, before)


@pytest.mark.parametrize(("stored", "asked"), [("adam", "muon"), ("muon", "adam")])
def test_state_of_the_other_optimizer_is_rejected(stored: str, asked: str) -> None:
    state = make_optimizer(tiny_model(), optimizer=stored).state_dict()

    with pytest.raises(CheckpointConflictError, match=f"optimizer is '{stored}', requested '{asked}'"):
        make_optimizer(tiny_model(), optimizer=asked).load_state_dict(state)
