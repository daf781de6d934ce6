"""Escaping of characters in a translation: written as in the source, or as a reference or with a backslash."""

import html
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.text_units import CodeKind, TextUnit

# A bare `<` stays bare if it is followed by the same characters as in the source, where it begins no tag.
_CONTEXT_CHARACTERS = 10

_REFERENCE_RUN = re.compile(r"[A-Za-z0-9#;]{1,40}")  # characters of a character reference; the longest has fewer
_NOT_IN_SOURCE = Span(start=-1, end=-1)

# Marks of Markdown, which are bare only in a context where they are literal. Each line of a paragraph may begin a
# block; the last character is escaped.
_MARKS = frozenset("*_[]`~")
_BLOCK_START = re.compile(r"(?:[-+](?=\s|\Z)|-(?=-++\s*+\Z)|#(?=#{0,5}+(?:\s|\Z))|>|\d{1,9}+[.)](?=\s|\Z))")


@dataclass(frozen=True, slots=True, kw_only=True)
class EscapedText:
    """Text of a translation, or a range of the message to copy instead."""

    text: str = ""
    copied: Span | None = None
    is_form: bool = False  # the form of one special character, which is not to be changed


class EntityEscaper:
    """Writes special characters of a translation in the forms that the source has, first come, first served."""

    def __init__(self, unit: TextUnit) -> None:
        special = {_character(unit.text[code.start]) for code in unit.codes if code.kind is CodeKind.ESCAPED}
        self._escapes = {char: html.escape(char) if html.escape(char) != char else f"'{char}'" for char in unit.escapes}
        self._escapes |= dict(unit.escaped_forms)
        self._special = special | set(self._escapes)
        self._is_markdown = "*" in self._escapes
        self._begins_block = self._is_markdown and _BLOCK_START.match(unit.text) is not None
        # Whether a line break before the start of a block is written as a space.
        self._joins_lines = self._is_markdown and not any(
            code.kind is CodeKind.ESCAPED and _BLOCK_START.match(unit.text, code.end) for code in unit.codes
        )
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
            elif char in self._special and not (char == '"' and unit.text[index - 1 : index] == "\\"):
                # Placeholders are part of the context of a mark.
                last = len(unit.text) if char in _MARKS else end
                forms[char].append(unit.text[index + 1 : min(last, index + 1 + _CONTEXT_CHARACTERS)])

    def escape(self, target: str, start: int, end: int) -> Iterator[EscapedText]:
        """Yield a range of the translation."""
        self.ambiguous_tail = ""
        lead = self._block_mark(target)
        plain = start  # everything from here to the current character is written as it is
        for index in range(start, end) if self._special else ():
            char = target[index]
            if index == lead and char not in self._special:
                yield EscapedText(text=f"{target[plain:index]}\\{char}", is_form=True)
                plain = index + 1
                continue
            if _character(char) not in self._special:
                continue
            form = next(self._source_forms[_character(char)], _NOT_IN_SOURCE)
            self.ambiguous_tail = ""
            if isinstance(form, str) and _can_be_bare(target, index, form):
                continue
            if plain < index:
                yield EscapedText(text=target[plain:index])
            plain = index + 1
            if isinstance(form, str) or form is _NOT_IN_SOURCE:
                if isinstance(form, str) and char not in _MARKS and depends_on_following(target[index:end]):
                    self.ambiguous_tail = target[index:end]
                yield EscapedText(text=self.escaped(char), is_form=True)
            elif self._joins_lines and char.isspace() and _BLOCK_START.match(target, index + 1):
                yield EscapedText(text=char)
            else:
                yield EscapedText(copied=form)
        if plain < end:
            yield EscapedText(text=target[plain:end])

    def _block_mark(self, target: str) -> int:
        # Position of a character that would begin a list, heading or quote of Markdown; -1 if there is none.
        match = None if self._begins_block or not self._is_markdown else _BLOCK_START.match(target)
        return match.end() - 1 if match else -1

    def escaped(self, text: str) -> str:
        """Return a text with its special characters escaped."""
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
    if text[index] in _MARKS:
        before, after = text[max(0, index - 1) : index], text[index + 1 : index + 2]
        is_apart = before.isspace() and after.isspace()
        is_within_word = text[index] == "_" and before.isalnum() and after.isalnum()
        return is_apart or is_within_word or text[index + 1 : index + 1 + _CONTEXT_CHARACTERS] == followed_by
    if text[index] == "&":
        run = _reference_run(text, index + 1)
        return run == followed_by or html.unescape(f"&{run}") == f"&{run}"
    if followed_by and text[index + 1 : index + 1 + len(followed_by)] == followed_by:
        return True
    following = text[index + 1 : index + 2]
    return text[index] != "<" or not ((following.isascii() and following.isalpha()) or following in {"/", "!", "?"})
