"""A search in windows and a search of the whole text find the same spans."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.text.placeholders import patterns
from dragoman_service.text.placeholders.containers import TextReader
from dragoman_service.text.placeholders.icu import HEAD
from dragoman_service.text.placeholders.patterns import Protection, compile_protection, may_have_literals
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.segmentation import never_ends

_FOUND = tuple[int, int, ProtectedKind | None, tuple[tuple[int, int], ...]]

_ICU_PIECES = [
    "{a, plural, ", "{a,select,", "one{", "=1 {", "{", "}", "'", "''", "'{", "|", "#", "offset:1 ",
    "'{a,plural,x{' ",
]  # fmt: skip
_LITERALS = [
    "{x}", "%s", "%1$d", "<b>", "</b>", '<a b="c">', "<a ", "`a`", "`", "a/b.c", "/a/b", "http://a.b",
    "me@x.org", ":n",
]  # fmt: skip
_TEMPLATES = [
    "{{", "}}", "{0,choice,0#", "{ $x -> [", "{x:plural:a|", "[[", "]]", "*[", "<%", "%>", "[%", "%]", "{%", "%}", "{#",
    "${", "\\(", ")", "\\textbf{", "$x^2$", "$x", "!x", "@x", "'''", "[b]", "[/b]", "||||", "|", "%%", "&aB;", "[a=b]",
    "$1", "$2", "#x#", "''{0}''", "^[", "](inflect: true)",
]  # fmt: skip
_OTHERS = [
    "a", "b", "1,000.5", "$", "-", "[[", "]]", "@@", "é", "ſ", "漢", "\u0301", "\u2028", "\x1c", "\n", " ",
    "x" * 60,
]  # fmt: skip
_TEXTS = st.lists(st.sampled_from([*_ICU_PIECES, *_LITERALS, *_TEMPLATES, *_OTHERS]), max_size=60).map(
    "".join
) | st.text(max_size=80)
_FILLER = " " * patterns._GRAMMAR_REACH
_PATTERNS = st.lists(
    st.text("ab[]@{é1*", min_size=2, max_size=8).filter(lambda one: not one.startswith("*") and "**" not in one),
    max_size=3,
    unique=True,
).map(tuple)


@given(_TEXTS, _PATTERNS, st.booleans(), st.integers(20, 60))
def test_spans_do_not_depend_on_the_window(
    text: str, patterns: tuple[str, ...], has_all_kinds: bool, window: int
) -> None:
    kinds = frozenset(ProtectedKind) if has_all_kinds else frozenset[ProtectedKind]()
    protection = compile_protection(ProtectionOptions(enabled_kinds=kinds, patterns=patterns), ())
    text += _FILLER  # else a call with the reach of the grammar would see all of the text

    matches = _in_windows(protection, window).find(text)

    assert list(map(_found, matches)) == list(_found_at_once(text, protection, patterns))


@given(_TEXTS, st.booleans())
def test_spans_are_disjoint_and_contain_their_messages(text: str, has_all_kinds: bool) -> None:
    kinds = frozenset(ProtectedKind) if has_all_kinds else frozenset[ProtectedKind]()
    position = 0

    for each in compile_protection(ProtectionOptions(enabled_kinds=kinds), ()).find(text):
        assert position <= each.span.start < each.span.end <= len(text)
        position = each.span.start
        for message in each.messages:
            assert position <= message.start <= message.end < each.span.end
            position = message.end
        position = each.span.end


@given(_TEXTS)
def test_text_without_trigger_has_no_spans(text: str) -> None:
    if not may_have_literals(text):
        protection = replace(compile_protection(ProtectionOptions(), ()), needs_trigger=False)

        assert protection.find(text) == []


@pytest.mark.parametrize(
    "span",
    [
        "/" + "/".join(["n" * 255] * 32),
        "w" * 255 + ("/" + "n" * 255) * 31 + "/" + "n" * 252 + ".py",
        "C:\\" + "n" * 1000,
        "https://" + "u" * 2000,
        "`" + "c" * 500 + "`",
        "<%" + "c" * 500 + "%>",
        "{%" + "c" * 500 + "%}",
        "[" + "n" * 64 + "=" + "v" * 300 + "]",
        "[[" + "p" * 300 + "]]",
        "%(" + "n" * 64 + ")-+#0'1234.123lld %%",
        "{" + "n" * 64 + ".m" * 8 + ":" + "f" * 200 + "}",
        "$" + "n" * 64 + ("->" + "m" * 64) * 4 + "[" + "i" * 64 + "]",
        "\\" + "c" * 24 + ("[" + "o" * 100 + "]") * 2 + "{" + "a" * 3000 + "}",
        "{{{" + "x" * 200 + "}}}",
        "a" * 64 + "@" + "b" * 63 + ("." + "c" * 63) * 8,
        "<" + "t" * 64 + f' {"a" * 64}="{"v" * 1000}"' * 32 + ">",
        "{" + " " * 8 + "n" * 64 + " " * 8 + "," + " " * 8 + "selectordinal" + " " * 8 + ",one{}}",
        "+$ " + "1" * 32 + ("." + "1" * 32) * 8 + " Mbit/s",
        "[" + "p" * 100 + "]" + "p" * 100 + "]",
    ],
)
@pytest.mark.parametrize(("window", "start"), [(1, 0), (3000, 3000 + patterns._GRAMMAR_REACH - 10)])
def test_longest_span_of_each_kind_is_found_in_any_window(span: str, window: int, start: int) -> None:
    options = ProtectionOptions(enabled_kinds=frozenset(ProtectedKind), patterns=("[*]*]",))

    (match,) = _in_windows(compile_protection(options, ()), window).find(f"{' ' * start}{span} {_FILLER}")

    assert (match.span.start, match.span.end) == (start, start + len(span))


def _in_windows(whole: Protection, window: int) -> Protection:
    # Without finders, which do not search in windows.
    return replace(whole, expressions=tuple(replace(one, window=window) for one in whole.expressions), finders=())


def _found(match: ProtectedSpan) -> _FOUND:
    messages = tuple((message.start, message.end) for message in match.messages)
    return match.span.start, match.span.end, match.kind, messages


def _found_at_once(text: str, protection: Protection, given: tuple[str, ...]) -> Iterator[_FOUND]:
    """Search with all patterns and rules as alternatives of one expression."""
    alternatives = [patterns._alternatives(protection.rules)]
    if given:
        alternatives.insert(0, "|".join(map(patterns._regular_expression, given)))
    expression = re.compile("|".join(f"(?:{alternative})" for alternative in alternatives))
    reader = TextReader(text, never_ends)
    position = 0
    while match := expression.search(text, position):
        start, position = match.span()
        rule = protection.rules[int(match.lastgroup.removeprefix("rule"))] if match.lastgroup else None
        if rule is None or rule.read is None:
            yield start, position, rule.kind if rule else None, ()
        elif rule.pattern == HEAD:
            if (argument := _icu_argument(text, position)) is not None:
                position, messages = argument
                yield start, position, rule.kind, messages
        elif (container := rule.read(reader, start, position)) is not None:
            position = container.end
            yield _found(
                ProtectedSpan(span=Span(start=start, end=position), kind=rule.kind, messages=container.messages)
            )


def _icu_argument(text: str, position: int) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    messages: list[tuple[int, int]] = []
    if match := re.compile(r"\s{0,8}+offset:\d{1,9}+").match(text, position):
        position = match.end()
    while match := re.compile(r"\s*+(?:=\d{1,9}+|[\w-]{1,64}+)\s{0,8}+\{").match(text, position):
        end = _message_end(text, match.end())
        if end is None:
            return None
        messages.append((match.end(), end))
        position = end + 1
    closing = re.compile(r"\s*+\}").match(text, position)
    return (closing.end(), tuple(messages)) if closing and messages else None


def _message_end(text: str, position: int) -> int | None:
    depth = 1
    while match := re.compile(r"''|'[{}#|][^']*+'?|[{}]").search(text, position):
        position = match.end()
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth > 16:
            return None
        if depth == 0:
            return match.start()
    return None
