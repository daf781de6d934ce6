"""Translations of the fakes, and failures that a test injects: `overloaded 0.5 x2` in code, `fake:...` as a text."""

import math
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

MODEL_NAME = "fake"  # of every answer

PREFIX = "fake:"
"""Start of a sentence that injects a failure."""

_DEFAULT_SECONDS: Mapping[str, float] = {
    "overloaded": 1.0,
    "rate-limited": 1.0,
    "unavailable": 0.0,
    "deadline": 0.0,
    "internal": 0.0,
    "slow": 1.0,
}
_MAX_SECONDS = 3600.0
_MAX_TIMES = 1000
_FORM = re.compile(r"(?P<kind>[a-z-]+)(?: (?P<seconds>\d+(?:\.\d+)?))?(?: x(?P<times>\d+))?")

GRAMMAR = (
    f"KIND [SECONDS] [xTIMES] with KIND from {', '.join(_DEFAULT_SECONDS)}, SECONDS at most {_MAX_SECONDS:g} and TIMES "
    f"from 1 to {_MAX_TIMES}"
)
"""Form of a failure, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure to inject."""

    kind: str
    seconds: float
    """Retry delay of `overloaded` and `rate-limited`, delay of the answer of `slow`; otherwise ignored."""

    times: int | None  # number of consecutive failures; None: not given

    @classmethod
    def parse(cls, failure: str) -> Self:
        """Parse a failure such as `overloaded 0.5 x2`; ValueError if it has another form than `GRAMMAR`."""
        match = _FORM.fullmatch(failure.strip())
        seconds, times = math.nan, None
        if match and match["kind"] in _DEFAULT_SECONDS:
            seconds = float(match["seconds"] or _DEFAULT_SECONDS[match["kind"]])
            times = int(match["times"]) if match["times"] else None
        is_valid = seconds <= _MAX_SECONDS and (times is None or 1 <= times <= _MAX_TIMES)
        if not match or not is_valid:
            raise ValueError(f"failure is {failure[:80]!r}, must be {GRAMMAR}")
        return cls(kind=match["kind"], seconds=seconds, times=times)


class SentenceFailures:
    """Failures that sentences inject, such as `fake:overloaded 0.5 x2`. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()  # failures of each sentence that has a number of them
        self._lock = threading.Lock()

    def next_failure(self, sentence: str) -> Failure | None:
        """Return the failure that a sentence injects now; ValueError if its form is invalid.

        A sentence with TIMES fails this number of times, then it is translated once; then it fails again.
        """
        sentence = sentence.strip()
        if not sentence.startswith(PREFIX):
            return None
        failure = Failure.parse(sentence.removeprefix(PREFIX))
        if failure.times is None:
            return failure
        with self._lock:
            self._counts[sentence] += 1
            if self._counts[sentence] <= failure.times:
                return failure
            del self._counts[sentence]
        return None


def fake_translation(sentence: str, target_language: str, rank: int = 1) -> str:
    """Return the fake translation of a sentence: `[de] Hello.`, and `[de 2] Hello.` as the second hypothesis."""
    return f"[{target_language}{f' {rank}' if rank > 1 else ''}] {sentence}"
