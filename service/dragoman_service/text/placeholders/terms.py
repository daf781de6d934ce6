"""Terms with fixed translations as protected spans."""

from collections.abc import Iterator, Sequence

from dragoman_service.datatypes import Span
from dragoman_service.request import Term
from dragoman_service.text.placeholders.spans import ProtectedSpan, add_matches
from dragoman_service.text.segmentation import Check, never_ends

_CHECK_CHARACTERS = 64  # interval of checks in the search for terms


class TermMatcher:
    """Finds terms; where several begin at one position, the longest wins.

    The time does not depend on the number of terms: at each character, only the lengths of terms with this first
    character are tried.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        """Take terms with distinct sources; of sources that differ only in case, the one that equals the text wins."""
        self._terms: dict[str, list[Term]] = {}
        lengths: dict[tuple[str, bool], set[int]] = {}
        for term in terms:
            source = _folded(term.source)
            self._terms.setdefault(source, []).append(term)
            lengths.setdefault((source[0], _begins_word(term)), set()).add(len(source))
        self._lengths = {start: sorted(sizes, reverse=True) for start, sizes in lengths.items()}

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans and the terms between them, in order."""
        folded = _folded(text)

        def find(text: str, start: int, end: int) -> Iterator[ProtectedSpan]:
            checked_to = start
            while start < end:
                if start >= checked_to:
                    check()
                    checked_to = start + _CHECK_CHARACTERS
                match = self._match_at(start, end, text, folded)
                if match is not None:
                    yield match
                start = match.span.end if match else start + 1

        return add_matches(spans, text, find, check)

    def _match_at(self, start: int, stop: int, text: str, folded: str) -> ProtectedSpan | None:
        lengths = self._lengths.get((folded[start], False), [])
        if not (start and _is_word_character(text[start - 1])) and (words := self._lengths.get((folded[start], True))):
            lengths = sorted({*lengths, *words}, reverse=True) if lengths else words
        for length in lengths:
            end = start + length
            candidates = self._terms.get(folded[start:end]) if end <= stop else None
            if not candidates:
                continue
            is_within_word = (
                start > 0 and _is_word_character(text[start - 1]),
                end < stop and _is_word_character(text[end]),
            )
            source = text[start:end]
            if fitting := [term for term in candidates if _fits(term, source, is_within_word)]:
                term = next((term for term in fitting if term.source == source), fitting[0])
                return ProtectedSpan(span=Span(start=start, end=end), kind=None, target=term.target or source)
        return None


def _folded(text: str) -> str:
    # Case-folded text of the same length.
    folded = text.casefold()
    if len(folded) == len(text):  # no character folds to nothing, so each has folded to one
        return folded
    return "".join(next((form for form in (char.casefold(), char.lower()) if len(form) == 1), char) for char in text)


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def _begins_word(term: Term) -> bool:
    return not term.is_part_of_word and term.source[0].isalnum()


def _fits(term: Term, source: str, is_within_word: tuple[bool, bool]) -> bool:
    if term.is_case_sensitive and term.source != source:
        return False
    ends_word = not term.is_part_of_word and term.source[-1].isalnum()
    return not ((is_within_word[0] and _begins_word(term)) or (is_within_word[1] and ends_word))
