import os
import signal
from typing import Any

import pytest

from export.training.checkpoint import Progress
from export.training.config import TrainingConfig
from export.training.stopping import StopRequest, expected_last_step, reached_limit

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
def test_a_limit_is_reached_at_its_value(limits: dict[str, Any], reached: str | None) -> None:
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
def test_the_last_step_is_expected_where_the_first_limit_is(limits: dict[str, Any], last_step: int | None) -> None:
    config = TrainingConfig(**limits)

    expected = expected_last_step(config, PROGRESS, steps_per_epoch=30, steps_per_s=2.0, spent_s=30.0)

    assert expected == last_step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(number: signal.Signals) -> None:
    with StopRequest() as request:
        os.kill(os.getpid(), number)

    assert request.signal_name == number.name


def test_a_second_signal_interrupts() -> None:
    with StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_the_earlier_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with StopRequest():
        pass

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
