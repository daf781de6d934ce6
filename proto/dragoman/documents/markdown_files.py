"""Markdown (CommonMark with tables): paragraphs, headings and cells; code, addresses and front matter stay."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from dragoman.documents.content import LineNumbers, MarkupLostError, Patch, PatchedText, decoded, has_words
from dragoman.documents.html_files import html_patches
from dragoman.documents.tagged_text import Piece, TaggedText

_FRONT_MATTER = re.compile(
    r"\ufeff?(?:---[ \t]*\r?\n.*?\n(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)|\+\+\+[ \t]*\r?\n.*?\n\+\+\+[ \t]*(?:\r?\n|\Z))",
    re.DOTALL,
)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]+\]")
_SOFT_BREAK = re.compile(r" *\n[ \t]*")
_HARD_BREAK = re.compile(r"(?:\\| {2,})\n[ \t]*")
_BREAKS = {"softbreak": ("break", _SOFT_BREAK), "hardbreak": ("single", _HARD_BREAK)}
_SPECIAL = re.compile(r"[\\`*_\[\]<&~|]")
_LEADING = re.compile(r"\d{1,9}(?=[.)])|(?=[#>+*=~-])")
_PAIRS = frozenset(("em", "strong", "s"))
_MAX_PARAGRAPH_CHARACTERS = 20_000
"""More than a server takes; what is read of a paragraph costs more than time in proportion to it."""

_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")


class _UnexpectedError(Exception):
    """The parser saw what this reader does not find in the text; the whole is then taken as it is spelled."""


def read_markdown(content: bytes) -> PatchedText:
    """Read Markdown; HTML in it is read as `read_html` does.

    Raises:
        FileFormatError: if it is not UTF-8.
    """
    text = decoded(content)
    front = _FRONT_MATTER.match(text)
    body = front.end() if front else int(text.startswith("\ufeff"))
    starts = [match.start() for match in _LINE.finditer(text, body)] + [len(text)]
    env: dict[str, Any] = {}
    lines = LineNumbers(text)
    patches: list[Patch] = []
    position = body
    enclosing = ""
    for token in _MARKDOWN.parse(text[body:], env):
        if token.map is None:
            continue
        first, last = starts[token.map[0]], starts[min(token.map[1], len(starts) - 1)]
        if token.type == "html_block":
            patches += html_patches(text, lines, first, last)
        elif token.type == "inline":
            position = max(position, first)
            source = _located(text, starts, token, position, is_cell=enclosing == "tr_open")
            if source is None or len(token.content) > _MAX_PARAGRAPH_CHARACTERS:
                patches += _unlocated(token, position, lines)
                continue
            position = source.end
            patches += _patches(source, token, env, lines, enclosing)
            continue
        if token.nesting == 1:
            enclosing = token.type
    return PatchedText(text, patches)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the text of an inline token stands in the file, which may have more at the beginning of each line."""

    text: str
    content: str
    starts: Sequence[int]
    """In the file, of each line of the content."""

    @property
    def start(self) -> int:
        return self.starts[0]

    @property
    def end(self) -> int:
        return self._place(len(self.content))

    def raw(self, start: int, end: int) -> str:
        """Return how a piece of the content stands in the file."""
        return self.text[self._place(start) : self._place(end)]

    def _place(self, position: int) -> int:
        line = self.content.count("\n", 0, position)
        begin = self.content.rfind("\n", 0, position) + 1
        return self.starts[line] + position - begin


def _located(text: str, starts: Sequence[int], token: Token, position: int, *, is_cell: bool) -> _Source | None:
    """Find the content of an inline token; None if it is spelled otherwise in the file."""
    first = token.map[0] if token.map else 0
    found = []
    for number, line in enumerate(token.content.split("\n"), start=first):
        if number >= len(starts) - 1:
            return None
        begin, end = starts[number], starts[number + 1]
        raw = text[begin:end].rstrip("\r\n")
        if is_cell:  # where a pipe has a backslash that the parser took away
            cell = re.compile(re.escape(line).replace(r"\|", r"\\?\|")).search(text, position, end)
            return _Source(text, cell[0], [cell.start()]) if cell else None
        at = raw.rfind(line)
        if at < 0 or raw[at + len(line) :].strip(" \t#"):
            return None
        found.append(begin + at)
    return _Source(text, token.content, found)


def _unlocated(token: Token, start: int, lines: LineNumbers) -> Iterator[Patch]:
    """Yield a segment that fails, so that it is told, if there is anything to translate."""

    def spelled(translation: str) -> str:  # noqa: ARG001 - no translation can be put where nothing is found
        raise MarkupLostError("its place in the file cannot be told")

    if has_words(token.content):
        segment = TaggedText([Piece("text", token.content, token.content)]).segment(lines.place(start))
        yield Patch(start=start, end=start, segment=segment, spelled=spelled)


