"""The learning rate as a function of the step."""

from export.training.config import TrainingConfig


def inverse_sqrt_rate(step: int, *, d_model: int, warmup_steps: int) -> float:
    """Return d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), equation 3 of the paper (section 5.3).

    Args:
        step: counted from 1.
        d_model: width of the model.
        warmup_steps: the step of the highest rate.
    """
    return float(d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def cooldown_factor(step: int, *, max_steps: int | None, cooldown_steps: int) -> float:
    """Return what the rate is multiplied by near the end: 1, then linearly down to 0 just after step `max_steps`."""
    if max_steps is None or not cooldown_steps:
        return 1.0
    return min(1.0, max(0.0, (max_steps - step + 1) / (cooldown_steps + 1)))


def learning_rate(step: int, config: TrainingConfig, *, d_model: int) -> float:
    """Return Adam's rate of a step, counted from 1."""
    rate = config.lr_factor * inverse_sqrt_rate(step, d_model=d_model, warmup_steps=config.warmup_steps)
    return rate * cooldown_factor(step, max_steps=config.max_steps, cooldown_steps=config.cooldown_steps)


def relative_rate(step: int, config: TrainingConfig) -> float:
    """Return the rate of a step as a share of the schedule's highest, from 0 to 1; Muon's rate is multiplied by it."""
    peak = inverse_sqrt_rate(config.warmup_steps, d_model=1, warmup_steps=config.warmup_steps)
    rate = inverse_sqrt_rate(step, d_model=1, warmup_steps=config.warmup_steps) / peak
    return rate * cooldown_factor(step, max_steps=config.max_steps, cooldown_steps=config.cooldown_steps)
