import time

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.unknown_characters import UnknownCharacterFinder

KNOWN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäöüÄÖÜß0123456789 .,;:!?-'\"()/&#*+\n\t_")
FINDER = UnknownCharacterFinder(KNOWN.__contains__)


def found(text: str, *spans: ProtectedSpan) -> list[str]:
    return [text[each.span.start : each.span.end] for each in FINDER.add_to(spans, text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nothing to protect, not even (brackets) or a/b.", []),
        ("", []),
        ("About us | Contact", ["|"]),
        ("File > Open > Recent", [">", ">"]),
        ("Ciarán and Łukasz met Nguyễn Thị in Čačak.", ["Ciarán", "Łukasz", "Nguyễn", "Thị", "Čačak"]),
        ("Müller-Łuczak and O'Néill", ["Müller-Łuczak", "O'Néill"]),
        ("x ≤ y ⇒ ∃z", ["≤", "⇒", "∃z"]),
        ("[ERROR] Could not open it.", ["[", "]"]),
        ("It costs €5 or ~5 £.", ["€5", "~5", "£"]),
        ("Great job 👏👏👏 team 🎉!", ["👏👏👏", "🎉"]),
        ("I ❤️ it 👍🏽 👨‍👩‍👧‍👦 today", ["❤️", "👍🏽", "👨‍👩‍👧‍👦"]),
        ("1️⃣ Open 2️⃣ Press", ["1️⃣", "2️⃣"]),
        ("Step 1 ❤️like", ["❤️"]),
        ("flag 🏴󠁧󠁢󠁥󠁮󠁧󠁿 of England", ["🏴󠁧󠁢󠁥󠁮󠁧󠁿"]),
        ("He said \u2066شكرا\u2069.", ["\u2066شكرا\u2069"]),
        ("20 m² and H₂O", ["m²", "H₂O"]),
        ("the word 東京 here", ["東京"]),
        ("a\ue000b and \ue001", ["\ue000b", "\ue001"]),
        ("naïve café", ["naïve", "café"]),
        ("e\u0301tude", ["e\u0301tude"]),
        ("10 % of {x}", ["%", "{x}"]),
        ("Yes -> No, or 5 >= 3", ["->", ">="]),
        ("I was … well… tired", [" …", "…"]),
        ("- [x] done, - [ ] open", ["[x]", "[ ]"]),
        ("+/- five", ["+/-"]),
        ("[I think] and (5 > a)", ["[", "]", ">"]),
        ("Version |version| is out", ["|version|"]),
        ("a != b, ns :: name, x := 5", ["!=", "::", ":="]),
        ("if a && b || c ** d", ["&&", "||", "**"]),
        ("The **bold** and the *italic* word_, a footnote*.", ["**", "**", "*", "*", "_", "*"]),
        ("A dash -- like this - and --- that.", []),
        ("2 * 3 and snake_case", []),
    ],
)
def test_words_with_unknown_letters_and_runs_of_unknown_symbols_are_spans(text: str, expected: list[str]) -> None:
    assert found(text) == expected


def span(start: int, end: int, kind: ProtectedKind | None = None, target: str | None = None) -> ProtectedSpan:
    return ProtectedSpan(span=Span(start=start, end=end), kind=kind, target=target)


def test_unknown_characters_join_the_spans_they_touch() -> None:
    text = "[12:30] Peter €49.90 each"

    assert found(text, span(1, 6, ProtectedKind.NUMBER), span(15, 20, ProtectedKind.NUMBER)) == ["[12:30]", "€49.90"]


def test_joined_span_keeps_the_translation_of_a_term() -> None:
    (joined,) = FINDER.add_to([span(1, 6, target="Katze")], "[house]")

    assert (joined.span, joined.target) == (Span(start=0, end=7), "[Katze]")


def test_tags_and_plural_bars_are_not_joined() -> None:
    text = "→<b>x</b>|"
    spans = [span(1, 4, ProtectedKind.TAG), span(5, 9, ProtectedKind.TAG), span(9, 10, ProtectedKind.PLURAL)]

    assert found(text, *spans) == ["→", "<b>", "</b>", "|"]


