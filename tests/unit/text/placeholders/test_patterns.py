import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind, ProtectionOptions, Term
from dragoman_service.text.placeholders import spans
from dragoman_service.text.placeholders.icu import MAX_MESSAGES, MAX_NUMBER_SIGNS
from dragoman_service.text.placeholders.patterns import compile_protection, enabled_kinds
from dragoman_service.text.placeholders.spans import ProtectedSpan, WindowedExpression, add_matches, free_ranges
from dragoman_service.text.segmentation import Check, never_ends


def found(text: str, *terms: Term, **options: object) -> list[str]:
    protection = compile_protection(ProtectionOptions(**options), terms)  # type: ignore[arg-type]
    return [text[one.span.start : one.span.end] for one in protection.find(text)]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Hello {name}, you are {0}.", ["{name}", "{0}"]),
        ("{0,number} {{x}} {{ a | b }} {% if x %} {}", ["{0,number}", "{{x}}", "{{ a | b }}", "{% if x %}", "{}"]),
        ("%s of %1$d, %(n)d and %-5.2f", ["%s", "%1$d", "%(n)d", "%-5.2f"]),
        ("${v} %{v} #{v} $(HOME) $t(key)", ["${v}", "%{v}", "#{v}", "$(HOME)", "$t(key)"]),
        ("See https://example.com/x?y=1!", ["https://example.com/x?y=1"]),
        ("(see http://a.b/c_(d)), www.x.de.", ["http://a.b/c_(d)", "www.x.de"]),
        ("Write to a.b+c@x-y.org.", ["a.b+c@x-y.org"]),
        ("/usr/bin/env, ~/notes, ./a, src/main.py.", ["/usr/bin/env", "~/notes", "./a", "src/main.py"]),
        ("See :ref:`email` and :py:class:`a.B`.", [":ref:`email`", ":py:class:`a.B`"]),
        ("Mail to [your-name], not [well].", ["[your-name]"]),
        ("C:/x|y and D:/data/new|old", ["C:/x|y", "D:/data/new|old"]),
        ("/usr/bin/a|b|c is new", ["/usr/bin/a|b|c"]),
        (r"In C:\Windows\a.txt now", [r"C:\Windows\a.txt"]),
        (r"Der Ordner „C:\Temp“ und C:/Temp/a.", [r"C:\Temp", "C:/Temp/a"]),
        ("Siehe „https://a.example/b“, „~/x“ oder «/usr/bin».", ["https://a.example/b", "~/x", "/usr/bin"]),
        ("Read [the rules](rules.html) or [a **b**](#top).", ["](rules.html)", "](#top)"]),
        ("{n, plural, one {# a} other {b {c}}} x", ["{n, plural, one {# a} other {b {c}}}"]),
        ("{n, plural, one {a} x", ["{a}"]),
        ("Use `a b` or ``c d``.", ["`a b`", "``c d``"]),
        ("Use --verbose, --dry-run or --level=3.", ["--verbose", "--dry-run", "--level=3"]),
        ("git (--amend) and '--no-edit'", ["--amend", "--no-edit"]),
        ("Set --output=/tmp/a.txt; run it.", ["--output=/tmp/a.txt"]),
        ("Call auth.login() and main().", ["auth.login()", "main()"]),
        ("std::move(), node->next() or _x()", ["std::move()", "node->next()", "_x()"]),
        ("getUserById() fails", ["getUserById()"]),
        ('A <ph id="1"/> and <b>x</b>', ['<ph id="1"/>', "<b>", "</b>"]),
    ],
)
def test_default_kinds_are_protected(text: str, spans: list[str]) -> None:
    assert found(text) == spans


