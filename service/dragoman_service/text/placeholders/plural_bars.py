"""Bars between the plural forms of a message: `one file|many files`, `{0} none|[1,*] some`, `one file |||| files`.

The formats are those of Vue I18n, Laravel, Symfony and Polyglot. A bar of ordinary text, as in `About us | Contact`,
does not separate forms: forms share a word or a placeholder.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check

_LINE = re.compile(r"[^\n|]*+\|[^\n]*+")
_BARS = re.compile(r"\|{1,8}+")
_POLYGLOT_BARS = 4
_BOUND = r"(?:[-+]?Inf|-?\d{1,9}|\*)"
_INTERVAL = re.compile(rf"\s{{0,8}}+[\[\]]\s{{0,2}}{_BOUND}\s{{0,2}},\s{{0,2}}{_BOUND}\s{{0,2}}[\[\]]")
_NUMBERS = re.compile(r"\s{0,8}+\{\d{1,9}+(?:,\d{1,9}+){0,8}\}")
_WORD = re.compile(r"[^\W\d_]{1,64}+")
_NAME = re.compile(r"(?<![\w:]):[A-Za-z_]\w{0,63}+")  # of Laravel
_ONE_OR_NONE = re.compile(r"(?:no|none|zero|nothing|one|an?|single|keine?|null|eine?|0|1)\b", re.IGNORECASE)

_MAX_FORMS = 6  # plural categories of CLDR
_MAX_INTERVALS = 16
_MAX_FORM_CHARACTERS = 300
_MIN_STEM = 3  # characters that the singular and the plural of a word share
_MAX_ENDING = 3


def plural_separators(text: str, spans: Sequence[Span], check: Check) -> Iterator[Span]:
    """Yield the bars between plural forms, each with the interval that follows it, in order.

    Args:
        text: a message of one or more lines; the forms of a plural are within a line.
        spans: protected spans, ordered and disjoint. Only an interval, such as `{0}`, can be part of a separator.
        check: called regularly.
    """
    starts = [span.start for span in spans]
    for line in _LINE.finditer(text):
        check()
        bars: list[Span] = []
        for match in _BARS.finditer(text, line.start(), line.end()):
            check()
            index = bisect_left(starts, match.end()) - 1
            if index < 0 or spans[index].end <= match.start():
                bars.append(Span(start=match.start(), end=match.end()))
        polyglot = [bar for bar in bars if bar.end - bar.start == _POLYGLOT_BARS]
        if polyglot:
            yield from polyglot
        elif 0 < len(bars) < _MAX_INTERVALS and all(bar.end - bar.start == 1 for bar in bars):
            yield from _separators(text, Span(start=line.start(), end=line.end()), bars, spans)


def _separators(text: str, line: Span, bars: Sequence[Span], spans: Sequence[Span]) -> Iterator[Span]:
    begins = [line.start, *(bar.end for bar in bars)]
    ends = [*(bar.start for bar in bars), line.end]
    intervals = [_INTERVAL.match(text, begin) for begin in begins]
    numbers = [_NUMBERS.match(text, begin) for begin in begins]
    if any(intervals) or all(numbers):
        for index, begin in enumerate(begins):
            match = intervals[index] or numbers[index]
            start = bars[index - 1].start if index else begin
            if match:
                yield Span(start=start if index else match.end() - len(match[0].lstrip()), end=match.end())
            elif index:
                yield bars[index - 1]
        return
    forms = [Span(start=begin, end=end) for begin, end in zip(begins, ends, strict=True)]
    if len(forms) <= _MAX_FORMS and _are_forms(text, forms, spans):
        yield from bars


def _are_forms(text: str, forms: Sequence[Span], spans: Sequence[Span]) -> bool:
    if any(not 0 < form.end - form.start <= _MAX_FORM_CHARACTERS for form in forms):
        return False
    words, placeholders = [], []
    for form in forms:
        visible, names = _visible(text, form, spans)
        words.append([word.lower() for word in _WORD.findall(visible)])
        placeholders.append(names)
    if not all(words[:-1]) or not (words[-1] or placeholders[-1]):
        return False
    if any(first & second for first, second in pairwise(placeholders)):
        return True
    num_pairs = sum(_share_stem(first, second) for first, second in pairwise(words))
    first_form = text[forms[0].start : forms[0].end].strip()
    counts = any(placeholders) or any(_ONE_OR_NONE.match(first_form, match.start()) for match in _starts(first_form))
    if num_pairs and counts:
        return True
    return num_pairs == len(forms) - 1 and all(_differ_in_ending(first, second) for first, second in pairwise(words))


def _starts(text: str) -> Iterator[re.Match[str]]:
    return re.finditer(r"(?<!\S)\S", text)


def _visible(text: str, form: Span, spans: Sequence[Span]) -> tuple[str, set[str]]:
    # The text of a form without its placeholders, and the placeholders.
    index = bisect_left(spans, form.start, key=lambda span: span.start)
    parts, names, position = [], set(), form.start
    while index < len(spans) and spans[index].start < form.end:
        span = spans[index]
        parts.append(text[position : span.start])
        names.add(text[span.start : span.end])
        position, index = span.end, index + 1
    parts.append(text[position : form.end])
    visible = " ".join(parts)
    names.update(match[0] for match in _NAME.finditer(visible))
    return _NAME.sub(" ", visible), names


def _share_stem(first: Sequence[str], second: Sequence[str]) -> bool:
    stems = {stem for word in first for stem in _stems(word)}
    return any(stem in stems for word in second for stem in _stems(word))


def _stems(word: str) -> set[str]:
    # Two words have a common stem if they differ only in the last characters.
    return {word[:length] for length in range(max(_MIN_STEM, len(word) - _MAX_ENDING), len(word) + 1)}


def _differ_in_ending(first: Sequence[str], second: Sequence[str]) -> bool:
    # `car` and `cars`, `new message` and `new messages`.
    if len(first) != len(second) or first == second:
        return False
    return all(word == other or _stems(word) & _stems(other) for word, other in zip(first, second, strict=True))
