"""Blocks of template languages, such as `{% if x %}one file{% else %}many files{% endif %}`.

A block within a line is one protected span, and the text of each branch is translated by itself, as in a plural
argument of ICU. Tags that are not paired stay protected one by one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from dragoman_service.datatypes import Span
from dragoman_service.text.segmentation import Check

_MAX_DEPTH = 16  # of nested blocks; each level is searched once more
_MAX_LENGTH = 4_000
_MAX_TAG = 200  # characters of a tag that decide its role

_UNCHANGED = frozenset(("raw", "verbatim", "comment", "highlight", "javascript", "schema", "style", "stylesheet"))
_SENTENCE_END = re.compile(r"[.!?:…][\"'”’“»)]*+\s*+\Z")

# The tags of each group of languages: `open` and `close` have the name of the block, or no characters if any tag closes
# the last block.
_LANGUAGES = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # Django, Jinja, Twig, Liquid
        (
            r"\{%[-+~]?\s*+(?:(?P<middle>(?:else|elif|elsif|elseif|empty|plural|pluralize|when)\b)"
            r"|end(?P<close>\w++)|(?P<open>\w++))"
        ),
        # Go
        (
            r"\{\{-?\s*+(?:(?P<close>)end\s*+-?\}\}|(?P<open>)(?:if|range|with|block|define)\s"
            r"|(?P<middle>else(?:\s++if\b[^{}]*+)?\s*+-?\}\}))"
        ),
        # Handlebars and Mustache
        (
            r"\{\{~?(?:(?P<middle>else\b|\^~?\}\})|/\s?(?P<close>[\w.$/-]++)"
            r"|[#^][*>]?\s?(?P<open>[\w.$/-]++))"
        ),
        # Svelte and Smarty
        (
            r"\{(?:(?P<middle>:\w|(?:else|elseif|foreachelse|sectionelse)\b)|/(?P<close>\w++)\}"
            r"|#?(?P<open>[a-z]\w*+)(?=[\s}]))"
        ),
        # ERB, EJS, PHP
        (
            r"<[%?](?:php)?[-_=]?\s*+(?:(?P<middle>\}?\s*+(?:else|elsif|elseif|when)\b)"
            r"|(?P<close>)(?:end\w*+|\}[);]*+)\s*+;?\s*+[-_]?[%?]>"
            r"|(?P<open>)(?:(?:if|unless|case|while|until|for|foreach|switch)\b"
            r"|.*(?:\bdo(?:\s*+\|[^|]*+\|)?|\{)\s*+[-_]?[%?]>\Z))"
        ),
        # Template Toolkit
        (
            r"\[%[-+~=]?\s*+(?:(?P<middle>(?:ELSE|ELSIF|CASE|CATCH|FINAL)\b)|(?P<close>)END\b"
            r"|(?P<open>)(?:IF|UNLESS|FOREACH|FOR|WHILE|BLOCK|FILTER|SWITCH|WRAPPER|TRY)\b)"
        ),
        # Velocity
        r"#(?:(?P<middle>else|\{else\})|(?P<close>)(?:end|\{end\})\Z|(?P<open>)(?:if|foreach)\b)",
        # FreeMarker
        (
            r"[<\[](?:#(?P<middle>(?:else|elseif|case|default)\b)|/[#@](?P<close>[\w.]++)"
            r"|[#@](?P<open>[\w.]++)(?!.*/[>\]]\Z))"
        ),
        # Blade
        r"@(?:end(?P<close>\w++)|(?P<middle>(?:else\w*+|case|default)\b)|(?P<open>\w++)\()",
    )
)
_MARKS = frozenset("{<[#@")


class HasSpan(Protocol):
    """A protected span."""

    @property
    def span(self) -> Span:
        """Its range in the text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block and the texts of its branches."""

    first: int  # index of its first tag among the spans of the text
    last: int
    span: Span
    messages: tuple[Span, ...]


@dataclass(slots=True, kw_only=True)
class _Opened:
    language: int
    name: str
    index: int
    middles: list[int] = field(default_factory=list)
    depth: int = 0  # of the blocks inside


def find_blocks(text: str, spans: Sequence[HasSpan], check: Check) -> Iterator[Block]:
    """Yield the outermost blocks whose tags are among the spans, in order."""
    blocks = sorted(_pairs(text, spans, check), key=lambda pair: pair[0].index)
    end = -1
    for opened, last in blocks:
        check()
        if opened.index < end:
            continue
        start, stop = spans[opened.index].span.start, spans[last].span.end
        end = last + 1
        tags = [opened.index, *opened.middles, last]
        inner = (Span(start=spans[tag].span.end, end=spans[following].span.start) for tag, following in pairwise(tags))
        has_messages = opened.name not in _UNCHANGED
        messages = tuple(each for each in inner if has_messages and any(map(str.isalpha, text[each.start : each.end])))
        yield Block(first=opened.index, last=last, span=Span(start=start, end=stop), messages=messages)


def is_apart(text: str, span: Span, last_message: Span | None) -> bool:
    """Return whether a block is between two sentences of a text."""
    before, after = text[max(0, span.start - 20) : span.start], text[span.end : span.end + 20]
    begins = not before.strip() or before.endswith("\n") or _SENTENCE_END.search(before) is not None
    ends = not after.strip() or after.startswith("\n")
    if last_message is not None and not ends:
        ends = _SENTENCE_END.search(text[max(last_message.start, last_message.end - 20) : last_message.end]) is not None
    return begins and ends


def _pairs(text: str, spans: Sequence[HasSpan], check: Check) -> Iterator[tuple[_Opened, int]]:
    # Each block with the index of its last tag. Openers without an end are ignored, so their middles belong to the
    # block around them.
    stack: list[_Opened] = []
    num_open: Counter[tuple[int, str]] = Counter()
    for index, protected in enumerate(spans):
        check()
        span = protected.span
        role = _role(text[span.start : min(span.end, span.start + _MAX_TAG)]) if text[span.start] in _MARKS else None
        if role is None:
            continue
        language, kind, name = role
        if kind == "open":
            stack.append(_Opened(language=language, name=name, index=index))
            num_open[language, name] += 1
        elif kind == "middle":
            if stack:
                stack[-1].middles.append(index)
        elif num_open[language, name]:
            opened = _close(stack, num_open, language, name)
            start, end = spans[opened.index].span.start, span.end
            if opened.depth < _MAX_DEPTH and end - start <= _MAX_LENGTH and "\n" not in text[start:end]:
                yield opened, index


def _close(stack: list[_Opened], num_open: Counter[tuple[int, str]], language: int, name: str) -> _Opened:
    # The last opener with a name, with the middles and the depth of the openers after it.
    middles: list[int] = []
    depth = 0
    while True:
        opened = stack.pop()
        num_open[opened.language, opened.name] -= 1
        middles += opened.middles
        depth = max(depth, opened.depth)
        if (opened.language, opened.name) == (language, name):
            break
    if stack:
        stack[-1].depth = max(stack[-1].depth, depth + 1)
    return replace(opened, middles=sorted(middles), depth=depth)


def _role(tag: str) -> tuple[int, str, str] | None:
    for language, expression in enumerate(_LANGUAGES):
        if (match := expression.match(tag)) is not None and match.lastgroup is not None:
            return language, match.lastgroup, match[match.lastgroup]
    return None
