"""Where a run ends: the limits that are reached, and the step at which the first of them will be."""

import math

from export.training.checkpoint import Progress
from export.training.config import TrainingConfig


def reached_limit(config: TrainingConfig, progress: Progress) -> str | None:
    """Return the limit of steps, epochs or patience that a run has reached, by the name of its flag; None: go on."""
    if config.max_steps is not None and progress.step >= config.max_steps:
        return "max-steps"
    if config.max_epochs is not None and progress.epoch >= config.max_epochs:
        return "max-epochs"
    if config.patience is not None and progress.evaluations_since_best >= config.patience:
        return "patience"
    return None


def expected_last_step(
    config: TrainingConfig, progress: Progress, *, steps_per_epoch: int, steps_per_s: float, spent_s: float
) -> int | None:
    """Return the step at which `max_steps`, `max_epochs` or `max_minutes` will stop a run, whichever comes first.

    Args:
        config: with the limits.
        progress: where the run is.
        steps_per_epoch: of the epoch at hand; the others are taken to be as long.
        steps_per_s: speed of this invocation.
        spent_s: time since it began, seconds.

    Returns:
        The step, or None if there is no such limit.
    """
    candidates = []
    if config.max_steps is not None:
        candidates.append(config.max_steps)
    if config.max_epochs is not None:
        epochs_left = config.max_epochs - progress.epoch
        candidates.append(progress.step + max(0, epochs_left * steps_per_epoch - progress.epoch_step))
    if config.max_minutes is not None:
        left_s = max(0.0, 60 * config.max_minutes - spent_s)
        candidates.append(progress.step + math.ceil(left_s * steps_per_s))
    return min(candidates, default=None)
