"""Escaping of markup characters in a translation: written as in the source, or as a character reference."""

import html
import re
from bisect import bisect_left
from collections.abc import Iterator

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.text_units import CodeKind, TextUnit

# A bare `<` stays bare if it is followed by the same characters as in the source, where it begins no tag.
_CONTEXT_CHARACTERS = 10

_REFERENCE_RUN = re.compile(r"[A-Za-z0-9#;]{1,40}")  # characters of a character reference; the longest has fewer
_NOT_IN_SOURCE = Span(start=-1, end=-1)


class EntityEscaper:
    """Writes special characters of a translation in the forms that the source has, first come, first served."""

    def __init__(self, unit: TextUnit) -> None:
        special = {_character(unit.text[code.start]) for code in unit.codes if code.kind is CodeKind.ESCAPED}
        self._escapes = {char: html.escape(char) if html.escape(char) != char else f"'{char}'" for char in unit.escapes}
        self._special = special | set(self._escapes)
        self._source_forms = {char: iter(forms) for char, forms in self._forms(unit).items()} if self._special else {}
        # Last characters written if the first is bare in the source, and was escaped because of those after it.
        self.ambiguous_tail = ""

    def _forms(self, unit: TextUnit) -> dict[str, list[Span | str]]:
        # The form of each occurrence of a special character: its range in the message, or what follows a bare one.
        forms: dict[str, list[Span | str]] = {char: [] for char in self._special}
        position = 0
        for code in unit.codes:
            self._add_bare_forms(forms, unit, position, code.start)
            if code.kind is CodeKind.ESCAPED:
                forms[_character(unit.text[code.start])].append(code.source)
            position = code.end
        self._add_bare_forms(forms, unit, position, len(unit.text))
        return forms

    def _add_bare_forms(self, forms: dict[str, list[Span | str]], unit: TextUnit, start: int, end: int) -> None:
        for index in range(start, end):
            char = _character(unit.text[index])
            if char == "&" and char in self._special:
                forms[char].append(_after_ampersand(unit, index + 1))
            elif char in self._special:
                forms[char].append(unit.text[index + 1 : min(end, index + 1 + _CONTEXT_CHARACTERS)])

    def escape(self, target: str, start: int, end: int) -> Iterator[tuple[str, Span | None]]:
        """Yield a range of the translation as texts, and as ranges of the message to copy instead."""
        if not self._special:
            if start < end:
                yield target[start:end], None
            return
        plain: list[str] = []
        self.ambiguous_tail = ""
        for index in range(start, end):
            char = target[index]
            if _character(char) not in self._special:
                plain.append(char)
                continue
            form = next(self._source_forms[_character(char)], _NOT_IN_SOURCE)
            self.ambiguous_tail = ""
            if isinstance(form, str) and _can_be_bare(target, index, form):
                plain.append(char)
            elif isinstance(form, str) or form is _NOT_IN_SOURCE:
                plain.append(self.escaped(char))
                if isinstance(form, str) and depends_on_following(target[index:end]):
                    self.ambiguous_tail = target[index:end]
            else:
                if plain:
                    yield "".join(plain), None
                plain.clear()
                yield "", form
        if plain:
            yield "".join(plain), None

    def escaped(self, text: str) -> str:
        """Return a text with its markup characters escaped."""
        return "".join(self._escapes.get(char, char) for char in text) if self._escapes else text


def depends_on_following(tail: str) -> bool:
    """Return whether the text after `tail`, which begins with a markup character, decides on its meaning."""
    return len(tail) == 1 or (tail[0] == "&" and _reference_run(tail, 1) == tail[1:] and html.unescape(tail) == tail)


def _character(char: str) -> str:
    return " " if char.isspace() else char


def _after_ampersand(unit: TextUnit, start: int) -> str:
    # Text after a bare `&` that might be read as a reference; a text that never occurs if tags are within it.
    run = _reference_run(unit.text, start)
    index = bisect_left(unit.codes, start, key=lambda code: code.start)
    while index < len(unit.codes) and unit.codes[index].start < start + len(run):
        if unit.codes[index].kind is not CodeKind.PLACEHOLDER:
            return "\0"
        index += 1
    return run


def _reference_run(text: str, start: int) -> str:
    match = _REFERENCE_RUN.match(text, start)
    return match[0] if match else ""


def _can_be_bare(text: str, index: int, followed_by: str) -> bool:
    # Whether a markup character that is bare in the source, before other text, can be bare here.
    if text[index] == "&":
        run = _reference_run(text, index + 1)
        return run == followed_by or html.unescape(f"&{run}") == f"&{run}"
    if followed_by and text[index + 1 : index + 1 + len(followed_by)] == followed_by:
        return True
    following = text[index + 1 : index + 2]
    return text[index] != "<" or not ((following.isascii() and following.isalpha()) or following in {"/", "!", "?"})
