"""How much longer than forecast answers took of late: what a forecast must leave room for."""

from collections import deque

_NUM_REMEMBERED = 128
_NUM_CONVINCING = 16  # fewer say nothing
_LEAST_PREDICTED_S = 0.1  # shorter forecasts are not looked at: such waits may take many times as long without harm
_MIN_FACTOR = 2.5  # refusals cost, too: when calls begin to come faster than they are answered, answers slow down
_MAX_FACTOR = 4.0  # whatever a stall did, or nobody with a deadline would be let in after it


class Headroom:
    """The longest of the latest answers, each by its forecast; not thread-safe: the scheduler guards it.

    A forecast is right on average, and whoever is admitted on it with no time to spare is late half of the time. The
    room is for what others make of a wait; who need not wait needs none.
    """

    def __init__(self) -> None:
        """Begin without experience."""
        self._ratios: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        self._factor = _MIN_FACTOR

    @property
    def factor(self) -> float:
        """What to multiply the forecast of a wait by, 2.5 to 4; 2.5 until something is known."""
        return self._factor

    def record(self, *, predicted_s: float, actual_s: float) -> None:
        """Take notice of an answer.

        Args:
            predicted_s: from admission to the answer, as forecast.
            actual_s: as it was; for one that missed its deadline, until then.
        """
        if predicted_s < _LEAST_PREDICTED_S:
            return
        self._ratios.append(actual_s / predicted_s)
        if len(self._ratios) >= _NUM_CONVINCING:
            self._factor = min(max(_MIN_FACTOR, *self._ratios), _MAX_FACTOR)
