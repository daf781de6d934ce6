"""Regular expressions that search long texts in windows.

`re` holds Python's global interpreter lock (GIL) during each call. A search in windows releases the GIL between two
calls, and the work can end there: see `Check`.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

_LONG_CALL_S = 0.001

Check = Callable[[], None]
"""Called every few milliseconds of text work; raises if the work must end."""


def never_ends() -> None:
    """Let text work go on: the check of a caller that has neither a deadline nor a way to cancel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedExpression:
    """An expression whose matches have a limited length."""

    expression: re.Pattern[str]
    reach: int
    """Most characters that a match looks at from its start on, lookahead included."""

    window: int
    """Places that one call tries as the start of a match, besides `reach` more."""

    def search(self, text: str, position: int, check: Check) -> re.Match[str] | None:
        """Return the first match from a position on, as `re.Pattern.search` does."""
        while True:
            check()
            end = position + self.window
            started_s = time.perf_counter()
            match = self.expression.search(text, position, end + self.reach)
            if end + self.reach >= len(text) or (match is not None and match.start() < end):
                return match
            position = end  # a match that starts behind `end` may be cut off
            # The event loop releases the GIL at each of its system calls, several times per answer. Without a pause it
            # would wait for a whole window each time.
            if (duration_s := time.perf_counter() - started_s) > _LONG_CALL_S:
                time.sleep(duration_s)
