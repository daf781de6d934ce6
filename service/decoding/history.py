"""What every row of a running batch took at every step, and hypotheses read back from it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from service.decoding.step_model import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step of all segments that were in the batch then; the arrays are not changed any more."""

    tokens: IntArray
    """[B, K]"""

    parents: IntArray
    """[B, K] row of the previous step that was continued."""

    log_probs: FloatArray
    """[B, K] natural log-probability of the token."""


class History:
    """The steps of a batch, kept for as long as one of its segments has taken part in them.

    Nothing is moved when beams are reordered or segments leave: a step keeps the arrays that the search made anyway,
    and each segment knows at which index of them it was from which step on.
    """

    def __init__(self, num_segments: int = 0) -> None:
        """Begin with segments that have taken no step."""
        self._steps: deque[_Step] = deque()
        self._first = 0  # number of the oldest step kept
        self._places: list[list[tuple[int, int]]] = []  # of each segment: number of a step and its index from there on
        self.add_segments(num_segments)

    @property
    def num_steps(self) -> int:
        """Steps kept."""
        return len(self._steps)

    def add_segments(self, count: int) -> None:
        """Append segments that have taken no step."""
        number, index = self._first + len(self._steps), len(self._places)
        self._places += [[(number, index + offset)] for offset in range(count)]

    def record(self, tokens: IntArray, parents: IntArray, log_probs: FloatArray) -> None:
        """Keep one step of every segment; the arrays, [B, K], must not be changed afterwards."""
        self._steps.append(_Step(tokens=tokens, parents=parents, log_probs=log_probs))

    def trace(self, segment: int, *, row: int, length: int, first: int = 0) -> tuple[list[int], list[float]]:
        """Return tokens and their log-probabilities of the hypothesis that row `row` held after `length` steps.

        `first` skips that many tokens at its beginning.
        """
        places = self._places[segment]
        began, current = places[0][0], len(places) - 1
        tokens, log_probs = list[int](), list[float]()
        for number in range(began + length - 1, began + first - 1, -1):
            while places[current][0] > number:
                current -= 1
            step, at = self._steps[number - self._first], (places[current][1], row)
            tokens.append(step.tokens.item(at))
            log_probs.append(step.log_probs.item(at))
            row = step.parents.item(at)
        return tokens[::-1], log_probs[::-1]

    def keep(self, segments: Sequence[int]) -> None:
        """Forget all segments but these, which become 0, 1, ... in the order given."""
        number = self._first + len(self._steps)
        self._places = [self._places[segment] for segment in segments]
        for index, places in enumerate(self._places):
            if places[-1][1] != index:
                places.append((number, index))
        self._forget_before(min((places[0][0] for places in self._places), default=number))

    def _forget_before(self, number: int) -> None:
        while self._first < number:
            self._steps.popleft()
            self._first += 1
