import asyncio
import os
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree
from selectolax.lexbor import LexborHTMLParser

from dragoman_service.datatypes import AlignmentLink, SearchConfig, Segment, Span, Translation, WarningKind
from dragoman_service.request import ProtectionOptions, RequestContext, Term, TextFormat
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.patterns import compile_protection
from dragoman_service.text.placeholders.protected_units import protected_units
from dragoman_service.text.placeholders.restoration import Assembler, restore
from dragoman_service.text.placeholders.text_units import plain_unit
from dragoman_service.translation.settings import TranslationLimits
from tests.unit.text.text_fakes import (
    TOKENIZER,
    FakeModel,
    FakeQueue,
    garble,
    make_hypothesis,
    make_request,
    make_translator,
    shout,
    translate,
)

_LITERALS = ["{name}", "{{x}}", "%s", "%1$d", "${v}", "$t(k)", "https://a.b/c?d=1", "me@x.org", "/usr/bin/x", "`a b`"]
_TAGS = ['<ph id="1"/>', "<b>", "</b>", "<i>", "</i>", "<br/>", '<a href="x">', "</a>"]
_WORDS = ["Hello", "you", "3", "2013", "new. ", "é", "x", "don't", "No!", "(", ")", ",", "&", "<", "{", "%", "1.", ":"]
_MIXTURES = st.lists(st.sampled_from([*_LITERALS, *_TAGS, *_WORDS, " ", " ", "\n"]), max_size=25).map("".join)
_WORD = re.compile(r"\w+|[^\w\s]")
_PAGES = Path(__file__).parents[2] / "build" / "pages"
_ANY_SIZE = TranslationLimits(
    max_text_characters=10**6,
    max_request_characters=10**6,
    max_request_sentences=10**6,
    max_request_source_tokens=10**7,
    max_request_decode_cost=10**9,
)


def translation_of(model: FakeModel, text: str, **options: Any) -> Translation:
    return translate(model, text, **options).translations[0]


def literals(text: str, **options: Any) -> list[str]:
    matches = compile_protection(ProtectionOptions(**options), ()).find(text)
    return sorted(text[one.span.start : one.span.end] for one in matches)


@given(_MIXTURES, st.integers(8, 60), st.booleans())
def test_text_translated_into_itself_is_unchanged(text: str, max_source_tokens: int, has_attention: bool) -> None:
    model = FakeModel(max_source_tokens=max_source_tokens, has_attention=has_attention)

    translation = translation_of(model, text)

    lost = [warning for warning in translation.warnings if warning.kind is WarningKind.PLACEHOLDER_LOST]
    assert not lost
    if has_attention:
        assert translation.hypotheses[0].text == text


@given(_MIXTURES, st.integers(8, 60), st.booleans())
def test_no_span_is_lost_in_any_translation(text: str, max_source_tokens: int, has_attention: bool) -> None:
    model = FakeModel(FakeQueue(garble), max_source_tokens=max_source_tokens, has_attention=has_attention)

    target = translation_of(model, text).hypotheses[0].text

    spans = literals(text)
    for literal in set(spans):
        assert target.count(literal) >= spans.count(literal)


@given(st.permutations([*_LITERALS[:9], "One", "two.", "Three", "four!"]), st.integers(1, 13), st.booleans())
def test_each_span_occurs_exactly_once(pieces: list[str], num_pieces: int, has_attention: bool) -> None:
    text = " ".join(pieces[:num_pieces])

    target = translation_of(FakeModel(FakeQueue(garble), has_attention=has_attention), text).hypotheses[0].text

    assert {literal: target.count(literal) for literal in literals(text)} == dict.fromkeys(literals(text), 1)


_NESTED = st.recursive(
    st.sampled_from(["one ", "two, ", "three", " {x} ", "(four) ", "in "]),
    lambda inner: st.builds("<{0}>{1}</{0}>".format, st.sampled_from("abi"), st.lists(inner, max_size=3).map("".join)),
    max_leaves=12,
)


