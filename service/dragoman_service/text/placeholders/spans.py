"""Protected spans, the finders that add them, and the search of long texts in windows."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.segmentation import Check, never_ends

_LONG_CALL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedExpression:
    """An expression whose matches have a limited length. It searches long texts in windows.

    `re` holds the global interpreter lock (GIL) during each call. A search in windows releases the GIL between two
    calls, and can be cancelled there.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedSpan:
    """Span that a translation keeps unchanged, or a term with a fixed translation."""

    span: Span
    kind: ProtectedKind | None  # None: a pattern of the caller, or a term
    target: str | None = None  # fixed translation; None: unchanged
    messages: tuple[Span, ...] = ()  # translated texts inside it, such as the forms of a plural


class SpanFinder(Protocol):
    """Finds more protected spans of a text, in the ranges that no other span covers."""

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the given spans and the spans that this finder adds, in order and without overlaps."""


def free_ranges(spans: Sequence[ProtectedSpan], length: int) -> Iterator[Span]:
    """Yield the ranges of a text that no span covers, in order.

    Args:
        spans: ordered and disjoint.
        length: length of the text.
    """
    position = 0
    for protected in spans:
        if position < protected.span.start:
            yield Span(start=position, end=protected.span.start)
        position = protected.span.end
    if position < length:
        yield Span(start=position, end=length)


def add_matches(
    spans: Sequence[ProtectedSpan],
    text: str,
    find: Callable[[str, int, int], Iterable[ProtectedSpan]],
    check: Check = never_ends,
) -> list[ProtectedSpan]:
    """Return the spans of a text and the matches between them, in order.

    Args:
        spans: ordered and disjoint.
        text: the whole text.
        find: returns the matches between two positions of the text, ordered and disjoint.
        check: called for each range.
    """
    matches: list[ProtectedSpan] = []
    for free in free_ranges(spans, len(text)):
        check()
        matches += find(text, free.start, free.end)
    return merged(spans, matches)


def merged(spans: Sequence[ProtectedSpan], others: Sequence[ProtectedSpan]) -> list[ProtectedSpan]:
    """Return the spans of two lists, which do not overlap, in order."""
    if not others:
        return list(spans)
    return sorted((*spans, *others), key=lambda protected: protected.span.start)
