"""Output of a run: progress bar, messages, log records and curves."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from dragoman_export.training.checkpoint import replaced
from dragoman_export.training.run_folder import RunFolder

_DPI = 110


class Report:
    """Prints messages and writes log records; silent on all ranks except the main one."""

    def __init__(self, folder: RunFolder, *, is_silent: bool) -> None:
        self._folder = folder
        self._is_silent = is_silent

    def message(self, text: str) -> None:
        """Print a line on stderr."""
        if not self._is_silent:
            print(text, file=sys.stderr, flush=True)

    def record(self, event: str, **fields: Any) -> None:
        """Append a record to the log."""
        if not self._is_silent:
            self._folder.append(event, **fields)


@dataclass(slots=True)
class Window:
    """Sums since the last record of the log."""

    loss: float = 0.0
    target_tokens: int = 0
    seconds: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Loss in nats per target token."""
        return self.loss / max(1, self.target_tokens)

    @property
    def tokens_per_s(self) -> float:
        """Target tokens per second, without evaluations and checkpoints."""
        return self.target_tokens / max(1e-9, self.seconds)


class Meter:
    """Accumulates and shows the figures of steps."""

    def __init__(self, *, is_shown: bool, first_step: int) -> None:
        self.window = Window()
        self._bar = tqdm(initial=first_step, unit="step", disable=not is_shown, dynamic_ncols=True, mininterval=1.0)
        self._step_began = time.monotonic()

    def begin(self) -> None:
        """Start the clock of a step."""
        self._step_began = time.monotonic()

    def end(self, *, loss: float, target_tokens: int) -> None:
        """Stop the clock of a step and add its summed loss and tokens."""
        self.window.loss += loss
        self.window.target_tokens += target_tokens
        self.window.seconds += time.monotonic() - self._step_began

    def show(self, *, epoch: int, last_step: int | None) -> None:
        """Advance the bar by one step and show the figures of the window; `last_step` None: unknown end."""
        figures = {"loss": f"{self.window.mean_loss:.3f}", "tokens/s": f"{self.window.tokens_per_s:.0f}"}
        self._bar.total = last_step
        self._bar.set_postfix({**figures, "epoch": epoch}, refresh=False)
        self._bar.update()

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            self._bar.write(text, file=sys.stderr)

    def reset(self) -> None:
        """Start a new window."""
        self.window = Window()

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()


Record = dict[str, Any]


def read_log(path: Path) -> list[Record]:
    """Return the records of a JSON-lines log; a truncated last line is skipped."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def draw_curves(log: Path, picture: Path) -> None:
    """Draw the log of a run as a PNG, atomically."""
    with replaced(picture) as file:
        plot_curves(read_log(log)).savefig(file, dpi=_DPI, format="png")


def plot_curves(records: Sequence[Record]) -> Figure:
    """Return the curves of a run; steps repeated after a resume are drawn once."""
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
    return figure


def _by_step(records: Sequence[Record], event: str) -> list[Record]:
    latest = {record["step"]: record for record in records if record["event"] == event}
    return [latest[step] for step in sorted(latest)]


def _line(axis: Axes, records: Sequence[Record], field: str, label: str) -> None:
    if records:
        axis.plot([record["step"] for record in records], [record[field] for record in records], label=label)
