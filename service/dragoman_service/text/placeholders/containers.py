"""Template formats with nested braces, or with translated messages inside.

A format without messages, and a container that does not follow its format exactly, is one span that stays unchanged:
a text with a broken template is worse than an untranslated one.
"""

import re
from collections.abc import Iterator
from functools import cached_property

from dragoman_service.datatypes import Span
from dragoman_service.text.placeholders.icu import MAX_MESSAGES, Container, IcuReader
from dragoman_service.text.segmentation import Check

_MAX_DEPTH = 16  # of braces inside a span, so that each character is read a bounded number of times
_MAX_LINE = 500  # length of a span without messages, which is within a line
_MAX_LENGTH = 4_000  # length of a container
_MAX_ARGUMENTS = 4  # of a LaTeX command

_BRACE = re.compile(r"\\[{}]|[{}]")
_BAR_OR_BRACE = re.compile(r"[{}|]")
_CHOICE_LIMIT = re.compile(r"\s{0,32}+(?:[-+]?\d{1,20}+(?:\.\d{1,20})?|-?\u221e)\s{0,8}+[#<\u2264]")
_QUOTE = re.compile(r"''|'[^'{}|#<]*+(?P<syntax>[{}|#<])?")
_VARIANT = re.compile(r"[{}]|\*?\[\s{0,8}+[\w.-]{1,64}+\s{0,8}+\]")
_CLOSED_NAME = re.compile(r"\[/([A-Za-z][\w-]{0,63}+)\]")
_NUMBERED = re.compile(r"\$([1-9])(?![\d\w]|[.,]\d)")
_LINK = re.compile(r"\[\[([^\[\]|:]{0,100}+):?[^\[\]|]{0,300}+\|([^\[\]|]{1,300}+)\]\]")
_LINKED_FILES = frozenset(("file", "image", "media", "category", "datei", "bild", "kategorie", "fichier", "archivo"))
_WIKI_FUNCTION = re.compile(r"\{\{(?:PLURAL|GENDER|GRAMMAR|plural|gender):[^{}|\n]{1,100}+\|")
_LATEX_NAME = re.compile(r"\\[A-Za-z]+\*?")
# fmt: off
_LATEX_TEXT = frozenset((
    "textbf", "textit", "emph", "underline", "textsc", "textsf", "textrm", "textup", "textsl", "textmd", "textnormal",
    "text", "mbox", "footnote", "footnotetext", "section", "subsection", "subsubsection", "paragraph", "subparagraph",
    "chapter", "part", "title", "subtitle", "caption", "uline", "sout", "hl", "enquote", "textcolor", "colorbox",
    "href", "hyperref", "marginpar", "textsuperscript", "textsubscript", "frametitle", "framesubtitle", "alert",
    "hyperlink",
))
# fmt: on