@pytest.mark.parametrize(
    "text",
    [
        "100% sure, 50 % discount, 5%, 100 %d1",
        "and/or, 1/2, 24/7, km/h, he/she, /s",
        "a < b and c > d, a <b and c> d",
        "Dr. Who: 'yes' (no) [perhaps] $5 #1 @ home",
        "{ some prose, with braces",
        "at 12:30 :name and ::x",
        "well--known, yes -- no, a--b--c, --, -- a, --- b",
        "empty () brackets, a (b) c, see (), () and x ()",
        "-v and -x stay, as does - and --1",
    ],
)
def test_ordinary_text_is_not_protected(text: str) -> None:
    assert found(text) == []


def test_all_kinds_except_colon_are_enabled_by_default() -> None:
    braces, colon, number = ProtectedKind.BRACES, ProtectedKind.COLON, ProtectedKind.NUMBER

    assert enabled_kinds(ProtectionOptions()) == frozenset(ProtectedKind) - {colon}
    assert colon in enabled_kinds(ProtectionOptions(enabled_kinds=frozenset({colon})))
    assert braces not in enabled_kinds(ProtectionOptions(disabled_kinds=frozenset({braces})))
    assert number in enabled_kinds(ProtectionOptions(enabled_kinds=frozenset({number})))
    assert enabled_kinds(ProtectionOptions(is_enabled=False)) == frozenset()


@pytest.mark.parametrize(
    "kind", ["BRACES", "BRACKETS", "VARIABLE", "PLURAL", "PRINTF", "TEMPLATE", "ICU", "TAG", "URL"]
)
def test_disabled_kind_is_not_protected(kind: str) -> None:
    text = "{a} car|{a} cars [b] $HOME %d ${x} {n,plural,one{x}} <b> https://example.com"
    disabled = frozenset({ProtectedKind[kind]})

    spans = compile_protection(ProtectionOptions(disabled_kinds=disabled), ()).find(text)

    assert {each.kind for each in spans}.isdisjoint(disabled)
    assert len({each.kind for each in spans}) >= 8


def test_request_selects_kinds() -> None:
    colon, braces = frozenset({ProtectedKind.COLON}), frozenset({ProtectedKind.BRACES})

    assert found(":name {x}", enabled_kinds=colon) == [":name", "{x}"]
    assert found(":name {x}", enabled_kinds=colon, disabled_kinds=braces) == [":name"]
    assert found(":name {x} [[a]]", is_enabled=False) == []
    assert found("{x} [[a]] @@b, c", is_enabled=False, patterns=("[[*]]", "@@*")) == ["[[a]]", "@@b"]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("3 new messages of 1,000.50 or 1'000", ["3", "1,000.50", "1'000"]),
        ("10 MB at 3.5 GHz, 25 °C and 5%.", ["10 MB", "3.5 GHz", "25 °C", "5%"]),
        ("€ 9.99, $5 or 7 EUR at 12:30", ["€ 9.99", "$5", "7 EUR", "12:30"]),
        ("120 km/h for 5 min, 5 men in 2 hours", ["120 km/h", "5 min", "5", "2"]),
        ("-4 to +5 and 10–20, COVID19, v1.2, 10GB, 3rd, 2x", ["-4", "+5", "10", "20", "10GB"]),
    ],
)
def test_numbers_are_protected_with_their_units_on_request(text: str, spans: list[str]) -> None:
    assert found(text, enabled_kinds=frozenset({ProtectedKind.NUMBER})) == spans
    assert found(text) == []


@pytest.mark.parametrize(
    ("spans", "length", "expected"),
    [
        ([], 0, []),
        ([], 3, [(0, 3)]),
        ([(0, 3)], 3, []),
        ([(1, 2), (2, 4)], 6, [(0, 1), (4, 6)]),
        ([(0, 1)], 2, [(1, 2)]),
    ],
)
def test_free_ranges_are_between_spans(
    spans: list[tuple[int, int]], length: int, expected: list[tuple[int, int]]
) -> None:
    protected = [ProtectedSpan(span=Span(start=start, end=end), kind=None) for start, end in spans]

    assert [(free.start, free.end) for free in free_ranges(protected, length)] == expected


