"""Quotation marks and apostrophes: those of the target language, where the source has typographic ones.

All functions are pure and take linear time.
"""

import re
from dataclasses import dataclass


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


def with_marks_of_language(source: str, target: str, *, target_language: str) -> str:
    """Return the target with the marks of its language where the source has typographic ones.

    Args:
        source: the text of the caller.
        target: its translation with straight marks.
        target_language: BCP-47 tag. Languages without a table get the marks of the source.
    """
    pairs = _quotes_of(target_language) or _quotes_in(source)
    return _restored_singles(source, _restored_doubles(source, target, pairs), pairs)


def localized_quotation_mark(mark: str, *, is_opening: bool, target_language: str) -> str | None:
    """Return a typographic double quotation mark in the style of a language; None for another character."""
    pairs = _quotes_of(target_language) if mark in _TYPOGRAPHIC_DOUBLE else None
    if pairs is None:
        return None
    return pairs.opening if is_opening else pairs.closing


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
    old = _QUOTE_OR_PRIME.findall(source)
    if all(mark == '"' for mark in old):
        return target
    positions = [match.start() for match in _QUOTE_OR_PRIME.finditer(target)]
    if len(positions) != len(old):
        if '"' in old or "″" in old:
            return target  # which ones are straight is unclear
        old = ["“"] * len(positions)
    result, copied_to, is_open = [], 0, False
    for position, mark in zip(positions, old, strict=True):
        is_quote = mark not in {'"', "″"}
        if is_quote:
            is_open = _opens(target, position, is_open=is_open)
        if target[position] == '"' and mark != '"':
            result += [target[copied_to:position], (pairs.opening if is_open else pairs.closing) if is_quote else mark]
            copied_to = position + 1
    return "".join([*result, target[copied_to:]])


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
