"""Spans of a sentence pair that translate each other: copied words and translations by a lexicon."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from dragoman_export.data.lexicon import Translations

WORD = re.compile(r"[^\W_]\w*(?:\.\w+)*")
END = re.compile(r"(?<=[\w)\"'“”»⟧⟫])[.!?]$")  # the mark that ends a sentence
_MIN_LETTERS = 3  # of a translated word
# sentence-initial words that exist in both languages with different meanings, or are not names
_FIRST_WORDS = frozenset(
    (
        *("all", "am", "an", "also", "arm", "bald", "bin", "bring", "die", "fast", "gut", "hat", "her", "hey", "hier"),
        *("hinter", "in", "ich", "ist", "kind", "links", "man", "mit", "oder", "per", "plus", "rate", "so", "the"),
        *("war", "warm", "warum", "was", "wer", "wild", "will"),
    )
)

Range = tuple[int, int]


class Aligned(NamedTuple):
    """Ranges of source and target that translate each other."""

    source: Range
    target: Range


def translated_words(source: str, target: str, translations: Translations) -> list[Aligned]:
    """Return the words that occur once on each side and are each other's only translation in the pair."""
    sides = [by_spelling(text, _words(text), str.lower) for text in (source, target)]
    links = [(word, other) for word in sides[0] for other in translations.get(word, ()) if other in sides[1]]
    counts = Counter(chain.from_iterable((("source", word), ("target", other)) for word, other in links))
    return [
        Aligned(sides[0][word][0], sides[1][other][0])
        for word, other in links
        if counts["source", word] == counts["target", other] == len(sides[0][word]) == len(sides[1][other]) == 1
        and min(len(word), len(other)) >= _MIN_LETTERS
        and not _is_joined(source, *sides[0][word][0])
    ]


def _words(text: str) -> Iterator[Range]:
    return (match.span() for match in WORD.finditer(text))


def common_end(source: str, target: str) -> str:
    """Return the mark that ends both sides; empty if they end differently."""
    ends = END.search(source), END.search(target)
    return ends[0][0] if ends[0] and ends[1] and ends[0][0] == ends[1][0] else ""


def replaced(text: str, spans: Sequence[Range], pieces: Sequence[str]) -> str:
    """Return the text with a piece in place of each span; the spans do not overlap."""
    for (start, end), piece in sorted(zip(spans, pieces, strict=True), reverse=True):
        text = text[:start] + piece + text[end:]
    return text


def by_spelling(text: str, spans: Iterable[Range], spelled: Callable[[str], str] = str) -> dict[str, list[Range]]:
    """Return the spans of each spelling, `spelled` by a function such as `str.lower`."""
    places: dict[str, list[Range]] = {}
    for start, end in spans:
        places.setdefault(spelled(text[start:end]), []).append((start, end))
    return places


def copied_words(source: str, target: str) -> list[Aligned]:
    """Return names, numbers and similar words that occur once on each side; adjacent ones are merged."""
    sides = [by_spelling(text, _words(text)) for text in (source, target)]
    found = sorted(
        Aligned(places[0], sides[1][word][0])
        for word, places in sides[0].items()
        if len(places) == 1 == len(sides[1].get(word, ()))
        and _is_name(word, is_first=places[0][0] == 0)
        and not _is_joined(source, *places[0])
    )
    merged: list[Aligned] = []
    for span in found:
        between = [
            text[before[1] : own[0]]
            for text, before, own in zip((source, target), merged[-1] if merged else span, span, strict=True)
        ]
        if between == [" ", " "]:
            before = merged.pop()
            merged.append(Aligned((before.source[0], span.source[1]), (before.target[0], span.target[1])))
        else:
            merged.append(span)
    return merged


def _is_joined(text: str, start: int, end: int) -> bool:
    return text[max(0, start - 1) : start] == "-" or text[end : end + 1] == "-"


def _is_name(word: str, *, is_first: bool) -> bool:
    # Whether a word with a digit or a capital is usually copied, unlike `I` or the first word of a sentence.
    if any(map(str.isdigit, word)):
        return True
    if not any(map(str.isupper, word)) or len(word) == 1:
        return False
    if not word.istitle():
        return True
    return len(word) > 2 and not (is_first and word.lower() in _FIRST_WORDS)
