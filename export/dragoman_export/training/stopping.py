"""End of a run: limits, the expected last step, and signals."""

import math
import signal
from types import FrameType, TracebackType
from typing import Self

from dragoman_export.training.checkpoint import Progress
from dragoman_export.training.config import TrainingConfig


def reached_limit(config: TrainingConfig, progress: Progress) -> str | None:
    """Return the flag of the limit of steps, epochs or `patience` that a run has reached; None: continue."""
    if config.max_steps is not None and progress.step >= config.max_steps:
        return "max-steps"
    if config.max_epochs is not None and progress.epoch >= config.max_epochs:
        return "max-epochs"
    ended = patience_step(config, progress)
    if ended is not None and progress.step >= ended + config.cooldown_steps:
        return "patience"
    return None


def patience_step(config: TrainingConfig, progress: Progress) -> int | None:
    """Return the step at which `patience` ended; None: not ended, or the cooldown had already started."""
    if config.patience is None or progress.evaluations_since_best < config.patience:
        return None
    is_cooling = config.max_steps is not None and progress.step > config.max_steps - config.cooldown_steps
    return progress.step if progress.patience_step is None and not is_cooling else progress.patience_step


def last_step(config: TrainingConfig, progress: Progress) -> int | None:
    """Return the last step of the cooldown, from `max_steps` or the end of `patience`; None: neither."""
    ended = patience_step(config, progress)
    steps = (config.max_steps, None if ended is None else ended + config.cooldown_steps)
    return min((step for step in steps if step is not None), default=None)


def timed_cooldown(config: TrainingConfig, spent_s: float) -> float:
    """Return the factor of the rate in an invocation: 1, then linearly to 0 in the last `cooldown_minutes`."""
    if config.max_minutes is None or not config.cooldown_minutes:
        return 1.0
    return min(1.0, max(0.0, (config.max_minutes - spent_s / 60) / config.cooldown_minutes))


def explanation(reason: str, config: TrainingConfig, progress: Progress) -> str:
    """Return the reason for the end of a run as text, from `reached_limit` or the name of a signal."""
    if reason == "patience":
        count = progress.evaluations_since_best
        return f"--patience {config.patience}: {count} evaluations without a dev loss below {progress.best_loss:.4f}"
    limits = {"max-steps": config.max_steps, "max-epochs": config.max_epochs, "max-minutes": config.max_minutes}
    return f"--{reason} {limits[reason]}" if reason in limits else reason


def expected_last_step(
    config: TrainingConfig, progress: Progress, *, steps_per_epoch: int, steps_per_s: float, spent_s: float
) -> int | None:
    """Return the expected last step of a run, None without a limit; `patience` counts after it has ended."""
    end = last_step(config, progress)
    candidates = [] if end is None else [end]
    if config.max_epochs is not None:
        epochs_left = config.max_epochs - progress.epoch
        candidates.append(progress.step + max(0, epochs_left * steps_per_epoch - progress.epoch_step))
    if config.max_minutes is not None:
        left_s = max(0.0, 60 * config.max_minutes - spent_s)
        candidates.append(progress.step + math.ceil(left_s * steps_per_s))
    return min(candidates, default=None)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Context manager that records signals; a second signal interrupts at once."""

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def __enter__(self) -> Self:
        self._previous = [(number, signal.signal(number, self._handle)) for number in _SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_name is not None:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
