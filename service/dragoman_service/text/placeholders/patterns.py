"""Patterns of protected spans, which a translation must keep unchanged, and terms with fixed translations.

Each kind is one regular expression with bounded and mostly possessive repetitions. A match reads a bounded number of
characters and rarely backtracks, so the time is linear in the length of the text. Long texts are searched in windows.
All kinds are alternatives of one expression: the first that matches at a position wins, and spans do not overlap.
Patterns of the caller are literal except for `*` and take precedence over all kinds.
"""

import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind, ProtectionOptions, Term
from dragoman_service.text.placeholders import icu
from dragoman_service.text.segmentation import Check, never_ends

_URL_CHARACTER = r"[^\s<>\"`\\^|\x00-\x20\u3000-\u303f\uff00-\uffef]"
_TAG_ATTRIBUTE = r"\s{1,32}+[\w:@.-]{1,64}+\s{0,8}+=\s{0,8}+(?:\"[^\"<>]{0,1000}+\"|'[^'<>]{0,1000}+')"
_CURRENCY = r"[$\xa3\xa5\u20a0-\u20bf]"
_UNIT = (
    rf"%|\u2030|\xb0(?:[CF]\b)?|{_CURRENCY}|EUR|USD|GBP|CHF|km/h|m/s|mph|rpm|[kcdm\xb5\u03bcn]?m[\xb2\xb3]?|[km\xb5\u03bc]?g|m?[lL]"
    r"|[m\xb5\u03bcn]?s|min|h|[kMGT]?Hz|[km]?V|m?A|[kMG]?Wh?|k?[JN]|[hkM]?Pa|bar|[k\u2126M]?\u03a9|\u2126|dB|dpi|px|pt"
    r"|[kKMGTP]?i?B(?:/s)?|[kMG]?bit(?:/s)?|[kMG]bps"
)

# In order of precedence at one position. `_trimmed` decides where a path or an address ends.
#
# Before Python 3.11.5, a possessive group that fails halfway keeps what it has matched so far. The expressions after
# it, or `_trimmed`, compensate for that; the group of numbers looks ahead instead.
_GRAMMAR: dict[ProtectedKind, str] = {
    ProtectedKind.CODE: r"``[^`\n]{1,500}+``|`[^`\n]{1,500}+`",
    ProtectedKind.TAG: r"<(?=/?[A-Za-z])",  # only the start, which is unique to tags; see `_TAG`
    ProtectedKind.URL: (
        rf"(?<!\w)(?:(?:https?|ftps?|sftp|ssh|file|git|wss?)://|www\.(?=\w)|(?:mailto|tel|data):(?=\w)){_URL_CHARACTER}{{1,2000}}+"
    ),
    ProtectedKind.TEMPLATE: r"[$%#]\{[^{}\n]{1,200}+\}|\$t\([^()\n]{1,200}+\)|\$\([^()\s]{1,100}+\)",
    ProtectedKind.ICU: icu.HEAD,
    ProtectedKind.BRACES: (
        r"\{\{\{?[^{}\n]{1,200}+\}\}\}?|\{%[^{}%\n]{1,200}+%\}"
        r"|\{ ?[\w.$@\[\]-]{0,100}+ ?(?:[,:!|][^{}\n]{1,100}+)?\}"
    ),
    ProtectedKind.PRINTF: (
        r"(?<![\d%])%(?:(?:\d{1,2}\$|\(\w{1,64}+\))[-+#0]{0,3}+\d{0,4}(?:\.\d{1,3})?(?:hh?|ll?|[zjtL])?[diouxXeEfFgGcsaA@]"
        r"|[-+#0]{0,3}+\d{0,4}(?:\.\d{1,3})?(?:hh?|ll?|[zjtL])?[diouxXeEfFgGcsaA@](?![A-Za-z0-9]))"
    ),
    ProtectedKind.EMAIL: (
        r"(?<![\w.%+-])[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9][A-Za-z0-9-]{0,62}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+"
    ),
    ProtectedKind.PATH: (
        r"(?<![\w.~:/\\-])(?:[A-Za-z]:\\|\\\\(?=\w))[^\s\"<>|:*?`]{1,1000}+"
        r"|(?<![\w./~:\\@-])(?:~|\.{1,2})?(?:/[\w.@+%-]{1,255}+){1,32}+/?"
        r"|(?<![\w./~:\\@-])\w[\w.@+%-]{0,254}+(?:/[\w.@+%-]{1,255}+){1,32}+"
    ),
    ProtectedKind.COLON: r"(?<![\w:]):[A-Za-z_]\w{0,63}+(?![\w:])",
    ProtectedKind.NUMBER: (
        rf"(?<![\w.,:])(?:[-+\u2212\xb1]\s?)?(?:{_CURRENCY}\s?)?\d{{1,32}}+(?:(?=[.,:/'\u2019\u202f\xa0]\d).\d{{1,32}}+){{0,8}}+"
        rf"(?:\s?(?:{_UNIT})(?!\w)|(?!\w))"
    ),
}