def test_touching_spans_without_unknown_characters_stay_apart() -> None:
    assert found("ab cd|", span(0, 2), span(2, 3)) == ["ab", " ", "|"]


@pytest.mark.parametrize("attack", ["|a", "é", "a\u0301", "1\ufe0f\u20e3", "\u200d", "[", "ab-", "|\n"])
def test_time_is_linear(attack: str) -> None:
    def seconds(count: int) -> float:
        began = time.process_time()
        FINDER.add_to([], attack * count + "é")
        return time.process_time() - began

    small, large = min(seconds(5_000) for _ in range(5)), min(seconds(50_000) for _ in range(3))
    assert large < 40 * small + 0.05


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Björk and Zoë met José in Köln.", ["Björk", "Zoë", "José", "Köln"]),
        ("The café has a naïve façade.", []),  # words of the language
        ("Café Central", ["Café"]),
        ("an ångström by Ångström", ["Ångström"]),
        ("ßmall", []),
        ("in łódź and Łódź", ["łódź", "Łódź"]),  # not spelled in any case
        ("San José-based", ["José-based"]),
        ("Plain text.", []),
    ],
)
def test_words_with_foreign_letters_are_names_unless_in_lower_case(text: str, expected: list[str]) -> None:
    finder = UnknownCharacterFinder(
        lambda char: char in KNOWN or char in "éëïçåÅ", is_foreign=lambda char: char.isalpha() and not char.isascii()
    )

    assert [text[each.span.start : each.span.end] for each in finder.add_to((), text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("My neighbour Agnieszka Wójcik has two dogs.", ["Agnieszka Wójcik"]),
        ("I met Inguna Ķīse.", ["Inguna Ķīse"]),
        ("Agnieszka Wójcik called.", ["Agnieszka Wójcik"]),
        ("Yesterday Wójcik came.", ["Wójcik"]),
        ("President Wójcik spoke.", ["Wójcik"]),
        ("the dog Łukasz", ["Łukasz"]),
        ("Agnieszka → here", ["→"]),
    ],
)
def test_first_name_that_is_no_known_word_belongs_to_the_name(text: str, expected: list[str]) -> None:
    assert _names(text, capitalizes_nouns=False) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mein Nachbar Inguna Ķīse hat zwei Hunde.", ["Inguna Ķīse"]),
        ("Agnieszka Wójcik rief an.", ["Agnieszka Wójcik"]),
        ("\nAgnieszka Wójcik rief an.", ["Agnieszka Wójcik"]),
        ("Gut.\nAgnieszka Wójcik rief an.", ["Agnieszka Wójcik"]),
        ("- Agnieszka Wójcik rief an.", ["Agnieszka Wójcik"]),
        ("2. Agnieszka Wójcik", ["Agnieszka Wójcik"]),
        ("(Agnieszka Wójcik)", ["Agnieszka Wójcik"]),
        ("Es hieß Krzysztof Żółkiewski.", ["Krzysztof Żółkiewski"]),
        ("Er kam. Krzysztof Żółkiewski ging.", ["Krzysztof Żółkiewski"]),
        ("Der Torwart Wójcik hielt.", ["Wójcik"]),
        ("Mein Nachbar Wójcik hat zwei Hunde.", ["Wójcik"]),
    ],
)
def test_noun_before_a_name_is_not_a_part_of_it(text: str, expected: list[str]) -> None:
    assert _names(text, capitalizes_nouns=True) == expected


def _names(text: str, *, capitalizes_nouns: bool) -> list[str]:
    finder = UnknownCharacterFinder(
        KNOWN.__contains__,
        is_word=lambda word: word in {"yesterday", "president", "Nachbar"},
        capitalizes_nouns=capitalizes_nouns,
    )
    return [text[each.span.start : each.span.end] for each in finder.add_to((), text)]
