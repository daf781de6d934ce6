"""Invariant of numbers: source and target contain the same ones."""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from dragoman_service.datatypes import Span, WarningKind
from dragoman_service.text.invariants.number_words import is_known_language, num_inexact_words, number_words
from dragoman_service.text.invariants.violations import MAX_VIOLATIONS, Texts, Violation, quoted
from dragoman_service.text.placeholders.number_values import NumberToken, is_same_number, numbers_in

_DIGIT = re.compile(r"\d")
_MAX_COMPARISONS = 2_000  # of different numbers with the same digits
_MAX_UNUSUAL = 32  # numbers of a text that are compared in other ways than by their digits

_UNCHECKED_BELOW = 13  # in languages whose number words are unknown
_CLOCK = re.compile(r"(\d{1,2})(?:[:.](\d\d))?")
_TWELVE_HOURS = re.compile(r"\d\s?[ap]\.?\s?m\b|\b(?:o'clock|noon|morning|afternoon|evening|night)\b", re.IGNORECASE)
_DECADE = re.compile(r"(?:\d\d)?(\d0)")
_DECADE_ENDING = re.compile(r"['’]?(?:s\b|er)")
_MAX_MULTIPLE_DISTANCE = 30  # characters between a number and its multiple, as in `12 bis 16 Tausend`
_MULTIPLE = re.compile(
    r"(?<=\d)[km]\b|thousand|million|billion|trillion|tausend|milliard|billiard|mio\b|mrd\b|tsd\b|mn\b|bn\b",
    re.IGNORECASE,
)
_RANGE = re.compile(r"(\d{1,9}(?:[.,]\d{1,9})*)\s?[-–]\s?(\d{1,9}(?:[.,]\d{1,9})*)")
_HYPHENATED = re.compile(r"(?<![\w.,-])(\d{1,20})-(\d{1,20})(?![\w-]|[.,]\d)")
_DATE = re.compile(r"(\d{1,4})[./-](\d{1,2})[./-](\d{1,4})\.?")


def find_changed_numbers(texts: Texts) -> Iterator[Violation]:
    """Yield numbers that are missing, altered or added.

    Other notations of the target language, number words, twelve and twenty-four hours and decades are the same number.
    """
    if not _DIGIT.search(texts.source) and not _DIGIT.search(texts.target):
        return
    missing, added = _unequal(list(numbers_in(texts.source)), list(numbers_in(texts.target)))
    if missing and added:
        missing, added = _unequal(_without_ranges(missing), _without_ranges(added))
        missing, added = _without_same(missing, added, texts)
    if missing or added:
        missing, added = _without_unusual(missing, added, texts)
    missing += _without_hyphen(texts)
    for number, (old, new) in enumerate(zip_longest(missing, added)):
        if number == MAX_VIOLATIONS:
            return
        yield Violation(
            kind=WarningKind.NUMBER_CHANGED,
            detail=_detail(old, new),
            source=old.span if old else None,
            target=new.span if new else None,
        )


def _detail(old: NumberToken | None, new: NumberToken | None) -> str:
    if old is None or new is None:
        return f"{quoted(old.text)} is missing" if old else f"{quoted(new.text)} was added" if new else ""
    return f"{quoted(old.text)} became {quoted(new.text)}"


def _unequal(
    sources: Sequence[NumberToken], targets: Sequence[NumberToken]
) -> tuple[list[NumberToken], list[NumberToken]]:
    # The numbers of each side without those that the other side has with the same characters.
    source_counts = Counter(number.text for number in sources)
    target_counts = Counter(number.text for number in targets)
    return _excess(sources, source_counts - target_counts), _excess(targets, target_counts - source_counts)


def _excess(numbers: Sequence[NumberToken], counts: Counter[str]) -> list[NumberToken]:
    if not counts:
        return []
    excess = []
    for number in reversed(numbers):
        if counts[number.text] > 0:
            counts[number.text] -= 1
            excess.append(number)
    return excess[::-1]


def _without_ranges(numbers: Sequence[NumberToken]) -> list[NumberToken]:
    # `100-300` as two numbers, as in `100 bis 300`
    parts = []
    for number in numbers:
        if match := _RANGE.fullmatch(number.text):
            for group in (1, 2):
                start = number.span.start + match.start(group)
                span = Span(start=start, end=start + len(match[group]))
                parts.append(NumberToken(span=span, text=match[group]))
        else:
            parts.append(number)
    return parts


def _without_hyphen(texts: Texts) -> Iterator[NumberToken]:
    # `8313-39` as `8313 39`
    if "-" in texts.source:
        for match in _HYPHENATED.finditer(texts.source):
            if f"{match[1]} {match[2]}" in texts.target and match[0] not in texts.target:
                yield NumberToken(span=Span(start=match.start(), end=match.end()), text=match[0])


def _digits(text: str) -> str:
    return "".join(filter(str.isdigit, text))


