"""What the person at the terminal sees: a progress bar, and averages for the log."""

import sys
import time
from dataclasses import dataclass

from tqdm import tqdm


@dataclass(slots=True)
class Window:
    """Sums since the last line of the log."""

    loss: float = 0.0
    target_tokens: int = 0
    seconds: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Loss in nats a target token."""
        return self.loss / max(1, self.target_tokens)

    @property
    def tokens_per_s(self) -> float:
        """Target tokens a second, evaluations and checkpoints left out."""
        return self.target_tokens / max(1e-9, self.seconds)


class Meter:
    """Sums up steps and shows them."""

    def __init__(self, *, is_shown: bool, first_step: int) -> None:
        """Open a progress bar that stands at a step."""
        self.window = Window()
        self._bar = tqdm(initial=first_step, unit="step", disable=not is_shown, dynamic_ncols=True, mininterval=1.0)
        self._step_began = time.monotonic()

    def begin(self) -> None:
        """Start the clock of a step."""
        self._step_began = time.monotonic()

    def end(self, *, loss: float, target_tokens: int) -> None:
        """Stop the clock of a step that learned from so many tokens with that summed loss."""
        self.window.loss += loss
        self.window.target_tokens += target_tokens
        self.window.seconds += time.monotonic() - self._step_began

    def show(self, *, epoch: int, last_step: int | None) -> None:
        """Move the bar by one step, with the figures of the window beside it.

        Args:
            epoch: counted from 0.
            last_step: where the run is expected to end, from which the bar tells the time left; None: unknown.
        """
        figures = {"loss": f"{self.window.mean_loss:.3f}", "tokens/s": f"{self.window.tokens_per_s:.0f}"}
        self._bar.total = last_step
        self._bar.set_postfix({**figures, "epoch": epoch}, refresh=False)
        self._bar.update()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            self._bar.write(text, file=sys.stderr)

    def reset(self) -> None:
        """Begin a new window."""
        self.window = Window()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
