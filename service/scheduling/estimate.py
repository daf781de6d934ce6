"""A quantity learned from a stream of observations, which no single one of them can spoil."""

import statistics

_MIN_OBSERVATIONS = 32  # before, nothing is said
_MEMORY = 128  # observations after which a past one counts e times less
_MAX_SURPRISE = 4.0  # one observation counts as at most so many times what was expected, and at least as 1 over it


class Estimate:
    """An exponentially weighted ratio, such as seconds for each token.

    The first observations are judged by their median, later ones by what was learned before: a single stall moves the
    value by at most a few percent, while a lasting change is learned within a few hundred observations.
    """

    def __init__(self) -> None:
        self._first: list[tuple[float, float]] = []
        self._amount = 0.0
        self._per = 0.0

    @property
    def value(self) -> float | None:
        """The ratio; None as long as too little was observed."""
        return self._amount / self._per if self._per else None

    def record(self, amount: float, *, per: float) -> None:
        """Add an observation: an amount, for so much; `per` is above 0."""
        if self.value is None:
            self._first.append((amount, per))
            if len(self._first) == _MIN_OBSERVATIONS:
                self._begin()
        else:
            self._add(amount, per, expected=self.value)

    def _begin(self) -> None:
        median = statistics.median(amount / per for amount, per in self._first)
        for amount, per in self._first:
            self._add(amount, per, expected=median)
        self._first.clear()

    def _add(self, amount: float, per: float, *, expected: float) -> None:
        usual = expected * per
        if usual > 0:
            amount = min(max(amount, usual / _MAX_SURPRISE), usual * _MAX_SURPRISE)
        decay = 1 - 1 / _MEMORY
        self._amount = self._amount * decay + amount
        self._per = self._per * decay + per