def _without_same(
    missing: list[NumberToken], added: list[NumberToken], texts: Texts
) -> tuple[list[NumberToken], list[NumberToken]]:
    by_digits: defaultdict[str, deque[int]] = defaultdict(deque)
    for index, number in enumerate(added):
        by_digits[_digits(number.text)].append(index)
    comparisons = 0
    rest: list[NumberToken] = []
    same: set[int] = set()
    for number in missing:
        candidates = by_digits.get(_digits(number.text), deque())
        for _ in range(len(candidates)):
            comparisons += 1
            if comparisons > _MAX_COMPARISONS or is_same_number(
                number.text,
                added[candidates[0]].text,
                source_language=texts.source_language,
                target_language=texts.target_language,
            ):
                same.add(candidates.popleft())
                break
            candidates.rotate(-1)
        else:
            rest.append(number)
    return rest, [number for index, number in enumerate(added) if index not in same]


def _without_unusual(
    missing: list[NumberToken], added: list[NumberToken], texts: Texts
) -> tuple[list[NumberToken], list[NumberToken]]:
    if len(missing) > _MAX_UNUSUAL or len(added) > _MAX_UNUSUAL:
        return missing, added
    has_twelve_hours = bool(_TWELVE_HOURS.search(texts.source) or _TWELVE_HOURS.search(texts.target))
    rest = []
    added = list(added)
    for old in missing:
        dates = _parts_of_date(old, added)
        if dates:
            added = [new for new in added if new not in dates]
            continue
        for new in added:
            if (
                _is_same_time(old.text, new.text, has_twelve_hours=has_twelve_hours)
                or _is_same_date(old.text, new.text)
                or _is_same_decade(old, new, texts)
                or _is_same_multiple(old, new, texts)
            ):
                added.remove(new)
                break
        else:
            rest.append(old)
    for new in list(added):
        if dates := _parts_of_date(new, rest):
            added.remove(new)
            rest = [old for old in rest if old not in dates]
    source_words = number_words(texts.source, texts.source_language)
    target_words = number_words(texts.target, texts.target_language)
    spare, extra = target_words - source_words, source_words - target_words
    # The article `ein` is the same word as the number.
    spare[1], extra[1] = target_words[1], source_words[1]
    rest = _not_in_words(rest, texts.target, texts.target_language, spare)
    added = _not_in_words(added, texts.source, texts.source_language, extra)
    return rest, added


def _value(text: str) -> int | None:
    text = text.rstrip(".")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _is_same_time(first: str, second: str, *, has_twelve_hours: bool) -> bool:
    # `7 pm` and `19 Uhr`, `7:30 p.m.` and `19.30 Uhr`, `6:00` and `6 Uhr`
    left, right = _CLOCK.fullmatch(first), _CLOCK.fullmatch(second)
    if left is None or right is None or int(left[2] or 0) != int(right[2] or 0):
        return False
    return abs(int(left[1]) - int(right[1])) in ({0, 12} if has_twelve_hours else {0})


def _is_same_date(first: str, second: str) -> bool:
    # `11/28/2026`, `28.11.2026` and `2026-11-28`
    left, right = _DATE.fullmatch(first), _DATE.fullmatch(second)
    if left is None or right is None:
        return False
    return sorted(map(int, left.groups())) == sorted(map(int, right.groups()))


def _is_same_decade(old: NumberToken, new: NumberToken, texts: Texts) -> bool:
    left, right = _DECADE.fullmatch(old.text), _DECADE.fullmatch(new.text)
    if left is None or right is None or left[1] != right[1]:
        return False
    return bool(_DECADE_ENDING.match(texts.source, old.span.end) and _DECADE_ENDING.match(texts.target, new.span.end))


def _is_same_multiple(old: NumberToken, new: NumberToken, texts: Texts) -> bool:
    # `1.5 million` and `1.500.000`, `12 bis 16 Tausend` and `12,000 to 16,000`
    left, right = _digits(old.text), _digits(new.text)
    if left.strip("0") != right.strip("0") or left == right:
        return False
    text, position = (texts.source, old.span.end) if len(left) < len(right) else (texts.target, new.span.end)
    return _MULTIPLE.search(text, position, position + _MAX_MULTIPLE_DISTANCE) is not None


def _parts_of_date(number: NumberToken, others: Sequence[NumberToken]) -> list[NumberToken]:
    # The numbers of a date that is written with the name of its month, such as those of `28. November 2026`.
    match = _DATE.fullmatch(number.text)
    if match is None:
        return []
    values = {int(part) for part in match.groups()}
    parts = [other for other in others if _value(other.text) in values]
    return parts if len(parts) >= 2 else []


def _not_in_words(numbers: Sequence[NumberToken], text: str, language: str, words: Counter[int]) -> list[NumberToken]:
    # The numbers that the other text does not spell in words.
    if not numbers:
        return []
    num_inexact = num_inexact_words(text, language)
    is_known = is_known_language(language)
    rest = []
    for number in numbers:
        value = _value(number.text)
        if value is not None and words[value] > 0:
            words[value] -= 1
        elif num_inexact > 0:
            num_inexact -= 1
        elif value is None or is_known or value >= _UNCHECKED_BELOW:
            rest.append(number)
    return rest
