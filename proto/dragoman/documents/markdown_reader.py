"""Reads Markdown (CommonMark with tables, strikethrough, task lists and footnotes): its text and marks by position.

markdown-it-py parses; wrapped rules record where each inline token is. All text between these tokens is literal. The
time is linear in the length of the text, except that empty cells of tables are added up to a constant number. `check`
is called before each rule, so that a caller can stop the parser.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock, reference
from markdown_it.rules_inline import (
    StateInline,
    autolink,
    backtick,
    emphasis,
    entity,
    escape,
    html_inline,
    image,
    link,
    newline,
    strikethrough,
)
from markdown_it.token import Token

MAX_DEPTH = 64
"""Nesting depth of containers. A list counts twice: the list and its item."""

_MAX_BRACKETS = 25_000  # in one document

_FRONT_MATTER = re.compile(
    r"\ufeff?(?:---[ \t]*+\r?\n.*?\n(?:---|\.\.\.)[ \t]*+(?:\r?\n|\Z)"
    r"|\+\+\+[ \t]*+\r?\n.*?\n\+\+\+[ \t]*+(?:\r?\n|\Z))",
    re.DOTALL,
)
_LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n)|[^\r\n]++")
_NOTE = re.compile(r"\[\^[^\[\]\s]{1,200}+\](?!:)")

# At the start of a paragraph or line: a checkbox, a footnote, the kind of an alert on GitHub.
_TASK = re.compile(r"\[[ xX]\][ \t]++(?=\S)")
_MARKER = re.compile(r"(?:\[\^[^\[\]\s]{1,200}+\]:|\[![A-Za-z]{1,40}+\](?=\s|\Z))[ \t]*+")

_BLOCKS = frozenset(("paragraph_open", "heading_open", "th_open", "td_open"))
_CONTAINERS = frozenset(("blockquote_open", "list_item_open", "bullet_list_open", "ordered_list_open"))
_TAG_NAME = re.compile(r"</?[A-Za-z][A-Za-z0-9-]{0,40}+")
_SPAN = "span"  # key of the position of an inline token in its content

Check = Callable[[], None]
PartKind = Literal["text", "escaped", "space", "break", "open", "close", "code", "link", "image", "note", "html"]


class MarkdownError(ValueError):
    """A text cannot be read as Markdown; the message has the reason and the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownPart:
    r"""A part of a block. The parts of a block are in order and without gaps.

    - `text`: literal text; `escaped`: a character that is written differently, such as `\*` or `&amp;`
    - `space`: a line break that counts as a space, with the prefixes of the lines; `break`: a hard line break
    - `open` and `close`: a pair such as `**` and `**`, or `[` and `](address)`
    - `code`: code in backticks; `link`: a link such as `<https://example.com>`; `note`: a reference to a footnote
    - `image`: an image; `children` are the parts of its alternative text
    - `html`: a tag or comment
    """

    kind: PartKind
    start: int  # position in the text
    end: int
    content: str  # without prefixes of lines, and without the backslashes before `|` in a table
    text: str = ""  # of `text` and `escaped`: without escapes
    name: str = ""  # of `open` and `close`
    label: str | None = None  # of `close` and `image`: label of a reference that depends on the text of the link
    children: tuple["MarkdownPart", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownBlock:
    """A paragraph or a part of it, a heading, a cell of a table, or HTML."""

    kind: Literal["paragraph", "heading", "cell", "html"]
    start: int
    end: int
    content: str  # as in `MarkdownPart`
    parts: tuple[MarkdownPart, ...] = ()  # none for HTML
    is_located: bool = True  # whether `start`, `end` and `parts` are known
    positions: "Positions | None" = None  # of HTML: positions of its content


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions in a text of the content of a block, whose lines may have prefixes such as `> ` in the text."""

    lines: Sequence[int]  # start of each line in the content
    starts: Sequence[int]  # its position in the text
    pipes: Sequence[int] = ()  # positions in the content of `|`, which are written with a backslash

    def place(self, position: int) -> int:
        """Return the position in the text of a position in the content."""
        line = bisect_right(self.lines, position) - 1
        return self.starts[line] + position - self.lines[line] + bisect_left(self.pipes, position)


def read_blocks(text: str, env: dict[str, Any], check: Check = lambda: None) -> Iterator[MarkdownBlock]:
    """Yield the blocks of a text in order. Code blocks, definitions of links and front matter have no block.

    Args:
        text: the text, with any line ends.
        env: gets the definitions of links; see `inline_tokens`.
        check: called regularly.

    Raises:
        MarkdownError: if the containers of the text are nested too deeply, or too many brackets have no link.
    """
    readable = text.replace("\0", "\ufffd")  # as the parser does
    front = _FRONT_MATTER.match(readable)
    body = front.end() if front else int(text.startswith("\ufeff"))
    starts = [match.start() for match in _LINE.finditer(readable, body)] + [len(text)]
    env["check"] = check
    enclosing, is_first, position = "", False, body
    for token in _PARSER.parse(readable[body:], env):
        check()
        if token.type in _CONTAINERS and token.level >= MAX_DEPTH - 1:
            line = readable.count("\n", 0, starts[token.map[0]] if token.map else 0) + 1
            raise MarkdownError(f"nested more than {MAX_DEPTH} deep in line {line}")
        if token.type in _BLOCKS:
            enclosing = token.type
        elif token.type == "list_item_open":
            is_first = True
        elif token.map is None:
            continue
        elif token.type == "html_block":
            yield _html_block(readable, starts, token)
            is_first = False
        elif token.type == "inline":
            position = max(position, starts[token.map[0]])
            positions = _located(readable, starts, token, position, is_cell=enclosing in ("th_open", "td_open"))
            if positions is not None:
                position = positions.place(len(token.content))
            yield from _blocks(token, positions, enclosing, starts[token.map[0]], is_task=is_first)
            is_first = False


def inline_tokens(content: str, env: dict[str, Any]) -> Sequence[Token]:
    """Return the inline tokens of a content, with the definitions of links of `env`."""
    return _PARSER.parseInline(content, env)[0].children or []


def block_tokens(content: str, env: dict[str, Any]) -> Sequence[Token]:
    """Return the tokens of a content as a document, with the definitions of links of `env`."""
    return _PARSER.parse(content, dict(env))


def markup(text: str, check: Check = lambda: None) -> list[str]:
    """Return the markup of a text: its blocks in order, and the marks of each block in no particular order."""
    found: list[str] = []
    front = _FRONT_MATTER.match(text)
    for token in _PARSER.parse(text[front.end() :] if front else text, {"check": check}):
        if token.type == "inline":
            found += inline_markup(token.children or [])[0]
        elif token.type == "html_block":
            found += ("html_block", *_TAG_NAME.findall(token.content))
        else:
            found.append(f"{token.type} {token.tag} {token.info} {token.content} {sorted(token.attrs.items())}")
    return found


def inline_markup(tokens: Sequence[Token]) -> tuple[list[str], str]:
    """Return the marks of inline tokens in no particular order, and their text."""
    marks: list[str] = []
    text = ""
    is_address = False
    for token in tokens:
        if token.type in ("text", "text_special"):
            text += "" if is_address else token.content
        elif token.type == "softbreak":
            text += " "
        elif token.type == "image":
            inner, words = inline_markup(token.children or [])
            marks += [*inner, f"image {token.attrGet('src')} {token.attrGet('title')}"]
            text += words
        else:
            is_address = token.type == "link_open" and token.markup == "autolink"
            marks.append(f"{token.type} {sorted(token.attrs.items())} {token.markup} {token.content}")
    return sorted(marks), text


def _html_block(text: str, starts: Sequence[int], token: Token) -> MarkdownBlock:
    first, last = token.map or (0, 0)
    start, end = starts[first], starts[min(last, len(starts) - 1)]
    lines, places = [0], []
    for number, line in enumerate(token.content.removesuffix("\n").split("\n"), start=first):
        own = text[starts[number] : starts[number + 1]]
        places.append(starts[number] + len(own.rstrip("\r\n")) - len(line))
        lines.append(lines[-1] + len(line) + 1)
    places.append(end)
    positions = Positions(lines, places)
    return MarkdownBlock(kind="html", start=start, end=end, content=token.content, positions=positions)


def _located(text: str, starts: Sequence[int], token: Token, position: int, *, is_cell: bool) -> Positions | None:
    # The position of the content of an inline token in the text; None if the text differs from it.
    first = token.map[0] if token.map else 0
    if is_cell:  # each pipe in the content of a cell is escaped in the text
        start = text.find(token.content.replace("|", "\\|"), position, starts[min(first + 1, len(starts) - 1)])
        pipes = [match.start() for match in re.finditer(r"\|", token.content)]
        return Positions([0], [start], pipes) if start >= 0 else None
    content = token.content.split("\n")
    last = min(token.map[1] if token.map else 0, len(starts) - 1)
    while first < last and _found(text, content[0].strip(), starts[first], starts[first + 1]) < 0:
        first += 1  # the parser removes lines of white space such as U+00A0 before the content
    if first + len(content) > last:
        return None
    lines, places = [0], []
    for number, line in enumerate(content, start=first):
        at = _found(text, line.strip(), starts[number], starts[number + 1])
        if at < 0:
            return None
        places.append(at - (len(line) - len(line.lstrip())))
        lines.append(lines[-1] + len(line) + 1)
    return Positions(lines[:-1], places)


def _found(text: str, visible: str, start: int, end: int) -> int:
    # The position of the visible part of a line; -1 if the line has more after it than white space or a closing `#`.
    at = text.rfind(visible, start, end)
    if at < 0 or not all(char == "#" or char.isspace() for char in text[at + len(visible) : end]):
        return -1
    return at


def _blocks(
    token: Token, positions: Positions | None, enclosing: str, start: int, *, is_task: bool
) -> Iterator[MarkdownBlock]:
    kind: Literal["paragraph", "heading", "cell"] = "paragraph" if enclosing == "paragraph_open" else "heading"
    kind = kind if enclosing in ("paragraph_open", "heading_open") else "cell"
    content = token.content
    if positions is None:
        yield MarkdownBlock(kind=kind, start=start, end=start, content=content, is_located=False)
        return
    parts = list(_parts(content, token.children or [], positions, 0, len(content), is_cell=kind == "cell"))
    for own in _split_at_markers(content, parts, positions, is_task=is_task) if kind == "paragraph" else [parts]:
        if own:
            yield MarkdownBlock(
                kind=kind,
                start=own[0].start,
                end=own[-1].end,
                content="".join(part.content for part in own),
                parts=tuple(own),
            )


def _split_at_markers(
    content: str, parts: Sequence[MarkdownPart], positions: Positions, *, is_task: bool
) -> Iterator[list[MarkdownPart]]:
    # The parts between the markers at the start of lines, without the markers.
    task = _TASK.match(content) if is_task else None
    begin = task.end() if task else _marker_end(content, 0)
    own: list[MarkdownPart] = []
    offset = depth = 0
    for part in parts:
        end = offset + len(part.content)
        depth += {"open": 1, "close": -1}.get(part.kind, 0)
        if part.kind in ("space", "break") and depth == 0 and _marker_end(content, end) > end:
            yield own
            own, begin = [], _marker_end(content, end)
        elif offset >= begin:
            own += [part] if own or part.kind != "space" else []
        elif part.kind != "text":  # a link, which only looks like a marker
            own.append(part)
            begin = offset
        elif end > begin:
            rest = part.content[begin - offset :]
            own.append(replace(part, start=positions.place(begin), content=rest, text=rest))
        offset = end
    yield own


def _marker_end(content: str, position: int) -> int:
    match = _MARKER.match(content, position)
    return match.end() if match else position


def _parts(
    content: str, tokens: Sequence[Token], positions: Positions, start: int, end: int, *, is_cell: bool
) -> Iterator[MarkdownPart]:
    # The parts of a range of a content. The positions of the tokens are relative to `start`.
    opened: list[int] = []  # ends of the open marks, in the content
    position = start
    for token, first, last in _placed(tokens):
        begin, stop = start + first, start + last
        if token.type in ("softbreak", "hardbreak"):
            while begin > position and content[begin - 1] == " ":
                begin -= 1
        yield from _text_parts(content, position, begin, positions, is_cell=is_cell)
        position = stop
        part = MarkdownPart(
            kind=_kind(token),
            start=positions.place(begin),
            end=positions.place(stop),
            content=content[begin:stop],
        )
        if token.type == "text_special":
            part = replace(part, text=token.content)
        elif token.type == "image":
            label_end = start + token.meta["label_end"]
            children = _parts(content, token.children or [], positions, begin + 2, label_end, is_cell=is_cell)
            label = _label(content, begin + 2, label_end, stop)
            part = replace(part, children=tuple(children), label=label)
        elif token.nesting == 1:
            opened.append(stop)
            part = replace(part, name=f"{token.tag}{token.markup}")
        elif token.nesting == -1:
            label_start = opened.pop()
            label = _label(content, label_start, begin, stop) if token.type == "link_close" else None
            part = replace(part, name=f"{token.tag}{token.markup}", label=label)
        yield part
    yield from _text_parts(content, position, end, positions, is_cell=is_cell)


def _placed(tokens: Sequence[Token]) -> list[tuple[Token, int, int]]:
    placed = []
    for token in tokens:
        if token.type == "text" or _SPAN not in token.meta:
            continue
        start, end = token.meta[_SPAN]
        # Two delimiters were parsed as two tokens, of which the inner one was kept.
        start -= token.type == "strong_open"
        end += token.type == "strong_close"
        placed.append((token, start, end))
    return sorted(placed, key=lambda entry: entry[1])


def _kind(token: Token) -> PartKind:
    kinds: dict[str, PartKind] = {
        "text_special": "escaped",
        "softbreak": "space",
        "hardbreak": "break",
        "code_inline": "code",
        "html_inline": "html",
        "image": "image",
    }
    if token.type == "link_open" and token.markup == "autolink":
        return "link"
    return kinds.get(token.type) or ("open" if token.nesting == 1 else "close")


def _label(content: str, start: int, end: int, stop: int) -> str | None:
    # The label of `[text]` and `[text][]`, which is the text.
    return " ".join(content[start:end].split()) if content[end:stop] in ("]", "][]") else None


def _text_parts(content: str, start: int, end: int, positions: Positions, *, is_cell: bool) -> Iterator[MarkdownPart]:
    # Literal text with references to footnotes, and in a table with pipes.
    position = start
    for match in (_NOTE_OR_PIPE if is_cell else _NOTE).finditer(content, start, end):
        if position < match.start():
            yield _part("text", content, position, match.start(), positions)
        kind: PartKind = "escaped" if match[0] == "|" else "note"
        yield _part(kind, content, match.start(), match.end(), positions)
        position = match.end()
    if position < end:
        yield _part("text", content, position, end, positions)


_NOTE_OR_PIPE = re.compile(rf"{_NOTE.pattern}|\|")


def _part(kind: PartKind, content: str, start: int, end: int, positions: Positions) -> MarkdownPart:
    own = content[start:end]
    text = own if kind != "note" else ""
    return MarkdownPart(kind=kind, start=positions.place(start), end=positions.place(end), content=own, text=text)


_InlineRule = Callable[[StateInline, bool], bool]


def _recording(rule: _InlineRule, record: Callable[[StateInline, int, int], None]) -> _InlineRule:
    # The rule, after which `record(state, start, number of tokens before)` stores the positions of its tokens.
    def recorded(state: StateInline, silent: bool) -> bool:
        state.env["check"]()
        start, num_tokens = state.pos, len(state.tokens)
        if not rule(state, silent):
            return False
        if not silent and len(state.tokens) > num_tokens:
            record(state, start, num_tokens)
        return True

    return recorded


def _record_last(state: StateInline, start: int, _: int) -> None:
    state.tokens[-1].meta[_SPAN] = (start, state.pos)


def _record_delimiters(state: StateInline, start: int, _: int) -> None:
    end = state.pos
    for token in reversed(state.tokens):
        if end <= start:
            return
        token.meta[_SPAN] = (end - len(token.content), end)
        end -= len(token.content)


def _record_autolink(state: StateInline, start: int, _: int) -> None:
    state.tokens[-3].meta[_SPAN] = (start, state.pos)


def _count_bracket(state: StateInline) -> None:
    # Counts searches for the end of a link or image that has none, each of which may take 50 microseconds.
    number = state.env["num_brackets"] = state.env.get("num_brackets", 0) + 1
    if number > _MAX_BRACKETS:
        raise MarkdownError(f"more than {_MAX_BRACKETS} brackets without a link")


def _link(state: StateInline, silent: bool) -> bool:
    state.env["check"]()
    start, num_tokens = state.pos, len(state.tokens)
    is_candidate = not silent and state.src[start] == "["
    label_end = state.md.helpers.parseLinkLabel(state, start, True) if is_candidate else -1
    if not link(state, silent):
        if state.src[start] == "[":
            _count_bracket(state)
        return False
    if not silent:
        first = next(token for token in state.tokens[num_tokens : num_tokens + 2] if token.type == "link_open")
        first.meta[_SPAN] = (start, start + 1)
        state.tokens[-1].meta[_SPAN] = (label_end, state.pos)
    return True


def _image(state: StateInline, silent: bool) -> bool:
    state.env["check"]()
    start = state.pos
    is_candidate = not silent and state.src.startswith("![", start)
    label_end = state.md.helpers.parseLinkLabel(state, start + 1, False) if is_candidate else -1
    if not image(state, silent):
        if state.src.startswith("![", start):
            _count_bracket(state)
        return False
    if not silent:
        state.tokens[-1].meta.update({_SPAN: (start, state.pos), "label_end": label_end})
    return True


def _check_line(state: StateBlock, _start: int, _end: int, _silent: bool) -> bool:
    state.env["check"]()
    return False


def _reference(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    # `[^1]: word` is a footnote.
    is_note = state.src.startswith("[^", state.bMarks[start] + state.tShift[start])
    return not is_note and reference(state, start, end, silent)


def _parser() -> MarkdownIt:
    # `text_join` and `fragments_join` would join tokens with different positions.
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_DEPTH}).enable(["table", "strikethrough"])
    parser.disable(["text_join", "fragments_join"])
    terminates: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("table", "check", _check_line, terminates)
    parser.block.ruler.at("reference", _reference)
    for name, rule in (
        ("newline", newline),
        ("escape", escape),
        ("backticks", backtick),
        ("html_inline", html_inline),
        ("entity", entity),
    ):
        parser.inline.ruler.at(name, _recording(rule, _record_last))
    parser.inline.ruler.at("strikethrough", _recording(strikethrough.tokenize, _record_delimiters))
    parser.inline.ruler.at("emphasis", _recording(emphasis.tokenize, _record_delimiters))
    parser.inline.ruler.at("autolink", _recording(autolink, _record_autolink))
    parser.inline.ruler.at("link", _link)
    parser.inline.ruler.at("image", _image)
    return parser


_PARSER = _parser()
