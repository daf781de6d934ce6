"""Quotation marks and apostrophes: those of the target language, where the source has typographic ones.

A translation may lack marks. `missing_marks` finds their place if the quoted text is copied or a comma shows where it
ends. All functions are pure and take linear time.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from dragoman_service.datatypes import Span
from dragoman_service.text.invariants.symbols import quotation_marks


@dataclass(frozen=True, slots=True)
class _Quotes:
    opening: str
    closing: str
    inner_opening: str
    inner_closing: str


def _by_language(*tables: tuple[str, _Quotes]) -> dict[str, _Quotes]:
    return {language: quotes for languages, quotes in tables for language in languages.split()}


# A French mark has a space inside.
_QUOTES = _by_language(
    ("af cy en ga hi id ko lv ms mt nl pt sw ta te th tl tr vi zh", _Quotes("“", "”", "‘", "’")),
    ("bg cs de et is ka lb lt mk sk sl", _Quotes("„", "“", "‚", "‘")),
    ("bs hr hu pl ro sr sq", _Quotes("„", "”", "‚", "’")),
    ("da fi sv", _Quotes("”", "”", "’", "’")),
    ("ar ca el es eu fa gl hy it nb nn no pt-pt", _Quotes("«", "»", "“", "”")),
    ("az be kk ru uk", _Quotes("«", "»", "„", "“")),
    ("ja yue zh-hant zh-hk zh-tw", _Quotes("「", "」", "『", "』")),
    ("de-ch de-li fr-ch it-ch", _Quotes("«", "»", "‹", "›")),
    ("fr", _Quotes("«\xa0", "\xa0»", "“", "”")),
)

_TYPOGRAPHIC_DOUBLE = frozenset("“”„‟«»〝〞「」")
_TYPOGRAPHIC_SINGLE_OPENING = frozenset("‘‚‹『")
_TYPOGRAPHIC_SINGLE = _TYPOGRAPHIC_SINGLE_OPENING | frozenset("’‛›』ʼ´")
_QUOTE_OR_PRIME = re.compile('["″“”„‟«»〝〞「」]')
_PRIME = re.compile(r"(?<=\d)'(?!\w)")
_BEFORE_OPENING = frozenset("([{<-–—/|¿¡=:„“«‚‘‹'\"")
_BEFORE_CLOSING = frozenset(".!?…")
_MAX_OCCURRENCES = 16  # of a quoted text
_MIN_RATIO, _MAX_RATIO = 0.4, 2.5  # of the lengths of a text and its translation


def with_marks_of_language(source: str, target: str, *, target_language: str) -> str:
    """Return the target with the marks of its language where the source has typographic ones.

    Args:
        source: the text of the caller.
        target: its translation with straight marks.
        target_language: BCP-47 tag. Languages without a table get the marks of the source.
    """
    pairs = _quotes_of(target_language) or _quotes_in(source)
    return _restored_singles(source, _restored_doubles(source, target, pairs), pairs)


def missing_marks(source: str, target: str) -> list[tuple[Span, str]]:
    """Return the changes that give a translation the quotation marks of its source, in order; empty if it has them.

    Each change replaces a range of the target: an empty one by a straight mark, or a surplus mark by nothing. A mark
    whose place is unclear is not placed.

    Args:
        source: a sentence, with a distinct token for each protected span.
        target: its translation with the same tokens.
    """
    old, new = quotation_marks(source), quotation_marks(target)
    if len(old) == len(new) or not old:
        return []
    if len(old) % 2:
        return [] if new or len(old) > 1 else _at_the_edge(source, target, old[0])
    pairs = [_Pair(start=start, end=end) for start, end in zip(old[::2], old[1::2], strict=True)]
    if any(source[pair.start + 1].isspace() or source[pair.end - 1].isspace() for pair in pairs):
        return []  # nested, or with spaces inside
    if len(new) > len(old):
        surplus = _surplus_mark(target, new) if len(new) == len(old) + 1 else None
        return [] if surplus is None else [(Span(start=surplus, end=surplus + 1), "")]
    found = dict.fromkeys(chain.from_iterable(_around_copy(source, target, pair, new) for pair in pairs))
    if not found and len(new) == len(old) - 1:
        found = dict.fromkeys(_before_comma(source, target, pairs, new))
    if len(found) > len(old) - len(new):
        return []
    return [(Span(start=position, end=position), '"') for position in sorted(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    start: int  # position of the opening mark
    end: int  # position of the closing mark


def _around_copy(source: str, target: str, pair: _Pair, marks: Sequence[int]) -> Iterator[int]:
    # Positions of the missing marks around a quoted text that the target copies.
    quoted = source[pair.start + 1 : pair.end]
    own, copies = _occurrences(quoted, source), _occurrences(quoted, target)
    if len(own) != len(copies) or pair.start + 1 not in own:
        return
    start = copies[own.index(pair.start + 1)]
    end = start + len(quoted)
    if start - 1 not in marks:
        yield start
    if end not in marks:
        yield end


def _at_the_edge(source: str, target: str, position: int) -> list[tuple[Span, str]]:
    # The only mark of a sentence, at its start or at its end: of a quotation of several sentences.
    source, target = source.rstrip(), target.rstrip()
    if position == 0 and target and not source[1:2].isspace():
        return [(Span(start=0, end=0), '"')]
    if position == len(source) - 1 and source[-2:-1] in _BEFORE_CLOSING and target[-1:] in _BEFORE_CLOSING:
        return [(Span(start=len(target), end=len(target)), '"')]
    return []


def _occurrences(words: str, text: str) -> list[int]:
    # Positions of a text that is not a part of longer words.
    positions: list[int] = []
    position = text.find(words) if words else -1
    while position >= 0 and len(positions) <= _MAX_OCCURRENCES:
        if not text[position - 1 : position].isalnum() and not text[position + len(words) :][:1].isalnum():
            positions.append(position)
        position = text.find(words, position + len(words))
    return positions if len(positions) <= _MAX_OCCURRENCES else []


def _before_comma(source: str, target: str, pairs: Sequence[_Pair], marks: Sequence[int]) -> Iterator[int]:
    # Position of the only missing mark, if it closes a text before a comma: `"I agree", she said.`
    number = _unclosed(target, marks)
    if number is None:
        return
    pair, opening = pairs[number], marks[2 * number]
    is_inside = source[pair.end - 1] == ","
    if not is_inside and source[pair.end + 1 : pair.end + 2] != ",":
        return
    source_end = pairs[number + 1].start if number + 1 < len(pairs) else len(source)
    target_end = marks[2 * number + 1] if 2 * number + 1 < len(marks) else len(target)
    num_commas = source.count(",", pair.end - is_inside, source_end)
    position = target_end
    for _ in range(num_commas):
        position = target.rfind(",", opening, position)
        if position < 0:
            return
    if _is_similar(pair.end - pair.start, position - opening) and _is_similar(
        source_end - pair.end, target_end - position
    ):
        yield position + is_inside


def _unclosed(text: str, marks: Sequence[int]) -> int | None:
    # Number of the quotation without a closing mark; None if its marks are otherwise.
    for number, position in enumerate(marks):
        is_opening = number % 2 == 0
        if _opens(text, position, is_open=not is_opening) is not is_opening:
            return number // 2 if not is_opening else None
    return len(marks) // 2 if len(marks) % 2 else None


def _surplus_mark(text: str, marks: Sequence[int]) -> int | None:
    # The first of two closing marks, within a compound: `"Edit"-menu"`.
    for first, second in pairwise(marks):
        closes = not _opens(text, first, is_open=True) and not _opens(text, second, is_open=True)
        if closes and text[first + 1 : first + 2] == "-" and " " not in text[first:second]:
            return first
    return None


def _is_similar(length: int, other: int) -> bool:
    return length * _MIN_RATIO <= other <= length * _MAX_RATIO


def localized_marks(text: str, positions: Sequence[int], *, target_language: str) -> dict[int, str]:
    """Return the typographic double quotation marks at these positions of a text, in the style of a language.

    A mark without a partner and between spaces is a symbol: it has no entry, as other characters.
    """
    pairs = _quotes_of(target_language)
    if pairs is None:
        return {}
    localized: dict[int, str] = {}
    is_open = False
    for position in positions:
        if text[position] in _TYPOGRAPHIC_DOUBLE and not _is_between_spaces(text, position):
            is_open = _opens(text, position, is_open=is_open)
            localized[position] = pairs.opening if is_open else pairs.closing
    return localized


def _quotes_of(language: str) -> _Quotes | None:
    parts = language.lower().split("-")
    for length in range(len(parts), 0, -1):
        if pairs := _QUOTES.get("-".join(parts[:length])):
            return pairs
    region = f"{parts[0]}-{parts[-1]}"
    return _QUOTES.get(region)


def _quotes_in(source: str) -> _Quotes:
    doubles = [char for char in source if char in _TYPOGRAPHIC_DOUBLE]
    singles = [char for char in source if char in _TYPOGRAPHIC_SINGLE]
    opening, closing = (doubles[0], doubles[1]) if len(doubles) > 1 else ("“", "”")
    inner_opening, inner_closing = (singles[0], singles[1]) if len(singles) > 1 else ("‘", "’")
    return _Quotes(opening, closing, inner_opening, inner_closing)


def _restored_doubles(source: str, target: str, pairs: _Quotes) -> str:
    if '"' not in target:
        return target
    marks = list(_QUOTE_OR_PRIME.finditer(source))
    old = [mark[0] for mark in marks]
    if all(mark == '"' for mark in old):
        return target
    symbols = {mark[0] for mark in marks if len(marks) % 2 and _is_between_spaces(source, mark.start())}
    positions = [match.start() for match in _QUOTE_OR_PRIME.finditer(target)]
    if len(positions) != len(old):
        if '"' in old or "″" in old:
            return target  # which ones are straight is unclear
        old = ["“"] * len(positions)
    result, copied_to, is_open = [], 0, False
    for position, mark in zip(positions, old, strict=True):
        is_quote = mark not in {'"', "″"} and mark not in symbols
        if is_quote:
            is_open = _opens(target, position, is_open=is_open)
        if target[position] == '"' and mark != '"':
            result += [target[copied_to:position], (pairs.opening if is_open else pairs.closing) if is_quote else mark]
            copied_to = position + 1
    return "".join([*result, target[copied_to:]])


def _is_between_spaces(text: str, position: int) -> bool:
    return not text[position - 1 : position].strip() and not text[position + 1 : position + 2].strip()


def _opens(text: str, position: int, *, is_open: bool) -> bool:
    before, after = text[position - 1 : position], text[position + 1 : position + 2]
    may_open = not before or before.isspace() or before in _BEFORE_OPENING
    may_close = not after or after.isspace() or not (after.isalnum() or after == "\ufffc")
    if may_open != may_close:
        return may_open
    return not is_open


def _restored_singles(source: str, target: str, pairs: _Quotes) -> str:
    if "'" not in target or "'" in source:
        return target
    if "′" in source:
        target = _PRIME.sub("′", target)
    if not any(char in _TYPOGRAPHIC_SINGLE for char in source):
        return target
    has_pairs = any(char in _TYPOGRAPHIC_SINGLE_OPENING for char in source)
    result, copied_to, is_open = [], 0, False
    for match in re.finditer("'", target):
        position = match.start()
        is_inside = target[position - 1 : position].isalnum() and target[position + 1 : position + 2].isalnum()
        mark = "’"
        if has_pairs and not is_inside:
            is_open = _opens(target, position, is_open=is_open)
            mark = pairs.inner_opening if is_open else pairs.inner_closing
        result += [target[copied_to:position], mark]
        copied_to = position + 1
    return "".join([*result, target[copied_to:]])
