import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from dragoman_export.training.report import Meter, Window, draw_curves, plot_curves, read_log


def test_window_averages() -> None:
    window = Window(loss=30.0, target_tokens=10, seconds=2.0)

    assert (window.mean_loss, window.tokens_per_s) == (3.0, 5.0)


def test_meter_accumulates_until_reset() -> None:
    meter = Meter(is_shown=False, first_step=0)
    for _ in range(3):
        meter.begin()
        meter.end(loss=4.0, target_tokens=2)

    summed = meter.window
    meter.reset()

    assert (summed.loss, summed.target_tokens) == (12.0, 6)
    assert meter.window == Window()


def test_bar_shows_speed_and_remaining_time(capfd: pytest.CaptureFixture[str]) -> None:
    meter = Meter(is_shown=True, first_step=7)
    meter.begin()
    meter.end(loss=4.0, target_tokens=2)

    meter.show(epoch=3, last_step=20)
    meter.close()

    shown = capfd.readouterr().err.splitlines()[-1]
    assert "8/20 [" in shown
    assert "loss=2.000, tokens/s=" in shown
    assert "epoch=3" in shown


def test_hidden_meter_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    meter = Meter(is_shown=False, first_step=0)

    meter.show(epoch=0, last_step=None)
    meter.message("step 1")
    meter.close()

    assert capfd.readouterr() == ("", "")


def write_log(path: Path, *records: dict[str, Any], end: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return path


def step(number: int, loss: float = 3.0) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "learning_rate": 0.1, "tokens_per_s": 9.0}


def evaluation(number: int, bleu: float | None) -> dict[str, Any]:
    return {"event": "evaluation", "step": number, "loss": 2.0, "bleu": bleu}


def lines_of(figure: Figure) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Return x and y of each line by axis and line label."""
    return {
        (axis.get_ylabel(), str(line.get_label())): (
            np.asarray(line.get_xdata()).tolist(),
            np.asarray(line.get_ydata()).tolist(),
        )
        for axis in figure.axes
        for line in axis.lines
    }


def test_curves_draw_repeated_steps_once() -> None:
    records = [step(1), step(2, loss=9.0), evaluation(2, 7.0), evaluation(3, None), step(2, loss=2.5)]

    drawn = lines_of(plot_curves(records))

    assert drawn == {
        ("nats a token", "training, label-smoothed"): ([1, 2], [3.0, 2.5]),
        ("nats a token", "dev"): ([2, 3], [2.0, 2.0]),
        ("sacreBLEU", "dev, greedy"): ([2], [7.0]),
        ("learning rate", "Adam"): ([1, 2], [0.1, 0.1]),
        ("tokens/s", "target tokens"): ([1, 2], [9.0, 9.0]),
    }


def test_curves_are_written_atomically(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", step(1), evaluation(2, 7.0))

    draw_curves(log, tmp_path / "curves.png")

    assert imread(tmp_path / "curves.png").shape == (770, 1210, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "log.jsonl"]


def test_empty_log_is_drawn() -> None:
    assert lines_of(plot_curves([{"event": "start"}])) == {}


def test_truncated_log_line_is_skipped(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", step(1), end='{"event": "st')

    assert read_log(log) == [step(1)]
