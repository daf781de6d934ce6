"""Patterns of protected spans, which a translation must keep unchanged, and terms with fixed translations.

Each rule is a regular expression with bounded and mostly possessive repetitions. A match reads a bounded number of
characters and rarely backtracks, so the time is linear in the length of the text. Long texts are searched in windows.
All rules are alternatives of one expression: the first that matches at a position wins, and spans do not overlap.
Patterns of the caller are literal except for `*` and take precedence over all kinds. Finders search the ranges between
these spans: bars of plurals, terms, and those that a planner adds.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind, ProtectionOptions, Term
from dragoman_service.text.placeholders import templates
from dragoman_service.text.placeholders.blocks import find_blocks
from dragoman_service.text.placeholders.containers import TextReader
from dragoman_service.text.placeholders.icu import Container
from dragoman_service.text.placeholders.plural_bars import plural_separators
from dragoman_service.text.placeholders.spans import (
    ProtectedSpan,
    SpanFinder,
    WindowedExpression,
    add_matches,
    merged,
)
from dragoman_service.text.placeholders.templates import Rule
from dragoman_service.text.placeholders.terms import TermMatcher
from dragoman_service.text.segmentation import Check, never_ends

_URL_CHARACTER = r"[^\s<>\"`\\^|\x00-\x20\u3000-\u303f\uff00-\uffef]"
_BRACED_VALUE = r"\{(?:[^{}<\n]{1,200}+|\{(?=[^{}<\n]{0,100}+\})[^{}]{0,100}+\}){0,8}+\}"
_VALUE = (
    r"\"[^\"<]{0,1000}+(?:<[%?][^<>]{1,200}+>[^\"<]{0,200}+){0,3}\"|'[^'<]{0,1000}+'"  # `<% %>` in a value: ERB
    rf"|{_BRACED_VALUE}|[\w#.%:-]{{1,200}}+"
)
# Attributes without a value: those of HTML, directives of Vue, Angular and Svelte, properties in braces.
_FLAG = (
    r"(?:[vx]-|[*#@:]|(?:on|bind|use|in|out|transition|animate):)[A-Za-z][\w:.|-]{0,63}+|\{(?:\.{3})?[\w.$]{1,64}+\}"
    r"|(?:async|autofocus|autoplay|checked|controls|default|defer|disabled|download|hidden|loop|multiple|muted|novalidate"
    r"|open|readonly|required|reversed|selected)(?![\w-])"
)
_TAG_ATTRIBUTE = rf"\s{{1,32}}+(?:[\w:@.*#|\[\]()-]{{1,64}}+\s{{0,8}}+=\s{{0,8}}+(?:{_VALUE})|{_FLAG})"
_CURRENCY = r"[$\xa3\xa5\u20a0-\u20bf]"
_UNIT = (
    rf"%|\u2030|\xb0(?:[CF]\b)?|{_CURRENCY}|EUR|USD|GBP|CHF|km/h|m/s|mph|rpm|[kcdm\xb5\u03bcn]?m[\xb2\xb3]?|[km\xb5\u03bc]?g|m?[lL]"
    r"|[m\xb5\u03bcn]?s|min|h|[kMGT]?Hz|[km]?V|m?A|[kMG]?Wh?|k?[JN]|[hkM]?Pa|bar|[k\u2126M]?\u03a9|\u2126|dB|dpi|px|pt"
    r"|[kKMGTP]?i?B(?:/s)?|[kMG]?bit(?:/s)?|[kMG]bps"
)

# Kinds that are protected unless the request changes this. Other modules find some of them, see `enabled_kinds`.
DEFAULT_KINDS = frozenset(ProtectedKind) - {ProtectedKind.COLON}

_TAG_NAME = r"(?:[A-Za-z][\w:.-]{0,63}+|\d{1,3}+)"  # a number in the Trans component of React
_TAG = re.compile(
    rf"</?{_TAG_NAME}(?:=(?:\"[^\"<>\n]{{0,200}}+\"|[#\w.%+-]{{1,64}}+))?"  # Unity: `<color=#fff>`
    rf"(?:{_TAG_ATTRIBUTE}){{0,32}}+\s{{0,32}}+/?>"
)

_GROUP = "rule"  # prefix of the names of groups

_GRAMMAR_REACH = 9_000  # more than the longest path (32 names of 255 characters) and any other match
_GRAMMAR_WINDOW = 8_192  # one call takes at most 20 ms (a text of `<%`)
_PATTERN_WINDOW = 1_024  # one call takes at most 10 ms, with `MAX_PATTERN_STARS`
_MAX_STAR_CHARACTERS = 100  # longest match of a `*`

_TRAILING = frozenset(".,;:!?'\"*_~…“”„‟«»‹›‘’‚")
_CLOSERS = {")": "(", "]": "[", "}": "{"}
_FILE_NAME = re.compile(r"[\w@+%-][\w.@+%-]*\.[A-Za-z0-9]{1,5}", re.ASCII)
_XLIFF_TMX_TAGS = frozenset({"ph", "x", "bx", "ex", "it", "bpt", "ept", "ut"})  # placeholders of these formats
_JOINED_BY_BAR = re.compile(r"(?:\|\w{1,64}+){1,8}+(?!\|)", re.ASCII)  # `C:/x|y`, not plural forms
_NAME_OF_TAG = re.compile(r"</?([\w:.-]+)")


# Every span of the grammar, except for `_KINDS_WITHOUT_TRIGGER`, contains one of these, so a text without them needs no
# further search.
_TRIGGER = WindowedExpression(
    expression=re.compile(r"[{%$@/\\`<#\[|]|\(\)|--[A-Za-z]|![a-z]|&[a-z]|''|www\.|mailto:|tel:|data:"),
    reach=8,
    window=1 << 17,
)
_KINDS_WITHOUT_TRIGGER = frozenset((ProtectedKind.COLON, ProtectedKind.NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Compiled kinds, patterns and terms of a request."""

    expressions: tuple[WindowedExpression, ...]  # of patterns and kinds, in order of precedence
    rules: tuple[Rule, ...]  # `rule0`, `rule1` and so on are their groups in the expression of kinds
    finders: tuple[SpanFinder, ...]  # in order of precedence, after the expressions
    needs_trigger: bool  # whether every span of the expressions contains a trigger

    def find(self, text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the protected spans of a text in order, without overlaps. All others take precedence over terms."""
        may_match = not self.needs_trigger or _TRIGGER.search(text, 0, check) is not None
        spans = list(self._literals(text, check)) if may_match else []
        for finder in self.finders:
            spans = finder.add_to(spans, text, check)
        return spans

    def _literals(self, text: str, check: Check) -> Iterator[ProtectedSpan]:
        reader = TextReader(text, check)
        matches = [expression.search(text, 0, check) for expression in self.expressions]
        while (match := min(filter(None, matches), key=re.Match.start, default=None)) is not None:
            start, position = match.span()
            rule = self.rules[int(match.lastgroup.removeprefix(_GROUP))] if match.lastgroup else None
            if rule is None or rule.read is None:
                yield ProtectedSpan(span=Span(start=start, end=position), kind=rule.kind if rule else None)
            elif (container := rule.read(reader, start, position)) is not None:
                position = container.end
                yield ProtectedSpan(span=Span(start=start, end=position), kind=rule.kind, messages=container.messages)
            for index, expression in enumerate(self.expressions):
                other = matches[index]
                if other is not None and other.start() < position:
                    matches[index] = expression.search(text, position, check)


class BlockFinder:
    """Joins the tags of a block of a template language to one span with messages."""

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans with one span for each block, in order."""
        joined: list[ProtectedSpan] = []
        position = 0
        for block in find_blocks(text, spans, check):
            joined += spans[position : block.first]
            joined.append(ProtectedSpan(span=block.span, kind=spans[block.first].kind, messages=block.messages))
            position = block.last + 1
        return [*joined, *spans[position:]]


class PluralBarFinder:
    """Finds the bars between the plural forms of a message."""

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans and the bars, in order. A bar includes the interval after it, which may be a span."""
        if "|" not in text:
            return list(spans)
        bars = list(plural_separators(text, [protected.span for protected in spans], check))
        starts = [bar.start for bar in bars]

        def is_part(span: Span) -> bool:
            index = bisect_right(starts, span.start) - 1
            return index >= 0 and span.end <= bars[index].end

        others = [protected for protected in spans if not is_part(protected.span)]
        return merged(others, [ProtectedSpan(span=bar, kind=ProtectedKind.PLURAL) for bar in bars])


def enabled_kinds(options: ProtectionOptions) -> frozenset[ProtectedKind]:
    """Return the kinds that a request protects.

    The grammar finds all kinds except for these: `text.placeholders.numbers` finds numbers and identifiers, unless the
    request enables `NUMBER` itself, which protects every number; escapes and accelerators are codes of text units.
    """
    if not options.is_enabled:
        return frozenset()
    return (DEFAULT_KINDS | options.enabled_kinds) - options.disabled_kinds


@lru_cache(maxsize=64)
def compile_protection(
    options: ProtectionOptions, terms: tuple[Term, ...], glossary: TermMatcher | None = None
) -> Protection:
    """Compile the protection of a request, which is validated already."""
    kinds = enabled_kinds(options)
    if ProtectedKind.NUMBER not in options.enabled_kinds:
        kinds -= {ProtectedKind.NUMBER}
    rules = tuple(rule for rule in _GRAMMAR if rule.kind in kinds)
    expressions = []
    if options.patterns:
        reach = max(len(pattern) + pattern.count("*") * _MAX_STAR_CHARACTERS for pattern in options.patterns)
        pattern = re.compile("|".join(map(_regular_expression, options.patterns)))
        expressions.append(WindowedExpression(expression=pattern, reach=reach, window=_PATTERN_WINDOW))
    if rules:
        grammar = re.compile(_alternatives(rules))
        expressions.append(WindowedExpression(expression=grammar, reach=_GRAMMAR_REACH, window=_GRAMMAR_WINDOW))
    finders: list[SpanFinder] = [BlockFinder()]
    if ProtectedKind.PLURAL in kinds:
        finders.append(PluralBarFinder())
    if terms:
        finders.append(TermMatcher(terms))
    if glossary:
        finders.append(glossary)
    return Protection(
        expressions=tuple(expressions),
        rules=rules,
        finders=tuple(finders),
        needs_trigger=not options.patterns and not kinds & _KINDS_WITHOUT_TRIGGER,
    )


def may_have_literals(text: str) -> bool:
    """Return whether a text may contain a span of the grammar, such as a placeholder or an address."""
    return _TRIGGER.search(text, 0, never_ends) is not None


def is_placeholder_tag(tag: str) -> bool:
    """Return whether a tag is content itself, such as `<ph id="1"/>`, and does not mark other text."""
    match = _NAME_OF_TAG.match(tag)
    return match is not None and match[1].lower() in _XLIFF_TMX_TAGS


def tag_name(tag: str) -> str:
    """Return the name of a tag."""
    match = _NAME_OF_TAG.match(tag)
    return match[1] if match else ""


def with_number_signs(spans: Sequence[ProtectedSpan], text: str, check: Check) -> list[ProtectedSpan]:
    """Return the spans of a text and every `#` outside of them, in order; a quoted one with its quotes."""

    def signs(text: str, start: int, end: int) -> Iterator[ProtectedSpan]:
        for index in range(start, end):
            check()
            if text[index] == "#":
                num_quotes = text[index - 1 : index + 2 : 2] == "''"  # a literal `#` keeps its quotes
                yield ProtectedSpan(
                    span=Span(start=index - num_quotes, end=index + 1 + num_quotes), kind=ProtectedKind.ICU
                )

    return add_matches(spans, text, signs, check)


def _regular_expression(pattern: str) -> str:
    # `*` matches 1 to 100 characters other than white space and the next character of the pattern.
    parts = pattern.split("*")
    expression = re.escape(parts[0])
    for part in parts[1:]:
        end = re.escape(part[0]) if part else r"\W"
        stop = rf"\s{end}" if part else r"\s\W"
        expression += rf"[^{stop}]{{1,{_MAX_STAR_CHARACTERS}}}+{re.escape(part)}"
    return expression


def _tag(reader: TextReader, start: int, _end: int) -> Container | None:
    match = _TAG.match(reader.text, start)
    return Container(end=match.end()) if match else None


def _address(reader: TextReader, start: int, end: int) -> Container | None:
    # Addresses and paths end before the punctuation of the sentence.
    text = reader.text
    if (tag := text.find("[/", start, end)) > start:  # of BBCode: `[img]https://example.com[/img]`
        end = tag
    balance = {
        opener: text.count(opener, start, end) - text.count(closer, start, end) for closer, opener in _CLOSERS.items()
    }
    while end > start:
        last = text[end - 1]
        if last in _CLOSERS and balance[_CLOSERS[last]] < 0:
            balance[_CLOSERS[last]] += 1
        elif last not in _TRAILING:
            break
        end -= 1
    return Container(end=end) if end > start else None


def _path(reader: TextReader, start: int, end: int) -> Container | None:
    address = _address(reader, start, end)
    if address is None or not _is_path(reader.text[start : address.end]):
        return None
    joined = _JOINED_BY_BAR.match(reader.text, address.end)
    return Container(end=joined.end()) if joined else address


def _is_path(text: str) -> bool:
    # `/usr/bin`, `~/x` and `src/main.py` are paths; `and/or`, `/s` and `1/2` are not.
    if "\\" in text or text.startswith(("~", ".")) or text[1:2] == ":":
        return len(text) > 2
    names = text.strip("/").split("/")
    is_absolute = text.startswith("/")
    has_file_name = _FILE_NAME.fullmatch(names[-1]) is not None and not names[-1].replace(".", "").isdigit()
    return has_file_name or (is_absolute and len(names) > 1 and any(any(map(str.isalpha, name)) for name in names))


# Rules in order of precedence at one position.
#
# Before Python 3.11.5, a possessive group that fails halfway keeps what it has matched so far. The expressions after
# it, or `_address`, compensate for that; the group of numbers looks ahead instead.
_GRAMMAR = (
    Rule(
        kind=ProtectedKind.CODE,  # roles of reStructuredText: :ref:`page`
        pattern=r":(?<![\w:]:)[a-z](?a:[\w:+.-]{0,40}+)(?<=:)`[^`\n]{1,500}+`",
    ),
    Rule(kind=ProtectedKind.CODE, pattern=r"``[^`\n]{1,500}+``|`[^`\n]{1,500}+`"),
    Rule(
        kind=ProtectedKind.CODE,  # options of commands: `--level=3`
        pattern=r"(?<![\w-])--[A-Za-z][\w-]{1,63}+(?:=[^\s\"'`,;()<>{}]{1,200}(?<![.!?:]))?(?!\w)",
    ),
    Rule(
        kind=ProtectedKind.CODE,  # calls without arguments: `auth.login()`
        pattern=r"(?<![\w.])[A-Za-z_]\w{0,63}+(?:(?:\.|::|->)[A-Za-z_]\w{0,63}+){0,8}+\(\)",
    ),
    Rule(kind=ProtectedKind.TAG, pattern=r"<(?=/?[A-Za-z\d])", read=_tag),  # only the start; see `_TAG`
    *templates.RULES,
    Rule(
        kind=ProtectedKind.PRINTF,  # `100%%`, so that the number and the sign stay together
        pattern=r"(?<![\w.,%$])\d{1,9}+(?:(?=[.,]\d)[.,]\d{1,9}+){0,3}+[ \xa0\u202f]?%%(?!%)",
    ),
    Rule(kind=ProtectedKind.URL, pattern=r"(?<=[\w.!?)\]`*_])\]\([^\s()\[\]]{1,1000}+\)"),  # end of a Markdown link
    Rule(
        kind=ProtectedKind.URL,
        pattern=rf"(?<!\w)(?:(?:https?|ftps?|sftp|ssh|file|git|wss?)://|www\.(?=\w)|(?:mailto|tel|data):(?=\w)){_URL_CHARACTER}{{1,2000}}+",
        read=_address,
    ),
    Rule(
        kind=ProtectedKind.EMAIL,
        pattern=r"(?<![\w.%+-])[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9][A-Za-z0-9-]{0,62}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+",
        read=_address,
    ),
    Rule(
        kind=ProtectedKind.PATH,
        pattern=(
            r"(?<![\w.~:/\\-])(?:[A-Za-z]:(?:\\|/(?!/))|\\\\(?=\w))[^\s\"<>|:*?`]{1,1000}+"
            r"|(?<![\w./~:\\@-])(?:~|\.{1,2})?(?:/[\w.@+%-]{1,255}+){1,32}+/?"
            r"|(?<![\w./~:\\@-])\w[\w.@+%-]{0,254}+(?:/[\w.@+%-]{1,255}+){1,32}+"
        ),
        read=_path,
    ),
    Rule(kind=ProtectedKind.COLON, pattern=r"(?<![\w:]):[A-Za-z_]\w{0,63}+(?![\w:])"),
    Rule(
        kind=ProtectedKind.NUMBER,
        pattern=(
            rf"(?<![\w.,:])(?:[-+\u2212\xb1]\s?)?(?:{_CURRENCY}\s?)?\d{{1,32}}+(?:(?=[.,:/'\u2019\u202f\xa0]\d).\d{{1,32}}+){{0,8}}+"
            rf"(?:\s?(?:{_UNIT})(?!\w)|(?!\w))"
        ),
    ),
    templates.NUMBERED_VARIABLE,
)


def _alternatives(rules: Sequence[Rule]) -> str:
    # An empty group at the end identifies the rule. A group around the rule would keep `re` from skipping alternatives
    # by their first character. One look at the next character skips all formats of templates.
    parts = []
    for is_template, members in groupby(enumerate(rules), key=lambda member: member[1] in templates.RULES):
        group = "|".join(f"(?:{rule.pattern})(?P<{_GROUP}{index}>)" for index, rule in members)
        parts.append(rf"(?=[{templates.FIRST_CHARACTERS}])(?:{group})" if is_template else group)
    return "|".join(parts)
