import pytest

from export.training.config import TrainingConfig
from export.training.schedule import cooldown_factor, inverse_sqrt_rate, learning_rate, relative_rate


@pytest.mark.parametrize(("step", "rate"), [(1, 1.74693e-7), (4000, 6.98771e-4), (50_000, 1.97642e-4)])
def test_the_rate_is_that_of_section_5_3_of_the_paper(step: int, rate: float) -> None:
    assert inverse_sqrt_rate(step, d_model=512, warmup_steps=4000) == pytest.approx(rate, rel=1e-5)


def test_the_rate_is_highest_when_the_warm_up_ends() -> None:
    rates = [inverse_sqrt_rate(step, d_model=512, warmup_steps=100) for step in range(1, 300)]

    assert max(rates) == rates[99]


def test_the_factor_multiplies_the_rate() -> None:
    one, double = (learning_rate(7, TrainingConfig(lr_factor=factor), d_model=64) for factor in (1.0, 2.0))

    assert double == pytest.approx(2 * one)


def test_the_cooldown_falls_linearly_to_0_just_after_the_last_step() -> None:
    factors = [cooldown_factor(step, max_steps=10, cooldown_steps=4) for step in (1, 6, 7, 8, 9, 10, 11, 12)]

    assert factors == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


@pytest.mark.parametrize(("max_steps", "cooldown_steps"), [(None, 0), (10, 0)])
def test_there_is_no_cooldown_unless_asked_for(max_steps: int | None, cooldown_steps: int) -> None:
    assert cooldown_factor(10, max_steps=max_steps, cooldown_steps=cooldown_steps) == 1.0


def test_the_relative_rate_rises_to_1_and_shares_the_cooldown() -> None:
    config = TrainingConfig(warmup_steps=100, max_steps=400, cooldown_steps=1)

    rates = [relative_rate(step, config) for step in (50, 100, 399, 400)]

    assert rates == pytest.approx([0.5, 1.0, (100 / 399) ** 0.5, 0.5 * 0.5])
