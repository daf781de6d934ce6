"""How special characters of a translation are written: spelled as in the source, or escaped if they mean markup."""

import html
import re
from bisect import bisect_left
from collections.abc import Iterator

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.blocks import Block, Role

_CONTEXT_CHARACTERS = 10
"""What must follow a bare `<` as in the source: there it begins no tag, in a title for instance."""

_REFERENCE_RUN = re.compile(r"[A-Za-z0-9#;]{1,40}")
"""What a character reference can be made of, and more than the longest has."""


class EntityEscaper:
    """How characters are spelled in the source, first come, first served; and how else if they mean markup."""

    def __init__(self, block: Block) -> None:
        special = {_character(block.text[piece.start]) for piece in block.pieces if piece.role is Role.SPELLING}
        self._escapes = {
            char: html.escape(char) if html.escape(char) != char else f"'{char}'" for char in block.escapes
        }
        self._special = special | set(self._escapes)
        self._known: dict[str, Iterator[Span | str]] = {}
        self.tail_in_doubt = ""
        """Last characters written, if the first of them stands for itself in the source and was escaped for what
        follows them."""
        if self._special:
            self._known = {char: iter(spans) for char, spans in self._occurrences(block).items()}

    def _occurrences(self, block: Block) -> dict[str, list[Span | str]]:
        """Return how each occurrence of a special character is spelled; if as it is, what follows it."""
        known: dict[str, list[Span | str]] = {char: [] for char in self._special}
        position = 0
        for piece in block.pieces:
            self._note(known, block, position, piece.start)
            if piece.role is Role.SPELLING:
                known[_character(block.text[piece.start])].append(piece.source)
            position = piece.end
        self._note(known, block, position, len(block.text))
        return known

    def _note(self, known: dict[str, list[Span | str]], block: Block, start: int, end: int) -> None:
        for index in range(start, end):
            char = _character(block.text[index])
            if char == "&" and char in self._special:
                known[char].append(_after_ampersand(block, index + 1))
            elif char in self._special:
                known[char].append(block.text[index + 1 : min(end, index + 1 + _CONTEXT_CHARACTERS)])

    def spelled(self, target: str, start: int, end: int) -> Iterator[tuple[str, Span | None]]:
        """Yield a range of the target in pieces: text, or a range of the message instead."""
        if not self._special:
            if start < end:
                yield target[start:end], None
            return
        plain: list[str] = []
        self.tail_in_doubt = ""
        for index in range(start, end):
            char = target[index]
            if _character(char) not in self._special:
                plain.append(char)
                continue
            raw = next(self._known[_character(char)], _UNKNOWN)
            self.tail_in_doubt = ""
            if isinstance(raw, str) and _is_safe(target, index, raw):
                plain.append(char)
            elif isinstance(raw, str) or raw is _UNKNOWN:
                plain.append(self.escaped(char))
                if isinstance(raw, str) and is_open_ended(target[index:end]):
                    self.tail_in_doubt = target[index:end]
            else:
                if plain:
                    yield "".join(plain), None
                plain.clear()
                yield "", raw
        if plain:
            yield "".join(plain), None

    def escaped(self, text: str) -> str:
        """Return a text as it is written in this markup."""
        return "".join(self._escapes.get(char, char) for char in text) if self._escapes else text


_UNKNOWN = Span(start=-1, end=-1)


def _character(char: str) -> str:
    return " " if char.isspace() else char


def _after_ampersand(block: Block, start: int) -> str:
    """Return what might be read as a reference with a `&` that stands for itself; what is never written if tags do."""
    run = _reference_run(block.text, start)
    index = bisect_left(block.pieces, start, key=lambda piece: piece.start)
    while index < len(block.pieces) and block.pieces[index].start < start + len(run):
        if block.pieces[index].role is not Role.STAND_IN:
            return "\0"
        index += 1
    return run


def _reference_run(text: str, start: int) -> str:
    match = _REFERENCE_RUN.match(text, start)
    return match[0] if match else ""


def _is_safe(text: str, index: int, followed_by: str) -> bool:
    """Whether a character of markup that stands for itself in the source, before other text, can do so here."""
    if text[index] == "&":
        run = _reference_run(text, index + 1)
        return run == followed_by or html.unescape(f"&{run}") == f"&{run}"
    if followed_by and text[index + 1 : index + 1 + len(followed_by)] == followed_by:
        return True
    following = text[index + 1 : index + 2]
    return text[index] != "<" or not ((following.isascii() and following.isalpha()) or following in {"/", "!", "?"})


def is_open_ended(tail: str) -> bool:
    """Whether what follows decides what a character of markup means that a text ends in, or ends soon after."""
    return len(tail) == 1 or (tail[0] == "&" and _reference_run(tail, 1) == tail[1:] and html.unescape(tail) == tail)
