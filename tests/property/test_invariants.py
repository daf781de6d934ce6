import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.text.invariants.checks import find_violations
from dragoman_service.text.invariants.violations import MASK, Texts, Violation

_LANGUAGES = st.sampled_from(["en", "de", "fr", "ja", "de-CH"])
_PIECES = st.sampled_from(
    [
        "1,234.5",
        "95.00",
        "x_1",
        "AB-12",
        "|",
        "[",
        "<b>",
        "</b>",
        "https://a.example/b",
        "a@b.example",
        "@me",
        "5%",
        "GitHub",
        "J. R. ",
        "\t",
        "\n",
        "…",
        "?",
        ".",
        "€",
        "😊",
        "/usr/lib",
        "1990s",
        "zwei",
        "hundred",
        MASK,
        " ",
        "ab",
    ]
)
_TEXTS = st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=15).map(" ".join), st.lists(_PIECES).map("".join))
_WORDS = st.lists(st.sampled_from(["kalo", "mira", "tesu", "nolpa"]), min_size=1, max_size=4).map(" ".join)

_NUMBERS = st.integers(min_value=13, max_value=10**12).map(str)
_IDENTIFIERS = st.from_regex(r"[A-Z]{2}[0-9]{2,4}[A-Z]{1,3}", fullmatch=True)
_SYMBOLS = st.sampled_from(list("|^~[]{}<>=*→•★😊§"))


def _violations(source: str, target: str, source_language: str = "en", target_language: str = "de") -> list[Violation]:
    texts = Texts(source=source, target=target, source_language=source_language, target_language=target_language)
    return find_violations(texts)


@given(_TEXTS, _LANGUAGES, _LANGUAGES)
def test_copy_preserves_all_tokens(text: str, source_language: str, target_language: str) -> None:
    kinds = {violation.kind.value for violation in _violations(text, text, source_language, target_language)}

    assert kinds <= {"untranslated"}


@given(_WORDS, st.one_of(_NUMBERS, _IDENTIFIERS, _SYMBOLS), _WORDS)
def test_deleted_token_is_reported(before: str, token: str, after: str) -> None:
    source, target = f"{before} {token} {after}", f"{before} {after}"

    assert any(
        violation.kind.value in {"number_changed", "identifier_changed", "symbol_changed"}
        and violation.source is not None
        and source[violation.source.start : violation.source.end] == token
        for violation in _violations(source, target)
    )


@given(_WORDS, st.one_of(_NUMBERS, _SYMBOLS), _WORDS)
def test_added_token_is_reported(before: str, token: str, after: str) -> None:
    source, target = f"{before} {after}", f"{before} {token} {after}"

    assert any(
        violation.kind.value in {"number_changed", "symbol_changed"} and violation.target is not None
        for violation in _violations(source, target)
    )


@given(_TEXTS, _TEXTS, _LANGUAGES, _LANGUAGES)
def test_spans_are_inside_the_texts(source: str, target: str, source_language: str, target_language: str) -> None:
    for violation in _violations(source, target, source_language, target_language):
        assert violation.detail
        for span, text in ((violation.source, source), (violation.target, target)):
            assert span is None or 0 <= span.start <= span.end <= len(text)


_ATTACKS = [
    "|a",
    "1",
    "1 ",
    "1.0",
    "1-",
    "a-1",
    "a_",
    "<b>",
    "<a b=",
    "<",
    "`a",
    "A.",
    "A. ",
    "aB",
    "@a",
    "/a",
    "a.b",
    "a/",
]
_ATTACKS += [
    ":",
    "::a",
    ".",
    "!…",
    "\t",
    "\n",
    MASK,
    "1.000 1,000 ",
    "zwei",
    "und ",
    "twenty ",
    "%",
    "& ",
    "AB1C ",
    "a:",
]


@pytest.mark.parametrize("attack", _ATTACKS)
def test_time_grows_linearly(attack: str) -> None:
    def duration_s(size: int) -> float:
        text = attack * size
        other = text.translate(str.maketrans("1aA|", "2bB/"))
        times = []
        for _ in range(3):
            started_s = time.thread_time()
            _violations(text, other)
            _violations(text, "x")
            _violations("x", text)
            times.append(time.thread_time() - started_s)
        return min(times)

    assert duration_s(8_000) < 32 * duration_s(1_000) + 0.05
