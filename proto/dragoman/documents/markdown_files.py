"""Markdown (CommonMark with tables): paragraphs, headings and cells. Code, links and front matter are preserved."""

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
_MAX_PARAGRAPH_CHARACTERS = 20_000  # above the limit of a server; reading takes more than linear time

_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")


class _UnexpectedError(Exception):
    """A token of the parser does not match the text; the paragraph is then sent with its markup as text."""


def read_markdown(content: bytes) -> PatchedText:
    """Read Markdown; `html_patches` reads embedded HTML.

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
    """Position of the content of an inline token in the file, where each line may have a prefix."""

    text: str
    content: str
    starts: Sequence[int]  # position in the file of each line of the content

    @property
    def start(self) -> int:
        return self.starts[0]

    @property
    def end(self) -> int:
        return self._place(len(self.content))

    def raw(self, start: int, end: int) -> str:
        """Return a range of the content as it is written in the file."""
        return self.text[self._place(start) : self._place(end)]

    def _place(self, position: int) -> int:
        line = self.content.count("\n", 0, position)
        begin = self.content.rfind("\n", 0, position) + 1
        return self.starts[line] + position - begin


def _located(text: str, starts: Sequence[int], token: Token, position: int, *, is_cell: bool) -> _Source | None:
    """Find the content of an inline token; None if the file differs from it."""
    first = token.map[0] if token.map else 0
    line_starts = []
    for number, line in enumerate(token.content.split("\n"), start=first):
        if number >= len(starts) - 1:
            return None
        begin, end = starts[number], starts[number + 1]
        raw = text[begin:end].rstrip("\r\n")
        if is_cell:  # the parser removes the backslash before a pipe
            cell = re.compile(re.escape(line).replace(r"\|", r"\\?\|")).search(text, position, end)
            return _Source(text, cell[0], [cell.start()]) if cell else None
        at = raw.rfind(line)
        if at < 0 or raw[at + len(line) :].strip(" \t#"):
            return None
        line_starts.append(begin + at)
    return _Source(text, token.content, line_starts)


def _unlocated(token: Token, start: int, lines: LineNumbers) -> Iterator[Patch]:
    """Yield a segment whose translation is always rejected, so that the failure is reported."""

    def reject(translation: str) -> str:  # noqa: ARG001
        raise MarkupLostError("the paragraph could not be located in the file")

    if has_words(token.content):
        segment = TaggedText([Piece("text", token.content, token.content)]).segment(lines.place(start))
        yield Patch(start=start, end=start, segment=segment, escape=reject)


def _patches(source: _Source, token: Token, env: dict[str, Any], lines: LineNumbers, enclosing: str) -> Iterator[Patch]:
    try:
        reader = _InlineReader(source, env)
        reader.read(token.children or [] if source.content == token.content else _inline(source.content, env))
        reader.finish()
    except (_UnexpectedError, ValueError, IndexError):
        reader = _InlineReader(source, env)
        reader.take_verbatim()
    tagged = TaggedText(reader.pieces)
    if has_words(tagged.words):
        escape = partial(_written, reader, tagged, env, enclosing)
        yield Patch(
            start=source.start, end=source.end, segment=tagged.segment(lines.place(source.start)), escape=escape
        )


class _InlineReader:
    """Aligns the text of a paragraph with its tokens, to find how each token is written."""

    def __init__(self, source: _Source, env: dict[str, Any]) -> None:
        self.pieces: list[Piece] = []
        self.contents: list[str] = []  # each piece as written in the content, without line prefixes of the file
        self.ends: dict[int, str] = {}  # by index of a piece: the end of a pair if its text changes
        self.escapes: dict[str, str] = {}  # escaped characters and how they are written
        self._source = source
        self._env = env
        self._position = 0
        self._opened: list[tuple[str, int]] = []

    def read(self, tokens: Sequence[Token]) -> None:
        """Take tokens; _UnexpectedError if the text does not match."""
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
        """Check that the whole text was read."""
        if self.content[self._position :].strip() or self._opened:
            raise _UnexpectedError

    def take_verbatim(self) -> None:
        """Take the text with its markup; the server protects the markup that it recognizes."""
        for number, line in enumerate(self.content.split("\n")):
            if number:
                indent = len(line) - len(line.lstrip(" \t"))
                self._take("break", self._position + 1 + indent)
            self._take("text", self._position + len(line.lstrip(" \t") if number else line))

    @property
    def content(self) -> str:
        """The text as the parser received it."""
        return self._source.content

    def _read(self, token: Token) -> None:
        kind = token.type
        name = kind.removesuffix("_open").removesuffix("_close")
        if kind == "text":
            self._read_text(token.content)
        elif kind == "text_special":
            self._expect(token.markup)
            if len(token.content) == 1:
                self.escapes[token.content] = token.markup
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
            self._opened.pop()  # a tag without an end tag is single
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
        """Return the end of a link whose text ends before `position`."""
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
            unescaped = (content if text is None else text) if kind == "text" else ""
            self.pieces.append(Piece(kind, self._source.raw(self._position, end), unescaped))
            self.contents.append(content)
            self._position = end


def _written(reader: _InlineReader, tagged: TaggedText, env: dict[str, Any], enclosing: str, translation: str) -> str:
    """Write a translation so that Markdown parses it to the same markup and text.

    Tries the escapes of the source only, then all escapes, then all escapes without line breaks.
    """
    words = "".join(part.text for part in tagged.parts(translation)).split()
    inside = TaggedText([replace(piece, raw=raw) for piece, raw in zip(tagged.pieces, reader.contents, strict=True)])
    expected, _ = _structure(_inline(reader.content, env))

    def minimal(text: str) -> str:
        return "".join(reader.escapes.get(character, character) for character in text)

    def full(text: str) -> str:
        return _SPECIAL.sub(r"\\\g<0>", text)

    for escape, keeps_breaks in ((minimal, True), (full, True), (full, False)):
        content, written = (
            _with_markup(text if keeps_breaks else text.without_breaks(), reader, translation, escape)
            for text in (inside, tagged)
        )
        if enclosing == "paragraph_open" and not _is_paragraph(content, env):
            content, written = _leading_escaped(content), _leading_escaped(written)
            if not _is_paragraph(content, env):
                continue
        structure, text = _structure(_inline(content, env))
        if structure == expected and _FOOTNOTE.sub("", text).split() == words:
            return re.sub(r"(?<!\\)\|", r"\|", written) if enclosing == "tr_open" else written
    raise MarkupLostError("Markdown would parse the translation differently")


def _with_markup(text: TaggedText, reader: _InlineReader, translation: str, escape: Callable[[str], str]) -> str:
    return text.written(translation, escape=escape, close=lambda index: reader.ends.get(index, text.pieces[index].raw))


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