def test_matches_are_added_only_between_spans() -> None:
    def find(text: str, start: int, end: int) -> Iterator[ProtectedSpan]:
        for match in re.compile("[0-9]+").finditer(text, start, end):
            yield ProtectedSpan(span=Span(start=match.start(), end=match.end()), kind=ProtectedKind.NUMBER)

    spans = [ProtectedSpan(span=Span(start=3, end=7), kind=ProtectedKind.BRACES)]

    merged = add_matches(spans, "12 {34} 56", find)

    assert [(each.span.start, each.span.end, each.kind) for each in merged] == [
        (0, 2, ProtectedKind.NUMBER),
        (3, 7, ProtectedKind.BRACES),
        (8, 10, ProtectedKind.NUMBER),
    ]


class EverythingElse:
    """Protects all other text."""

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        def find(_: str, start: int, end: int) -> list[ProtectedSpan]:
            return [ProtectedSpan(span=Span(start=start, end=end), kind=None)]

        return add_matches(spans, text, find, check)


def test_added_finder_searches_after_all_others() -> None:
    protection = compile_protection(ProtectionOptions(), (Term(source="file"),))
    text = "A file {x} here"

    spans = replace(protection, finders=(*protection.finders, EverythingElse())).find(text)

    assert [text[each.span.start : each.span.end] for each in spans] == ["A ", "file", " ", "{x}", " here"]


def test_url_ends_before_end_tag_in_brackets() -> None:
    assert found("[img]https://a.b/c.png[/img]") == ["[img]", "https://a.b/c.png", "[/img]"]


def test_longest_term_wins_outside_protected_spans() -> None:
    terms = Term(source="open file"), Term(source="file", target="Datei")

    spans = compile_protection(ProtectionOptions(), terms).find("Open file {file}, File, profile.")

    assert [(span.span.start, span.target) for span in spans] == [(0, "Open file"), (10, None), (18, "Datei")]


def test_terms_match_by_case_and_word() -> None:
    assert found("Go goes go", Term(source="Go", is_case_sensitive=True)) == ["Go"]
    assert found("Go goes go", Term(source="go", is_part_of_word=True)) == ["Go", "go", "go"]
    assert found("C++ and C", Term(source="C++"), Term(source="C")) == ["C++", "C"]


@pytest.mark.parametrize(
    ("few", "many"),
    [
        ("{n, plural, " + "one {a} " * MAX_MESSAGES + "}", "{n, plural, " + "one {a} " * (MAX_MESSAGES + 1) + "}"),
        (
            "{n, plural, one {" + "#" * MAX_NUMBER_SIGNS + "}}",
            "{n, plural, one {" + "#" * (MAX_NUMBER_SIGNS + 1) + "}}",
        ),
    ],
    ids=["messages", "number signs"],
)
def test_plural_beyond_its_limits_is_not_one_span(few: str, many: str) -> None:
    assert found(few) == [few]
    assert many not in found(many)


@pytest.mark.parametrize(("call_s", "pauses"), [(0.01, [0.01, 0.01]), (0.0001, [])])
def test_long_call_is_followed_by_pause(monkeypatch: pytest.MonkeyPatch, call_s: float, pauses: list[float]) -> None:
    now_s = 0.0
    slept: list[float] = []

    def search(text: str, position: int, end: int) -> re.Match[str] | None:
        nonlocal now_s
        now_s += call_s
        return re.compile("x").search(text, position, end)

    monkeypatch.setattr(spans, "time", SimpleNamespace(perf_counter=lambda: now_s, sleep=slept.append))
    expression = WindowedExpression(
        expression=cast("re.Pattern[str]", cast("Any", SimpleNamespace(search=search))), reach=1, window=10
    )

    match = expression.search("a" * 25 + "x", 0, never_ends)

    assert match is not None
    assert match.start() == 25
    assert slept == pytest.approx(pauses)