def _patches(source: _Source, token: Token, env: dict[str, Any], lines: LineNumbers, enclosing: str) -> Iterator[Patch]:
    try:
        reader = _InlineReader(source, env)
        reader.read(token.children or [] if source.content == token.content else _inline(source.content, env))
        reader.finish()
    except (_UnexpectedError, ValueError, IndexError):
        reader = _InlineReader(source, env)
        reader.take_as_it_is()
    tagged = TaggedText(reader.pieces)
    if has_words(tagged.words):
        spelled = partial(_spelled, reader, tagged, env, enclosing)
        yield Patch(
            start=source.start, end=source.end, segment=tagged.segment(lines.place(source.start)), spelled=spelled
        )


class _InlineReader:
    """Walks the text of a paragraph along the tokens that the parser made of it, to know how each is spelled."""

    def __init__(self, source: _Source, env: dict[str, Any]) -> None:
        self.pieces: list[Piece] = []
        self.contents: list[str] = []
        """How each piece is spelled in the content of the token, without what begins lines in the file."""

        self.ends: dict[int, str] = {}
        """How the end of a pair is spelled once its text is another, by its index."""

        self.respelled: dict[str, str] = {}
        """Characters that are spelled by escapes and entities."""

        self._source = source
        self._env = env
        self._position = 0
        self._opened: list[tuple[str, int]] = []

    def read(self, tokens: Sequence[Token]) -> None:
        """Take tokens; _UnexpectedError if the text is not what they say."""
        index = 0
        while index < len(tokens):
            token = tokens[index]
            if token.type == "link_open" and token.markup == "autolink":
                self._take("single", self.content.index(">", self._position) + 1)
                index += 2  # its text and its end
            else:
                self._read(token)
            index += 1

    def finish(self) -> None:
        """Check that all of the text was read."""
        if self.content[self._position :].strip() or self._opened:
            raise _UnexpectedError

    def take_as_it_is(self) -> None:
        """Take the text as it is spelled, markup and all; the server protects what it knows."""
        for number, line in enumerate(self.content.split("\n")):
            if number:
                indent = len(line) - len(line.lstrip(" \t"))
                self._take("break", self._position + 1 + indent)
            self._take("text", self._position + len(line.lstrip(" \t") if number else line))

    @property
    def content(self) -> str:
        """The text as the parser had it."""
        return self._source.content

    def _read(self, token: Token) -> None:
        kind = token.type
        name = kind.removesuffix("_open").removesuffix("_close")
        if kind == "text":
            self._read_text(token.content)
        elif kind == "text_special":
            self._expect(token.markup)
            if len(token.content) == 1:
                self.respelled[token.content] = token.markup
            self._take("text", self._position + len(token.markup), token.content)
        elif kind in _BREAKS:
            self._take_match(*_BREAKS[kind])
        elif kind == "code_inline":
            fence = re.escape(token.markup)
            self._take_match("single", re.compile(rf"{fence}(?!`).*?(?<!`){fence}(?!`)", re.DOTALL))
        elif kind == "html_inline":
            self._expect(token.content)
            self._read_tag(token.content)
        elif name in _PAIRS:
            self._expect(token.markup)
            self._open_or_close(name, token.nesting, self._position + len(token.markup))
        elif kind == "link_open":
            self._expect("[")
            self._open_or_close("link", 1, self._position + 1)
            self._opened[-1] = (f"link {token.attrGet('href')}", self._opened[-1][1])
        elif kind == "link_close":
            self._close_link()
        else:
            self._read_image(token)

    def _read_text(self, text: str) -> None:
        if not text:
            return
        self._expect(text)
        end = self._position + len(text)
        for note in _FOOTNOTE.finditer(self.content, self._position, end):
            self._take("text", note.start())
            self._take("single", note.end())
        self._take("text", end)

    def _read_tag(self, tag: str) -> None:
        name = re.match(r"</?([A-Za-z][\w-]*)", tag)
        end = self._position + len(tag)
        label = f"tag {name[1].lower()}" if name else ""
        if tag.startswith("</") and self._opened and self._opened[-1][0] == label:
            _, at = self._opened.pop()
            self.pieces[at] = replace(self.pieces[at], kind="open")
            self._take("close", end)
            return
        if label and not tag.startswith("</"):
            self._opened.append((label, len(self.pieces)))
        self._take("single", end)

    def _read_image(self, token: Token) -> None:
        if token.type != "image":
            raise _UnexpectedError
        self._expect("![")
        if not has_words(token.content):
            end = self.content.index("]", self._position) + 1
            self._take("single", self._end_of_link(end, str(token.attrGet("src") or "")))
            return
        self._open_or_close("link", 1, self._position + 2)
        self._opened[-1] = (f"link {token.attrGet('src')}", self._opened[-1][1])
        self.read(token.children or [])
        self._close_link()

    def _open_or_close(self, name: str, nesting: int, end: int) -> None:
        while self._opened and self._opened[-1][0].startswith("tag "):
            self._opened.pop()  # a tag that nothing ends stands alone
        if nesting == 1:
            self._opened.append((name, len(self.pieces)))
            self._take("open", end)
            return
        if not self._opened or self._opened.pop()[0] != name:
            raise _UnexpectedError
        self._take("close", end)

    def _close_link(self) -> None:
        self._expect("]")
        while self._opened and self._opened[-1][0].startswith("tag "):
            self._opened.pop()
        label, at = self._opened.pop()
        if not label.startswith("link "):
            raise _UnexpectedError
        end = self._end_of_link(self._position + 1, label.removeprefix("link "))
        if self.content[self._position : end] in ("]", "][]"):
            start = sum(map(len, self.contents[: at + 1]))
            self.ends[len(self.pieces)] = f"][{self.content[start : self._position]}]"
        self._take("close", end)

    def _end_of_link(self, position: int, address: str) -> int:
        """Where a link ends whose text ends before `position`."""
        if self.content.startswith("(", position):
            depth = 0
            for at in range(position, len(self.content)):
                depth += {"(": 1, ")": -1}.get(self.content[at], 0)
                if depth <= 0 or self.content[at] == ")":
                    alone = _MARKDOWN.parseInline(f"[x]{self.content[position : at + 1]}")[0].children or []
                    if len(alone) == 3 and alone[0].type == "link_open" and alone[0].attrGet("href") == address:
                        return at + 1
        reference = re.compile(r"\[(?:[^\[\]\\]|\\.)*\]").match(self.content, position)
        return reference.end() if reference else position

    def _expect(self, text: str) -> None:
        if not self.content.startswith(text, self._position):
            raise _UnexpectedError

    def _take_match(self, kind: Any, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.content, self._position)
        if match is None:
            raise _UnexpectedError
        self._take(kind, match.end())

    def _take(self, kind: Any, end: int, text: str | None = None) -> None:
        if end > self._position:
            content = self.content[self._position : end]
            told = (content if text is None else text) if kind == "text" else ""
            self.pieces.append(Piece(kind, self._source.raw(self._position, end), told))
            self.contents.append(content)
            self._position = end