@given(
    st.lists(_NESTED, min_size=1, max_size=6).map(" ".join),
    st.lists(st.sampled_from(["Eins", "zwei", "in", "drei,", "(vier)", "2013", "1947", "."]), max_size=30).map(
        " ".join
    ),
    st.randoms(use_true_random=False),
)
def test_tags_occur_once_and_stay_nested_and_filled(text: str, target: str, chance: random.Random) -> None:
    unit = protected_units(plain_unit(text), compile_protection(ProtectionOptions(), ()), Placeholders(text))[0]

    restored = restore(unit, target, random_links(unit.text, target, chance))
    result = Assembler(text, [(unit.source, restored.fragments)]).assemble().text

    before, after = (etree.fromstring(f"<r>{side}</r>") for side in (text, result))
    assert sorted(map(_path, before.iter())) == sorted(map(_path, after.iter()))
    assert sorted(re.findall(r"{\w+}", text)) == sorted(re.findall(r"{\w+}", result))
    num_words = len(re.findall(r"[\w{}]+", re.sub("<[^>]*>", " ", result)))
    if num_words >= len(list(before.iter())):
        filled = [sorted(_path(element) for element in tree.iter() if _has_word(element)) for tree in (before, after)]
        assert not Counter(filled[0]) - Counter(filled[1])


def random_links(text: str, target: str, chance: random.Random) -> list[AlignmentLink]:
    """Link each word of a translation to any word of the text."""
    sources, targets = ([Span(start=m.start(), end=m.end()) for m in _WORD.finditer(side)] for side in (text, target))
    return [
        AlignmentLink(source=chance.choice(sources), target=span, weight=chance.choice([0.2, 0.5, 0.9]))
        for span in (targets if sources else ())
    ]


def _path(element: Any) -> str:
    return "/".join([*reversed([parent.tag for parent in element.iterancestors()]), element.tag])


def _has_word(element: Any) -> bool:
    return re.search(r"\w", "".join(element.itertext())) is not None


@given(st.lists(st.sampled_from(["<b>", "</b>", "<i>", "</i>", "one ", "two, ", "three", "{x} "]), max_size=20))
def test_tags_stay_nested(pieces: list[str]) -> None:
    text = "".join(_closed(pieces))

    target = translation_of(FakeModel(FakeQueue(garble)), text).hypotheses[0].text

    open_tags: list[str] = []
    for closing, name in re.findall(r"<(/?)(\w)>", target):
        assert not closing or open_tags.pop() == name
        if not closing:
            open_tags.append(name)
    assert not open_tags


@given(_MIXTURES)
def test_text_without_spans_is_translated_in_the_same_way_without_protection(text: str) -> None:
    plain = FakeModel(FakeQueue(garble)), FakeModel(FakeQueue(garble))

    pipeline = TextPipeline(make_request(text), model=FakeModel(), search=SearchConfig(max_target_tokens=512))
    (plan,) = pipeline.plan()
    if plan.parts and not plan.fixed and all(part.unit is None for part in plan.parts):
        first = translation_of(plain[0], text)
        assert first == translation_of(plain[1], text, protection=ProtectionOptions(is_enabled=False))
        assert plain[0].scheduler.segments == plain[1].scheduler.segments


def test_terms_have_the_translation_of_the_request() -> None:
    terms = Term(source="Settings", target="Einstellungen"), Term(source="Dragoman")

    def translated(text: str) -> str:
        return translation_of(FakeModel(FakeQueue(shout)), text, terms=terms).hypotheses[0].text

    assert translated("Settings") == "Einstellungen"
    assert translated("Open settings of Dragoman. Settings: dragoman\nx") == (
        "OPEN Einstellungen OF Dragoman. Einstellungen: dragoman\nX"
    )


