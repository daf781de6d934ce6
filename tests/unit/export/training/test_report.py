import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from dragoman_export.training.report import Meter, Window, draw_curves, plot_curves, read_log


def test_meter_accumulates_until_reset() -> None:
    meter = Meter(is_shown=False, first_step=0)
    for _ in range(3):
        meter.begin()
        meter.end(loss=4.0, target_tokens=2)

    summed = meter.window
    meter.reset()

    assert (summed.loss, summed.target_tokens, summed.mean_loss) == (12.0, 6, 2.0)
    assert meter.window == Window()
    assert Window(target_tokens=10, seconds=2.0).tokens_per_s == 5.0


@pytest.mark.parametrize("is_shown", [True, False])
def test_bar_shows_speed_and_remaining_time(capfd: pytest.CaptureFixture[str], *, is_shown: bool) -> None:
    meter = Meter(is_shown=is_shown, first_step=7)
    meter.begin()
    meter.end(loss=4.0, target_tokens=2)

    meter.show(epoch=3, last_step=20)
    meter.message("step 1")
    meter.close()

    printed = capfd.readouterr()
    assert printed.out == ""
    for text in ("8/20 [", "loss=2.000, tokens/s=", "epoch=3", "step 1"):
        assert (text in printed.err) is is_shown


def step(number: int, loss: float = 3.0) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "learning_rate": 0.1, "tokens_per_s": 9.0}


def evaluation(number: int, bleu: float | None) -> dict[str, Any]:
    return {"event": "evaluation", "step": number, "loss": 2.0, "bleu": bleu}


def lines_of(figure: Figure) -> dict[tuple[str, str], list[list[float]]]:
    """Return the points of each line by axis and line label."""
    return {
        (axis.get_ylabel(), str(line.get_label())): np.asarray(line.get_xydata()).tolist()
        for axis in figure.axes
        for line in axis.lines
    }


def test_curves_draw_repeated_steps_once() -> None:
    records = [step(1), step(2, loss=9.0), evaluation(2, 7.0), evaluation(3, None), step(2, loss=2.5)]

    assert lines_of(plot_curves(records)) == {
        ("nats a token", "training, label-smoothed"): [[1, 3.0], [2, 2.5]],
        ("nats a token", "dev"): [[2, 2.0], [3, 2.0]],
        ("sacreBLEU", "dev, greedy"): [[2, 7.0]],
        ("learning rate", "Adam"): [[1, 0.1], [2, 0.1]],
        ("tokens/s", "target tokens"): [[1, 9.0], [2, 9.0]],
    }
    assert lines_of(plot_curves([{"event": "start"}])) == {}


def test_curves_are_written_atomically_without_a_truncated_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(step(1)) + '\n{"event": "st')

    draw_curves(log, tmp_path / "curves.png")

    assert read_log(log) == [step(1)]
    assert imread(tmp_path / "curves.png").shape == (770, 1210, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "log.jsonl"]
