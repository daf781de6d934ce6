"""The picture of a run: loss, BLEU, learning rate and speed over steps, drawn from its log."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Record = dict[str, Any]


def read_log(path: Path) -> list[Record]:
    """Return the records of a JSON-lines log; a last line cut off by a crash is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def draw_curves(log: Path, picture: Path) -> None:
    """Draw the log of a run as a PNG; what a resumed run did again is drawn once."""
    records = read_log(log)
    steps, evaluations = _by_step(records, "step"), _by_step(records, "evaluation")
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    loss, bleu, rate, speed = axes.flat
    _line(loss, steps, "loss", "training, label-smoothed")
    _line(loss, evaluations, "loss", "dev")
    _line(bleu, [record for record in evaluations if record["bleu"] is not None], "bleu", "dev, greedy")
    _line(rate, steps, "learning_rate", "Adam")
    _line(speed, steps, "tokens_per_s", "target tokens")
    for axis, label in zip(axes.flat, ("nats a token", "sacreBLEU", "learning rate", "tokens/s"), strict=True):
        axis.set(xlabel="step", ylabel=label)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    temporary = picture.with_name(f".{os.getpid()}.{picture.name}")
    figure.savefig(temporary, dpi=110)
    temporary.replace(picture)


def _by_step(records: Sequence[Record], event: str) -> list[Record]:
    latest = {record["step"]: record for record in records if record["event"] == event}
    return [latest[step] for step in sorted(latest)]


def _line(axis: Axes, records: Sequence[Record], field: str, label: str) -> None:
    if records:
        axis.plot([record["step"] for record in records], [record[field] for record in records], label=label)