class TextReader:
    """Reads the nested structures of one text. Each structure of the text is read once, when a span needs it."""

    def __init__(self, text: str, check: Check) -> None:
        self.text = text
        self._check = check

    @cached_property
    def _icu(self) -> IcuReader:
        return IcuReader(self.text, self._check)

    @cached_property
    def _closing(self) -> dict[int, int]:
        # Position of the closing brace by the position of the opening one.
        closing: dict[int, int] = {}
        opened: list[list[int]] = []  # position, and the depth of the braces inside
        for match in _BRACE.finditer(self.text):
            self._check()
            if match[0] == "{":
                opened.append([match.start(), 0])
            elif match[0] == "}" and opened:
                start, depth = opened.pop()
                if depth < _MAX_DEPTH:
                    closing[start] = match.start()
                if opened:
                    opened[-1][1] = max(opened[-1][1], depth + 1)
        return closing

    @cached_property
    def _closed_names(self) -> frozenset[str]:
        return frozenset(match[1] for match in _CLOSED_NAME.finditer(self.text))

    @cached_property
    def _has_numbered(self) -> bool:
        return {"1", "2"} <= {match[1] for match in _NUMBERED.finditer(self.text)}

    def icu_argument(self, _start: int, end: int) -> Container | None:
        """Return the plural or select argument whose head ends at a position."""
        return self._icu.argument(end)

    def nested_braces(self, start: int, end: int) -> Container | None:
        """Return the span up to the brace that closes the last one before `end`, within a line."""
        opening = self.text.rindex("{", start, end)
        closing = self._closing.get(opening, -1)
        if not opening + 1 < closing < start + _MAX_LINE or "\n" in self.text[start:closing]:
            return None
        return Container(end=closing + 1)

    def double_braces(self, start: int, _end: int) -> Container | None:
        """Return a span in double braces; `{{PLURAL:$1|file|files}}` of MediaWiki has messages."""
        container = self.nested_braces(start, start + 1)
        if container is None or not self.text.endswith("}}", start, container.end):
            return None
        if (head := _WIKI_FUNCTION.match(self.text, start)) is None:
            return container
        return Container(end=container.end, messages=tuple(self._forms(head.end(), container.end - 2)))

    def choice(self, start: int, end: int) -> Container | None:
        """Return a choice of Java: `{0,choice,0#none|1#one|1<many {0}}`."""
        closing = self._container_end(start)
        if closing is None:
            return None
        messages: list[Span] = []
        forms = list(self._forms(end, closing))
        for form in forms:
            limit = _CHOICE_LIMIT.match(self.text, form.start, form.end)
            if limit is not None:
                messages.append(Span(start=limit.end(), end=form.end))
        has_quoted = any(match["syntax"] for match in _QUOTE.finditer(self.text, end, closing))
        is_exact = len(messages) == len(forms) and not has_quoted
        return Container(end=closing + 1, messages=tuple(messages) if is_exact else ())

    def smart_format(self, start: int, end: int) -> Container | None:
        """Return a choice of SmartFormat (Unity, .NET): `{count:plural:one|many {}}`."""
        closing = self._container_end(start)
        if closing is None:
            return None
        forms = tuple(self._forms(end, closing))
        return Container(end=closing + 1, messages=forms if len(forms) > 1 else ())

    def selector(self, start: int, end: int) -> Container | None:
        """Return a select expression of Fluent: `{ $count -> [one] file *[other] files }`."""
        closing = self._container_end(start)
        if closing is None:
            return None
        keys: list[re.Match[str]] = []
        depth = 0
        for match in _VARIANT.finditer(self.text, end, closing):
            self._check()
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0 and match[0].endswith("]"):
                keys.append(match)
        num_defaults = sum(key[0].startswith("*") for key in keys)
        if num_defaults != 1 or len(keys) > MAX_MESSAGES or self.text[end : keys[0].start()].strip():
            return Container(end=closing + 1)
        ends = [*(key.start() for key in keys[1:]), closing]
        messages = (self._trimmed(key.end(), stop) for key, stop in zip(keys, ends, strict=True))
        return Container(end=closing + 1, messages=tuple(messages))

    def wiki_link(self, start: int, end: int) -> Container | None:
        """Return a link of MediaWiki; the text of `[[Link|text]]` is a message."""
        match = _LINK.fullmatch(self.text, start, end)
        is_text = match is not None and match[1].strip().lower() not in _LINKED_FILES
        if match is None or not is_text or not any(map(str.isalpha, match[2])) or set(match[2]) & set("{}$%<>"):
            return Container(end=end)
        return Container(end=end, messages=(Span(start=match.start(2), end=match.end(2)),))

    def inflection(self, start: int, end: int) -> Container | None:
        """Return text with automatic grammar agreement of Apple: `^[%lld file](inflect: true)`."""
        return Container(end=end, messages=(Span(start=start + 2, end=self.text.index("](", start)),))

    def latex(self, start: int, end: int) -> Container | None:
        r"""Return a LaTeX command with its arguments; the last argument of `\textbf{text}` is a message."""
        last, position = -1, end
        for _ in range(_MAX_ARGUMENTS):
            closing = self._closing.get(position, -1)
            if not position < closing < start + _MAX_LENGTH:
                break
            last, position = position, closing + 1
        if last < 0:
            return None
        name = _LATEX_NAME.match(self.text, start)
        is_text = name is not None and name[0].strip("\\*") in _LATEX_TEXT
        return Container(end=position, messages=(Span(start=last + 1, end=position - 1),) if is_text else ())

    def paired_tag(self, start: int, end: int) -> Container | None:
        """Return a tag in brackets, if the text has its end tag."""
        return Container(end=end) if self.text[start + 1 : end - 1] in self._closed_names else None

    def numbered_variable(self, _start: int, end: int) -> Container | None:
        """Return `$1` if the text has `$2` in addition; else `$1` is an amount."""
        return Container(end=end) if self._has_numbered else None

    def _container_end(self, start: int) -> int | None:
        closing = self._closing.get(start, -1)
        return closing if start < closing < start + _MAX_LENGTH else None

    def _forms(self, start: int, end: int) -> Iterator[Span]:
        # The texts between the bars outside of braces.
        depth = num_forms = 0
        for match in _BAR_OR_BRACE.finditer(self.text, start, end):
            self._check()
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0 and match[0] == "|" and num_forms < MAX_MESSAGES:
                yield Span(start=start, end=match.start())
                start = match.end()
                num_forms += 1
        yield Span(start=start, end=end)

    def _trimmed(self, start: int, end: int) -> Span:
        text = self.text[start:end]
        length = len(text.strip())
        start += len(text) - len(text.lstrip())
        return Span(start=start, end=start + length)
