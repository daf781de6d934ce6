r"""Backslash escapes of resource files (Android, Java, JSON, C): `\'`, `\"`, `\u00e4`, and `\\` next to them.

Other backslashes are text: `\n` and `\t` end a sentence, and `C:\Users\name` is a path.
"""

import re
from collections.abc import Iterator

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check, never_ends

_HEX = r"[0-9a-fA-F]"
_CHARACTER = (
    r"\\(?P<quote>['\"])"
    rf"|\\u(?P<code>(?![dD][89a-fA-F]){_HEX}{{4}})"
    rf"|\\u(?P<high>[dD][89abAB]{_HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{_HEX}{{2}})"
    rf"|\\U(?P<long>00(?:0{_HEX}|10){_HEX}{{4}})"
)
_ESCAPE = re.compile(
    r"(?P<path>(?<!\w)[A-Za-z]:\\(?=[\w\\.$%~-])[^\s\"'<>|*?]{1,1000}+"
    r"|(?<![\w\\])\\\\[\w.$-]{1,255}+\\(?=\w)[^\s\"'<>|*?]{1,1000}+)"
    rf"|(?P<double>\\\\)|{_CHARACTER}"
)
_SINGLE = re.compile(_CHARACTER)


def find_escapes(text: str, check: Check = never_ends) -> Iterator[tuple[Span, str]]:
    """Yield the position of each escape and the character that it stands for, in order."""
    if "\\" not in text:
        return
    end = -1  # of the previous escape
    for match in _ESCAPE.finditer(text):
        check()
        character = _character(match)
        if match["double"]:
            # `\\n` is a backslash and an n; only the reader of the file can tell it from a line break.
            is_next = match.start() == end or _SINGLE.match(text, match.end()) is not None
            character = "\\" if is_next else ""
        if character:
            end = match.end()
            yield Span(start=match.start(), end=end), character


def _character(match: re.Match[str]) -> str:
    if match["quote"]:
        return match["quote"]
    if match["high"]:
        return (bytes.fromhex(match["high"]) + bytes.fromhex(match["low"])).decode("utf-16-be")
    digits = match["code"] or match["long"]
    character = chr(int(digits, 16)) if digits else ""
    return character if character.isprintable() or character.isspace() else ""
