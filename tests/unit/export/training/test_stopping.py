import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from dragoman_export.training.checkpoint import Progress
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.stopping import (
    StopRequest,
    expected_last_step,
    explanation,
    last_step,
    reached_limit,
    timed_cooldown,
)

PROGRESS = Progress(step=70, epoch=2, epoch_step=10, evaluations_since_best=3)


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        ({}, None),
        ({"max_steps": 71, "max_epochs": 3, "patience": 4}, None),
        ({"max_steps": 70}, "max-steps"),
        ({"max_epochs": 2}, "max-epochs"),
        ({"patience": 3}, "patience"),
    ],
)
def test_limit_is_reached_at_its_value(limits: dict[str, Any], reached: str | None) -> None:
    assert reached_limit(TrainingConfig(**limits), PROGRESS) == reached


@pytest.mark.parametrize(
    ("limits", "last_step"),
    [
        ({}, None),
        ({"patience": 9}, None),
        ({"max_steps": 99}, 99),
        ({"max_epochs": 3}, 90),
        ({"max_epochs": 5}, 150),
        ({"max_epochs": 1}, 70),
        ({"max_minutes": 1.0}, 130),
        ({"max_minutes": 0.4}, 70),
        ({"max_steps": 99, "max_epochs": 3, "max_minutes": 1.0}, 90),
    ],
)
def test_expected_last_step_is_the_first_limit(limits: dict[str, Any], last_step: int | None) -> None:
    config = TrainingConfig(**limits)

    expected = expected_last_step(config, PROGRESS, steps_per_epoch=30, steps_per_s=2.0, spent_s=30.0)

    assert expected == last_step


@pytest.mark.parametrize(
    ("settings", "patience_step", "ends_at"),
    [
        ({"patience": 3, "cooldown_steps": 20}, 60, 80),
        ({"patience": 3, "cooldown_steps": 20}, None, 90),  # ends at this step
        ({"patience": 4, "cooldown_steps": 20}, 60, None),  # a larger value was set later
        ({"patience": 3, "cooldown_steps": 20, "max_steps": 75}, None, 75),  # the rate is cooling down already
        ({"patience": 3, "cooldown_steps": 20, "max_steps": 95}, None, 90),
        ({"patience": 3, "cooldown_steps": 20, "max_steps": 78}, 60, 78),
        ({"patience": 3}, None, 70),
    ],
)
def test_cooldown_follows_patience(settings: dict[str, Any], patience_step: int | None, ends_at: int | None) -> None:
    config, progress = TrainingConfig(**settings), replace(PROGRESS, patience_step=patience_step)

    assert last_step(config, progress) == ends_at
    assert (reached_limit(config, progress) is None) == (ends_at != 70)


@pytest.mark.parametrize(
    ("reason", "limit", "detail"),
    [
        ("max-steps", "--max-steps 70", ""),
        ("patience", "--patience 3", ": 3 evaluations without a dev loss below 2.5000"),
        ("SIGTERM", "SIGTERM", ""),
    ],
)
def test_stop_is_explained(reason: str, limit: str, detail: str) -> None:
    config, progress = TrainingConfig(max_steps=70, patience=3), replace(PROGRESS, best_loss=2.5)

    assert explanation(reason, config, progress) == limit + detail


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_interrupts_and_handlers_are_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with StopRequest() as request:
        os.kill(os.getpid(), number)
        assert request.signal_name == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)

    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("minutes", "spent_s", "factor"),
    [(0.0, 599, 1.0), (2.0, 400, 1.0), (2.0, 480, 1.0), (2.0, 540, 0.5), (2.0, 700, 0.0)],
)
def test_rate_falls_in_the_last_minutes(minutes: float, spent_s: float, factor: float) -> None:
    config = TrainingConfig(max_minutes=10.0, cooldown_minutes=minutes)

    assert timed_cooldown(config, spent_s) == pytest.approx(factor)
