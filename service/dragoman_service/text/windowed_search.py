"""Regular expressions that search long texts in windows.

`re` holds the global interpreter lock (GIL) during each call. A search in windows releases the GIL between two calls,
and can be cancelled there: see `Check`.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

_LONG_CALL_S = 0.001

# Called every few milliseconds of text work; raises to end it.
Check = Callable[[], None]


def never_ends() -> None:
    """Check of work without deadline and cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedExpression:
    """An expression whose matches have a limited length."""

    expression: re.Pattern[str]
    reach: int  # most characters that a match reads from its start, including lookahead
    window: int  # start positions that one call tries

    def search(self, text: str, position: int, check: Check) -> re.Match[str] | None:
        """Return the first match from a position on, like `re.Pattern.search`."""
        while True:
            check()
            end = position + self.window
            started_s = time.perf_counter()
            match = self.expression.search(text, position, end + self.reach)
            if end + self.reach >= len(text) or (match is not None and match.start() < end):
                return match
            position = end  # a match that starts after `end` may be truncated
            # The event loop releases the GIL at each system call, several times per response. Without a pause, it would
            # wait for a whole window each time.
            if (duration_s := time.perf_counter() - started_s) > _LONG_CALL_S:
                time.sleep(duration_s)