def _spelled(reader: _InlineReader, tagged: TaggedText, env: dict[str, Any], enclosing: str, translation: str) -> str:
    """Spell a translation so that Markdown reads the same markup around the same text.

    First with the escapes of the source only, then with all there are, then without line breaks.
    """
    words = "".join(part.text for part in tagged.parts(translation)).split()
    inside = TaggedText([replace(piece, raw=raw) for piece, raw in zip(tagged.pieces, reader.contents, strict=True)])
    expected, _ = _structure(_inline(reader.content, env))

    def minimal(text: str) -> str:
        return "".join(reader.respelled.get(character, character) for character in text)

    def full(text: str) -> str:
        return _SPECIAL.sub(r"\\\g<0>", text)

    for escaped, keeps_breaks in ((minimal, True), (full, True), (full, False)):
        seen, told = (
            _respelled(text if keeps_breaks else text.without_breaks(), reader, translation, escaped)
            for text in (inside, tagged)
        )
        if enclosing == "paragraph_open" and not _is_paragraph(seen, env):
            seen, told = _leading_escaped(seen), _leading_escaped(told)
            if not _is_paragraph(seen, env):
                continue
        structure, text = _structure(_inline(seen, env))
        if structure == expected and _FOOTNOTE.sub("", text).split() == words:
            return re.sub(r"(?<!\\)\|", r"\|", told) if enclosing == "tr_open" else told
    raise MarkupLostError("Markdown would read the translation otherwise")


def _respelled(text: TaggedText, reader: _InlineReader, translation: str, escaped: Callable[[str], str]) -> str:
    return text.spelled(
        translation, escaped=escaped, closed=lambda index: reader.ends.get(index, text.pieces[index].raw)
    )


def _leading_escaped(text: str) -> str:
    lead = _LEADING.match(text)
    return f"{text[: lead.end()]}\\{text[lead.end() :]}" if lead else text


def _inline(text: str, env: dict[str, Any]) -> Sequence[Token]:
    return _MARKDOWN.parseInline(text, env)[0].children or []


def _is_paragraph(text: str, env: dict[str, Any]) -> bool:
    return [token.type for token in _MARKDOWN.parse(text, dict(env))] == ["paragraph_open", "inline", "paragraph_close"]


def _structure(tokens: Sequence[Token]) -> tuple[list[str], str]:
    """Return the markup of a text in no particular order, and the text."""
    markup: list[str] = []
    text = ""
    is_address = False
    for token in tokens:
        if token.type in ("text", "text_special"):
            text += "" if is_address else token.content
        elif token.type == "softbreak":
            text += " "
        elif token.type == "image":
            inner, words = _structure(token.children or [])
            markup += [*inner, f"image {token.attrGet('src')} {token.attrGet('title')}"]
            text += words
        else:
            is_address = token.type == "link_open" and token.markup == "autolink"
            markup.append(f"{token.type} {sorted(token.attrs.items())} {token.markup} {token.content}")
    return sorted(markup), text