# Kinds that are protected unless the request changes this.
DEFAULT_KINDS = frozenset(ProtectedKind) - {ProtectedKind.COLON, ProtectedKind.NUMBER}

_TAG = re.compile(rf"</?[A-Za-z][\w:.-]{{0,63}}+(?:{_TAG_ATTRIBUTE}){{0,32}}+\s{{0,32}}+/?>")

_LONG_CALL_S = 0.001
_GRAMMAR_REACH = 9_000  # more than the longest path (32 names of 255 characters) and any other match
_GRAMMAR_WINDOW = 16_384  # one call takes at most 15 ms (a text of `{`)
_PATTERN_WINDOW = 1_024  # one call takes at most 10 ms, with `MAX_PATTERN_STARS`
_MAX_STAR_CHARACTERS = 100  # longest match of a `*`
_TERM_CHECK_CHARACTERS = 64  # interval of checks in the search for terms

_TRAILING = frozenset(".,;:!?'\"*_~…")
_CLOSERS = {")": "(", "]": "[", "}": "{"}
_FILE_NAME = re.compile(r"[\w@+%-][\w.@+%-]*\.[A-Za-z0-9]{1,5}", re.ASCII)
_XLIFF_TMX_TAGS = frozenset({"ph", "x", "bx", "ex", "it", "bpt", "ept", "ut"})  # placeholders of these formats
_TAG_NAME = re.compile(r"</?([\w:.-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedExpression:
    """An expression whose matches have a limited length. It searches long texts in windows.

    `re` holds the global interpreter lock (GIL) during each call. A search in windows releases the GIL between two
    calls, and can be cancelled there.
    """

    expression: re.Pattern[str]
    reach: int  # most characters that a match reads from its start, including lookahead
    window: int  # start positions that one call tries

    def search(self, text: str, position: int, check: Check) -> re.Match[str] | None:
        """Return the first match from a position on, like `re.Pattern.search`."""
        while True:
            check()
            end = position + self.window
            started_s = time.perf_counter()
            match = self.expression.search(text, position, end + self.reach)
            if end + self.reach >= len(text) or (match is not None and match.start() < end):
                return match
            position = end  # a match that starts after `end` may be truncated
            # The event loop releases the GIL at each system call, several times per response. Without a pause, it would
            # wait for a whole window each time.
            if (duration_s := time.perf_counter() - started_s) > _LONG_CALL_S:
                time.sleep(duration_s)


# Every span of the default kinds contains one of these, so a text without them needs no further search.
_TRIGGER = WindowedExpression(expression=re.compile(r"[{%$@/\\`<#]|www\.|mailto:|tel:|data:"), reach=8, window=1 << 17)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedSpan:
    """Span that a translation keeps unchanged, or a term with a fixed translation."""

    span: Span
    kind: ProtectedKind | None  # None: a pattern of the caller, or a term
    target: str | None = None  # fixed translation; None: unchanged
    messages: tuple[Span, ...] = ()  # translated texts inside it, such as the forms of a plural


@dataclass(frozen=True, slots=True)
class Protection:
    """Compiled kinds, patterns and terms of a request."""

    expressions: tuple[WindowedExpression, ...]  # of patterns and kinds, in order of precedence
    terms: "TermMatcher | None"
    glossary: "TermMatcher | None"  # searched where no term matches
    needs_trigger: bool  # whether every span contains a trigger

    def find(self, text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the protected spans of a text in order, without overlaps. All others take precedence over terms."""
        may_match = not self.needs_trigger or _TRIGGER.search(text, 0, check) is not None
        spans = list(self._literals(text, check)) if may_match else []
        for terms in (self.terms, self.glossary):
            spans = terms.add_to(spans, text, check) if terms else spans
        return spans

    def _literals(self, text: str, check: Check) -> Iterator[ProtectedSpan]:
        reader: icu.IcuReader | None = None
        matches = [expression.search(text, 0, check) for expression in self.expressions]
        while (match := min(filter(None, matches), key=re.Match.start, default=None)) is not None:
            start, position = match.span()
            kind = ProtectedKind[match.lastgroup] if match.lastgroup else None
            if kind is ProtectedKind.ICU:
                reader = reader or icu.IcuReader(text, check)
                if (argument := reader.argument(position)) is not None:
                    position = argument.end
                    yield ProtectedSpan(span=Span(start=start, end=position), kind=kind, messages=argument.messages)
            elif (end := _end(kind, text, start, position)) > start:
                position = end
                yield ProtectedSpan(span=Span(start=start, end=end), kind=kind)
            for index, expression in enumerate(self.expressions):
                other = matches[index]
                if other is not None and other.start() < position:
                    matches[index] = expression.search(text, position, check)


@lru_cache(maxsize=64)
def compile_protection(
    options: ProtectionOptions, terms: tuple[Term, ...], glossary: "TermMatcher | None" = None
) -> Protection:
    """Compile the protection of a request, which is validated already."""
    kinds = (DEFAULT_KINDS | options.enabled_kinds) - options.disabled_kinds if options.is_enabled else frozenset()
    alternatives = [f"(?P<{kind.name}>{pattern})" for kind, pattern in _GRAMMAR.items() if kind in kinds]
    expressions = []
    if options.patterns:
        reach = max(len(pattern) + pattern.count("*") * _MAX_STAR_CHARACTERS for pattern in options.patterns)
        pattern = re.compile("|".join(map(_regular_expression, options.patterns)))
        expressions.append(WindowedExpression(expression=pattern, reach=reach, window=_PATTERN_WINDOW))
    if alternatives:
        grammar = re.compile("|".join(alternatives))
        expressions.append(WindowedExpression(expression=grammar, reach=_GRAMMAR_REACH, window=_GRAMMAR_WINDOW))
    return Protection(
        expressions=tuple(expressions),
        terms=TermMatcher(terms) if terms else None,
        glossary=glossary,
        needs_trigger=not options.patterns and kinds <= DEFAULT_KINDS,
    )


def may_have_literals(text: str) -> bool:
    """Return whether a text may contain a span of the default kinds."""
    return _TRIGGER.search(text, 0, never_ends) is not None


def is_placeholder_tag(tag: str) -> bool:
    """Return whether a tag is content itself, such as `<ph id="1"/>`, and does not mark other text."""
    match = _TAG_NAME.match(tag)
    return match is not None and match[1].lower() in _XLIFF_TMX_TAGS


def tag_name(tag: str) -> str:
    """Return the name of a tag."""
    match = _TAG_NAME.match(tag)
    return match[1] if match else ""


def with_number_signs(spans: Sequence[ProtectedSpan], text: str, check: Check) -> list[ProtectedSpan]:
    """Return the spans of a text and every `#` outside of them, in order."""
    ends = [protected.span.end for protected in spans]
    starts = [protected.span.start for protected in spans]
    free: list[ProtectedSpan] = []
    for match in re.finditer("#", text):
        check()
        if bisect_right(starts, match.start()) == bisect_right(ends, match.start()):
            sign = Span(start=match.start(), end=match.end())
            free.append(ProtectedSpan(span=sign, kind=ProtectedKind.ICU))
    return sorted((*spans, *free), key=lambda protected: protected.span.start)


class TermMatcher:
    """Finds terms; where several begin at one position, the longest wins.

    The time does not depend on the number of terms: at each character, only the lengths of terms with this first
    character are tried.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        """Take terms with distinct sources; of sources that differ only in case, the one that equals the text wins."""
        self._terms: dict[str, list[Term]] = {}
        lengths: dict[tuple[str, bool], set[int]] = {}
        for term in terms:
            source = _folded(term.source)
            self._terms.setdefault(source, []).append(term)
            lengths.setdefault((source[0], _begins_word(term)), set()).add(len(source))
        self._lengths = {start: sorted(sizes, reverse=True) for start, sizes in lengths.items()}

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans and the terms between them, in order."""
        folded = _folded(text)
        merged: list[ProtectedSpan] = []
        begin = checked_to = 0
        for end, protected in [*((protected.span.start, protected) for protected in spans), (len(text), None)]:
            check()
            while begin < end:
                if begin >= checked_to:
                    check()
                    checked_to = begin + _TERM_CHECK_CHARACTERS
                match = self._match_at(begin, end, text, folded)
                if match is not None:
                    merged.append(match)
                begin = match.span.end if match else begin + 1
            if protected is not None:
                merged.append(protected)
                begin = protected.span.end
        return merged

    def _match_at(self, start: int, stop: int, text: str, folded: str) -> ProtectedSpan | None:
        lengths = self._lengths.get((folded[start], False), [])
        if not (start and _is_word_character(text[start - 1])) and (words := self._lengths.get((folded[start], True))):
            lengths = sorted({*lengths, *words}, reverse=True) if lengths else words
        for length in lengths:
            end = start + length
            candidates = self._terms.get(folded[start:end]) if end <= stop else None
            if not candidates:
                continue
            is_within_word = (
                start > 0 and _is_word_character(text[start - 1]),
                end < stop and _is_word_character(text[end]),
            )
            source = text[start:end]
            if fitting := [term for term in candidates if _fits(term, source, is_within_word)]:
                term = next((term for term in fitting if term.source == source), fitting[0])
                return ProtectedSpan(span=Span(start=start, end=end), kind=None, target=term.target or source)
        return None


def _folded(text: str) -> str:
    # Case-folded text of the same length.
    folded = text.casefold()
    if len(folded) == len(text):  # no character folds to nothing, so each has folded to one
        return folded
    return "".join(next((form for form in (char.casefold(), char.lower()) if len(form) == 1), char) for char in text)


def _is_word_character(character: str) -> bool:
    return character.isalnum() or character == "_"


def _begins_word(term: Term) -> bool:
    return not term.is_part_of_word and term.source[0].isalnum()


def _fits(term: Term, source: str, is_within_word: tuple[bool, bool]) -> bool:
    if term.is_case_sensitive and term.source != source:
        return False
    ends_word = not term.is_part_of_word and term.source[-1].isalnum()
    return not ((is_within_word[0] and _begins_word(term)) or (is_within_word[1] and ends_word))


def _regular_expression(pattern: str) -> str:
    # `*` matches 1 to 100 characters other than white space and the next character of the pattern.
    parts = pattern.split("*")
    expression = re.escape(parts[0])
    for part in parts[1:]:
        end = re.escape(part[0]) if part else r"\W"
        stop = rf"\s{end}" if part else r"\s\W"
        expression += rf"[^{stop}]{{1,{_MAX_STAR_CHARACTERS}}}+{re.escape(part)}"
    return expression


def _end(kind: ProtectedKind | None, text: str, start: int, end: int) -> int:
    # The end of the span of a match; `start` if it is not a span.
    if kind is ProtectedKind.TAG:
        match = _TAG.match(text, start)
        return match.end() if match else start
    return _trimmed(kind, text, start, end)


def _trimmed(kind: ProtectedKind | None, text: str, start: int, end: int) -> int:
    # Addresses and paths end before the punctuation of the sentence.
    if kind not in {ProtectedKind.URL, ProtectedKind.EMAIL, ProtectedKind.PATH}:
        return end
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
    if kind is ProtectedKind.PATH and not _is_path(text[start:end]):
        return start
    return end


def _is_path(text: str) -> bool:
    # `/usr/bin`, `~/x` and `src/main.py` are paths; `and/or`, `/s` and `1/2` are not.
    if "\\" in text or text.startswith(("~", ".")):
        return len(text) > 2
    names = text.strip("/").split("/")
    is_absolute = text.startswith("/")
    has_file_name = _FILE_NAME.fullmatch(names[-1]) is not None and not names[-1].replace(".", "").isdigit()
    return has_file_name or (is_absolute and len(names) > 1 and any(any(map(str.isalpha, name)) for name in names))
