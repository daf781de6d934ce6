"""Markdown (CommonMark with tables): paragraphs, headings and cells. Code, links and front matter are preserved."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from dragoman.documents.content import (
    FileFormatError,
    LineNumbers,
    MarkupLostError,
    Patch,
    PatchedText,
    decoded,
    has_words,
)
from dragoman.documents.html_files import html_patches
from dragoman.documents.markdown_reader import (
    MarkdownBlock,
    MarkdownError,
    MarkdownPart,
    block_tokens,
    inline_markup,
    inline_tokens,
    read_blocks,
)
from dragoman.documents.tagged_text import Piece, TaggedText

_NOTE = re.compile(r"\[\^[^\]\s]+\]")
_SPECIAL = re.compile(r"[\\`*_\[\]<&~|]")
_LEADING = re.compile(r"\d{1,9}(?=[.)])|(?=[#>+*=~-])")
_TAG = re.compile(r"</?([A-Za-z][\w-]*)")
_MAX_PARAGRAPH_CHARACTERS = 20_000  # above the limit of a server

_PieceKind = Literal["text", "open", "close", "single", "break"]
_KINDS: dict[str, _PieceKind] = {
    "text": "text",
    "escaped": "text",
    "space": "break",
    "open": "open",
    "close": "close",
}


def read_markdown(content: bytes) -> PatchedText:
    """Read Markdown; `html_patches` reads embedded HTML.

    Raises:
        FileFormatError: if it is not UTF-8, or nested too deeply.
    """
    text = decoded(content)
    env: dict[str, Any] = {}
    lines = LineNumbers(text)
    patches: list[Patch] = []
    try:
        for block in read_blocks(text, env):
            if block.kind == "html":
                patches += html_patches(text, lines, block.start, block.end)
            elif not block.is_located or len(block.content) > _MAX_PARAGRAPH_CHARACTERS:
                patches += _unlocated(block, lines)
            else:
                patches += _patches(text, block, env, lines)
    except MarkdownError as error:
        raise FileFormatError(str(error)) from error
    return PatchedText(text, patches)


def _unlocated(block: MarkdownBlock, lines: LineNumbers) -> Iterator[Patch]:
    """Yield a segment whose translation is always rejected, so that the failure is reported."""

    def reject(translation: str) -> str:  # noqa: ARG001
        raise MarkupLostError("the paragraph could not be located in the file")

    if has_words(block.content):
        segment = TaggedText([Piece("text", block.content, block.content)]).segment(lines.place(block.start))
        yield Patch(start=block.start, end=block.start, segment=segment, escape=reject)


def _patches(text: str, block: MarkdownBlock, env: dict[str, Any], lines: LineNumbers) -> Iterator[Patch]:
    reader = _BlockReader(text=text, block=block)
    for part in block.parts:
        reader.add(part)
    tagged = TaggedText(reader.pieces)
    if has_words(tagged.words):
        escape = partial(_written, reader, tagged, env)
        yield Patch(start=block.start, end=block.end, segment=tagged.segment(lines.place(block.start)), escape=escape)


@dataclass(slots=True, kw_only=True)
class _BlockReader:
    """Turns the parts of a block into pieces."""

    text: str
    block: MarkdownBlock
    pieces: list[Piece] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)  # each piece without line prefixes of the file
    ends: dict[int, str] = field(default_factory=dict)  # by index of a piece: end of a pair whose text changes
    escapes: dict[str, str] = field(default_factory=dict)  # escaped characters and how they are written
    _opened: list[tuple[str, int]] = field(default_factory=list)  # name and index of each open piece

    def add(self, part: MarkdownPart) -> None:
        """Take the next part."""
        if part.kind == "image" and any(has_words(child.text) for child in part.children):
            self._add_image(part)
        elif part.kind == "html":
            self._add_tag(part)
        elif part.kind in ("open", "close"):
            while self._opened and self._opened[-1][0].startswith("<"):
                self._opened.pop()  # a tag without an end tag is single
            if part.kind == "open":
                self._opened.append((part.name, len(self.pieces)))
            else:
                self._opened.pop()
                if part.label is not None:
                    self.ends[len(self.pieces)] = f"][{part.label}]"
            self._add(part, part.kind)
        else:
            if part.kind == "escaped" and len(part.text) == 1 and part.content != part.text:
                self.escapes[part.text] = part.content
            self._add(part, _KINDS.get(part.kind, "single"))

    def _add_image(self, part: MarkdownPart) -> None:
        first, last = part.children[0], part.children[-1]
        start = part.content[: len("![")]
        end = part.content[len(start) + sum(len(child.content) for child in part.children) :]
        self.add(replace(part, kind="open", end=first.start, content=start, name="image"))
        for child in part.children:
            self.add(child)
        self.add(replace(part, kind="close", start=last.end, content=end, name="image"))

    def _add_tag(self, part: MarkdownPart) -> None:
        name = _TAG.match(part.content)
        label = f"<{name[1].lower()}" if name else ""
        if part.content.startswith("</") and self._opened and self._opened[-1][0] == label:
            _, at = self._opened.pop()
            self.pieces[at] = replace(self.pieces[at], kind="open")
            self._add(part, "close")
            return
        if label and not part.content.startswith("</"):
            self._opened.append((label, len(self.pieces)))
        self._add(part, "single")

    def _add(self, part: MarkdownPart, kind: _PieceKind) -> None:
        self.pieces.append(Piece(kind, self.text[part.start : part.end], part.text if kind == "text" else ""))
        self.contents.append(part.content)


def _written(reader: _BlockReader, tagged: TaggedText, env: dict[str, Any], translation: str) -> str:
    """Write a translation so that Markdown parses it to the same markup and text.

    Tries the escapes of the source only, then all escapes, then all escapes without line breaks.
    """
    words = "".join(part.text for part in tagged.parts(translation)).split()
    inside = TaggedText([replace(piece, raw=raw) for piece, raw in zip(tagged.pieces, reader.contents, strict=True)])
    expected, _ = inline_markup(inline_tokens(reader.block.content, env))

    def minimal(text: str) -> str:
        return "".join(reader.escapes.get(character, character) for character in text)

    def full(text: str) -> str:
        return _SPECIAL.sub(r"\\\g<0>", text)

    for escape, keeps_breaks in ((minimal, True), (full, True), (full, False)):
        content, written = (
            _with_markup(text if keeps_breaks else text.without_breaks(), reader, translation, escape)
            for text in (inside, tagged)
        )
        if reader.block.kind == "paragraph" and not _is_paragraph(content, env):
            content, written = _leading_escaped(content), _leading_escaped(written)
            if not _is_paragraph(content, env):
                continue
        structure, text = inline_markup(inline_tokens(content, env))
        if structure == expected and _NOTE.sub("", text).split() == words:
            return re.sub(r"(?<!\\)\|", r"\|", written) if reader.block.kind == "cell" else written
    raise MarkupLostError("Markdown would parse the translation differently")


def _with_markup(text: TaggedText, reader: _BlockReader, translation: str, escape: Callable[[str], str]) -> str:
    return text.written(translation, escape=escape, close=lambda index: reader.ends.get(index, text.pieces[index].raw))


def _leading_escaped(text: str) -> str:
    lead = _LEADING.match(text)
    return f"{text[: lead.end()]}\\{text[lead.end() :]}" if lead else text


def _is_paragraph(text: str, env: dict[str, Any]) -> bool:
    return [token.type for token in block_tokens(text, env)] == ["paragraph_open", "inline", "paragraph_close"]