_MESSAGES = st.recursive(
    st.sampled_from(["You have ", "# files", "{name} ", "it's. ", "'{quoted}' ", "No! ", "\n"]),
    lambda inner: st.builds(
        "{{{}, {} one {{{}}} other{{{}}} }}".format,
        st.sampled_from(["n", "0"]),
        st.sampled_from(["plural,", "select,", "plural, offset:1", "selectordinal,"]),
        inner,
        st.lists(inner, max_size=3).map("".join),
    ),
    max_leaves=8,
)


@given(st.lists(_MESSAGES, max_size=4).map("".join), st.sampled_from([TextFormat.PLAIN, TextFormat.HTML]))
def test_plurals_translated_into_themselves_are_unchanged(text: str, text_format: TextFormat) -> None:
    translation = translation_of(FakeModel(max_source_tokens=200), text, format=text_format)

    assert translation.hypotheses[0].text == text
    assert {warning.kind for warning in translation.warnings} <= {WarningKind.UNTRANSLATED}


def test_messages_of_a_plural_are_translated() -> None:
    queue = FakeQueue(shout)
    text = "You have {n, plural, =0 {none} one {# <b>file</b> in {box}} other {# go. {g, select, f {hers} other {x}}}}."

    target = translation_of(FakeModel(queue), text).hypotheses[0].text

    assert target == (
        "YOU HAVE {n, plural, =0 {NONE} one {# <b>FILE</b> IN {box}} other {# GO. {g, select, f {HERS} other {X}}}}."
    )


def test_braces_in_the_translation_of_a_message_are_quoted() -> None:
    queue = FakeQueue(lambda segment: (make_hypothesis("a } b # c"),))

    target = translation_of(FakeModel(queue), "{n, plural, other {files}}").hypotheses[0].text

    assert target == "{n, plural, other {a '}' b '#' c}}"


def without_span(segment: Segment) -> Any:
    """Translate without the protected span, unless it is in the prefix."""
    prefix = TOKENIZER.decode(segment.search.target_prefix)
    return (make_hypothesis(prefix + ", gehen wir!" if prefix else "Hallo, gehen wir!"),)


def test_sentence_without_its_span_is_redecoded() -> None:
    queue = FakeQueue(without_span)

    translation = translation_of(FakeModel(queue), "Hello {name}, let us go!")

    assert translation.hypotheses[0].text == "Hallo {name}, gehen wir!"
    assert not translation.warnings
    assert len(queue.segments) == 2


def test_span_missing_after_redecoding_is_inserted_with_a_warning() -> None:
    queue = FakeQueue(lambda segment: (make_hypothesis("Hallo, gehen wir!"),))

    translation = translation_of(FakeModel(queue), "Hello {name}, let us go!")

    assert translation.hypotheses[0].text.count("{name}") == 1
    assert [(one.kind, one.message.partition(" missing")[0]) for one in translation.warnings] == [
        (WarningKind.PLACEHOLDER_LOST, "'{name}'")
    ]


def _closed(pieces: list[str]) -> list[str]:
    """Return the snippets with every tag closed in order."""
    result: list[str] = []
    stack: list[str] = []
    for piece in pieces:
        if piece in {"<b>", "<i>"}:
            stack.append(piece.replace("<", "</"))
        elif piece.startswith("</"):
            if not stack or stack[-1] != piece:
                continue
            stack.pop()
        result.append(piece)
    return [*result, *reversed(stack)]


def _closed_html(text: str) -> list[str]:
    """Return HTML whose inline tags are closed in order, without a `<` that begins a tag by accident."""
    pieces = re.findall(r"<script>a<b</script>|</?[a-z][^<>]*>|<!-- c -->|[^<]+|<", text)
    result: list[str] = []
    stack: list[str] = []
    for piece in pieces:
        if re.match(r"<(b|i|a)\b", piece):
            stack.append(piece[1])
        elif piece in {"</b>", "</i>", "</a>"}:
            if not stack or stack[-1] != piece[2]:
                break
            stack.pop()
        elif re.match(r"</?(p|br|li|pre|td)\b", piece):
            result += [f"</{name}>" for name in reversed(stack)]
            stack.clear()
        result.append(piece.replace("<", "") if piece == "<" else piece)
    return [*result, *(f"</{name}>" for name in reversed(stack))]


