"""Parser of plural and select arguments of ICU MessageFormat."""

import re
from array import array
from dataclasses import dataclass

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check

# Start of an argument, up to its first selector.
HEAD = r"\{\s{0,8}+\w{1,64}+\s{0,8}+,\s{0,8}+(?:plural|selectordinal|select)\s{0,8}+,"
_OFFSET = re.compile(r"\s{0,8}+offset:\d{1,9}+")
_SELECTOR = re.compile(r"\s*+(?:=\d{1,9}+|[\w-]{1,64}+)\s{0,8}+\{")
_END = re.compile(r"\s*+\}")
_TOKEN = re.compile(r"''|'[{}#|][^']*+'?|[{}]")  # a brace, or quoted text, which is skipped

_MAX_DEPTH = 16
MAX_MESSAGES = 256  # of one argument; CLDR has six plural categories
MAX_NUMBER_SIGNS = 256  # `#` in one message; each becomes a placeholder


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A span with translated messages inside, such as a plural argument; or a span without messages."""

    end: int
    messages: tuple[Span, ...] = ()


class IcuReader:
    """Finds the arguments of one text in time linear in its length.

    Each token is read once and remembered, because many arguments may begin before it. Two scans may see different
    tokens, one inside and one outside of a quotation; after a common token, they see the same ones.
    """

    def __init__(self, text: str, check: Check) -> None:
        self._text = text
        self._check = check
        self._none = len(text)  # position of a token that does not exist
        unread = bytes(array("i", [0]).itemsize * (len(text) + 1))
        # By the position of a token: the position of the next token (0: not read), of the unmatched closing brace
        # after it, and the deepest nesting up to that brace, at most `_MAX_DEPTH`.
        self._next = array("i", unread)
        self._closing = array("i", unread)
        self._depth = bytearray(len(text) + 1)
        self._closing[self._none] = self._none
        self._dead_ends: set[int] = set()  # positions after a message of an argument that does not end

    def argument(self, position: int) -> Container | None:
        """Return the argument whose head ends at a position.

        None if it does not end, or exceeds the limits of nesting, messages or number signs.
        """
        messages: list[Span] = []
        if match := _OFFSET.match(self._text, position):
            position = match.end()
        while position not in self._dead_ends:
            self._check()
            match = _SELECTOR.match(self._text, position)
            end = self._message_end(match.end()) if match else None
            if match is None or end is None or len(messages) == MAX_MESSAGES:
                break
            if self._text.count("#", match.end(), end) > MAX_NUMBER_SIGNS:
                break
            messages.append(Span(start=match.end(), end=end))
            position = end + 1
        closing = _END.match(self._text, position)
        if closing is None or not messages:
            self._dead_ends.update(message.end + 1 for message in messages)
            return None
        return Container(end=closing.end(), messages=tuple(messages))

    def _message_end(self, position: int) -> int | None:
        start = self._read(position)
        closing = self._closing[start]
        return None if closing == self._none or self._depth[start] >= _MAX_DEPTH else closing

    def _read(self, position: int) -> int:
        # The first token from a position on. Reads all later tokens as well.
        first, last = self._none, -1
        unread = array("i")
        while match := _TOKEN.search(self._text, position):
            self._check()
            start, position = match.span()
            first = min(first, start)
            if last >= 0:
                self._next[last] = start
            if self._next[start]:
                break
            unread.append(start)
            last = start
        else:
            if last >= 0:
                self._next[last] = self._none
        for start in reversed(unread):
            self._check()
            self._record(start)
        return first

    def _record(self, start: int) -> None:
        # Requires the records of the tokens after it.
        following = self._next[start]
        character = self._text[start]
        if character == "}":
            self._closing[start] = start
        elif character == "'":
            self._closing[start], self._depth[start] = self._closing[following], self._depth[following]
        else:
            after = self._next[self._closing[following]] if self._closing[following] != self._none else self._none
            self._closing[start] = self._closing[after]
            self._depth[start] = min(max(self._depth[following] + 1, self._depth[after]), _MAX_DEPTH)