def tree(text: str) -> tuple[str, list[str]]:
    """Return the HTML that a browser's parser builds, and the tags of its elements."""
    parser = LexborHTMLParser(f"<body>{text}</body>")
    return parser.html or "", [str(node.tag) for node in parser.css("*")]


def _element(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return a strategy for elements that contain others."""
    return st.tuples(st.sampled_from("abi"), st.lists(inner, max_size=4).map("".join)).map(
        lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0]}>"
    )


_HTML_SNIPPETS = [
    "<p>", "</p>", "<b>", "</b>", "<i class=x>", "</i>", "<br>", "<li>", "<pre>", "</pre>", "<a href='u'>", "</a>",
    '<img alt="A dog." src=x>', "<!-- c -->", "<script>a<b</script>", "<code>x</code>", "<td title='T &amp; U'>",
    "&amp;", "&nbsp;", "\xa0", "&copy;", "&eacute;", "&#60;", "&", "<", ">", '"', "{x}", "%s", "http://a.b/?c=1&amp;d=2",
    "Hello", "you. ", "Two", "é", "3", " ", " ", "\n  ", "x",
]  # fmt: skip
_HTML = st.lists(st.sampled_from(_HTML_SNIPPETS), max_size=25).map("".join)


@example("one &n<b>bsp;1</b> &copy<b>;</b> &<i>amp;</i>", 200, True)
@example("<h2><a></a>1.\xa0\n Introduction\n</h2>", 200, True)
@given(_HTML, st.integers(12, 60), st.booleans())
def test_html_translated_into_itself_is_unchanged(text: str, max_source_tokens: int, has_attention: bool) -> None:
    model = FakeModel(max_source_tokens=max_source_tokens, has_attention=has_attention)

    target = translation_of(model, text, format=TextFormat.HTML).hypotheses[0].text

    if has_attention:
        assert target == text
    else:
        assert tree(target)[0] == tree(text)[0]


@pytest.mark.slow
def test_pages_of_documentation_translated_into_themselves_are_unchanged() -> None:
    pages = sorted(_PAGES.rglob("*.html"))[::8]  # of the manuals of git
    if not pages:
        assert "CI" not in os.environ, "CI must have pages: see .ci/run"
        pytest.skip(f"no pages in {_PAGES}: deploy/ci/debian.sh build/pages git-doc")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        # one language, so that neither numbers nor abbreviations are localized
        request = replace(make_request(text, format=TextFormat.HTML), target_language="en")
        translator = make_translator(FakeModel(), limits=_ANY_SIZE)

        (translation,) = asyncio.run(translator.translate(request, RequestContext())).translations

        assert translation.hypotheses[0].text == text, page.name


@given(_HTML)
def test_html_keeps_its_tags_in_any_translation(text: str) -> None:
    closed = "".join(_closed_html(text))

    target = translation_of(FakeModel(FakeQueue(garble)), closed, format=TextFormat.HTML).hypotheses[0].text

    assert sorted(tree(target)[1]) == sorted(tree(closed)[1])


@given(st.recursive(st.sampled_from(["Hello ", "you. ", "&amp;", "{x} ", "\n "]), _element, max_leaves=15))
def test_xml_stays_well_formed(text: str) -> None:
    echoed = translation_of(FakeModel(), text, format=TextFormat.XML).hypotheses[0].text
    target = translation_of(FakeModel(FakeQueue(garble)), text, format=TextFormat.XML).hypotheses[0].text

    assert echoed == text
    before, after = (etree.fromstring(f"<r>{one}</r>") for one in (text, target))
    assert sorted(element.tag for element in before.iter()) == sorted(element.tag for element in after.iter())
    for parent, child in product("abi", repeat=2):
        assert len(after.findall(f".//{parent}/{child}")) == len(before.findall(f".//{parent}/{child}"))
