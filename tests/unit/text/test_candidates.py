"""Hypotheses as texts: corrections, restored codes, links and violations."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.datatypes import AlignmentLink, SearchConfig, Span, WarningKind
from dragoman_service.text.candidates import Candidate, CandidateReader
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.plans import ModelText, TextPart
from tests.fakes import make_segment
from tests.unit.text.text_fakes import FakeModel, make_hypothesis, make_request

_WORD = re.compile(r"\S+")


def word_links(source: str, target: str) -> list[AlignmentLink]:
    """Link the words of two texts in their order."""
    sources, targets = ([Span(start=m.start(), end=m.end()) for m in _WORD.finditer(side)] for side in (source, target))
    return [AlignmentLink(source=old, target=new, weight=1.0) for old, new in zip(sources, targets, strict=False)]


def plain_part(source: str, *, start: int = 0, **model_text: Any) -> TextPart:
    return TextPart(
        span=Span(start=start, end=start + len(source)),
        segment=make_segment(5),
        sentence_index=0,
        model_text=ModelText(text=model_text.pop("read", source), **model_text),
    )


def planned_part(text: str) -> TextPart:
    """Return the only part of a text with codes."""
    pipeline = TextPipeline(make_request(text), model=FakeModel(), search=SearchConfig(max_target_tokens=512))
    ((part,),) = [plan.parts for plan in pipeline.plan()]
    return part


def candidate_of(
    source: str,
    target: str,
    part: TextPart | None = None,
    *,
    links: Sequence[AlignmentLink] | None = None,
    is_finished: bool = True,
    **model_text: Any,
) -> Candidate:
    reader = CandidateReader(source_language="en", target_language="de", spells=lambda _: True, is_word=lambda _: True)
    part = part or plain_part(source, **model_text)
    return reader.read(source, part, make_hypothesis(target, is_finished=is_finished), target, links)


def linked(candidate: Candidate) -> list[str]:
    """Return the target of each link of a candidate."""
    text = candidate.text
    return [text[link.target.start : link.target.end] for link in candidate.links or ()]


def kinds(candidate: Candidate) -> list[WarningKind]:
    return [violation.kind for violation in candidate.violations]


_CORRECTED = [
    # source, target, corrected, text of each link
    ("Stop here", "Halt hier.", "Halt hier", ["Halt", "hier"]),
    ("Stop here:", "Halt hier.", "Halt hier:", ["Halt", "hier:"]),
    ("Really now?", "Wirklich jetzt.", "Wirklich jetzt?", ["Wirklich", "jetzt?"]),
    ("Yes, we saw.", "Ja, wir sahen", "Ja, wir sahen.", ["Ja,", "wir", "sahen."]),
    ("Wait for us...", "Warte auf uns.", "Warte auf uns...", ["Warte", "auf", "uns..."]),
    ("Loading the page…", "Lade die Seite.", "Lade die Seite…", ["Lade", "die", "Seite…"]),
    ("A “good” day.", 'Ein "guter" Tag.', "Ein „guter“ Tag.", ["Ein", "„guter“", "Tag."]),
    ("He said “no”.", 'Er sagte "nein".', "Er sagte „nein“.", ["Er", "sagte", "„nein“."]),
    ("“Go on”", '"Weiter so."', "„Weiter so“", ["„Weiter", "so“"]),
    ("See it – now.", "Sieh es - jetzt.", "Sieh es – jetzt.", ["Sieh", "es", "–", "jetzt."]),
    ("Is it “open”?", 'Ist es "offen".', "Ist es „offen“?", ["Ist", "es", "„offen“?"]),
    ("No change.", "Keine Änderung.", "Keine Änderung.", ["Keine", "Änderung."]),
]


@pytest.mark.parametrize(("source", "target", "corrected", "words"), _CORRECTED, ids=[case[0] for case in _CORRECTED])
def test_ending_and_quotation_marks_are_corrected_and_links_moved(
    source: str, target: str, corrected: str, words: list[str]
) -> None:
    links = word_links(source, target)

    candidate = candidate_of(source, target, links=links)

    assert candidate.text == corrected
    assert candidate.decoded == target
    assert linked(candidate) == words
    assert [link.source for link in candidate.links or ()] == [link.source for link in links]
    assert candidate_of(source, target).links is None


@pytest.mark.parametrize(("source", "target"), [("Stop here:", "Halt hier."), ("Wait", "Warte."), ("Why?", "Warum")])
def test_ending_of_an_unfinished_hypothesis_stays(source: str, target: str) -> None:
    candidate = candidate_of(source, target, is_finished=False)

    assert candidate.text == target
    assert candidate.num_hard == 1


_RECASED = [
    ("Save", "speichern", "Speichern"),
    ("Settings", "einstellungen", "Einstellungen"),
    ("save", "speichern", "speichern"),
    ("Über", "about", "About"),
    ("“Home”", '"heim"', "„Heim“"),
    ("Élan", "schwung", "Schwung"),
    ("Log out", "abmelden", "Abmelden"),
    ("Close", "schließen", "Schließen"),
    ("Next", "weiter", "Weiter"),
    ("Menu", "menü", "Menü"),
]


@pytest.mark.parametrize(("source", "target", "text"), _RECASED, ids=[case[0] for case in _RECASED])
def test_translation_of_words_in_another_case_begins_like_the_source(source: str, target: str, text: str) -> None:
    candidate = candidate_of(source, target, read=source.lower(), is_recased=True, links=word_links(source, target))

    assert candidate.text == text
    assert all(word in text for word in linked(candidate))


_CAPITALS = [
    ("STOP NOW", "halt jetzt", "HALT JETZT", ["HALT", "JETZT"]),
    ("BIG ROAD SIGN", "große straße zeichen", "GROSSE STRASSE ZEICHEN", ["GROSSE", "STRASSE", "ZEICHEN"]),
    ("THE LOCK", "das schloß", "DAS SCHLOSS", ["DAS", "SCHLOSS"]),
    ("MAY I?", "darf ich.", "DARF ICH?", ["DARF", "ICH?"]),
    ("SO “NICE”", 'so "schön"', "SO „SCHÖN“", ["SO", "„SCHÖN“"]),
    ("ﬁ NOW", "ﬁx nun", "FIX NUN", ["FIX", "NUN"]),  # a ligature of two letters
]


@pytest.mark.parametrize(("source", "target", "text", "words"), _CAPITALS, ids=[case[0] for case in _CAPITALS])
def test_translation_of_capitals_is_in_capitals_and_links_are_moved(
    source: str, target: str, text: str, words: list[str]
) -> None:
    links = word_links(source, target)

    candidate = candidate_of(source, target, read=source.lower(), is_from_capitals=True, links=links)

    assert candidate.text == text
    assert linked(candidate) == words


def test_fragments_of_a_part_without_codes_have_links_of_the_text() -> None:
    part = plain_part("one two.", start=10)

    candidate = candidate_of("one two.", "eins zwei.", part, links=word_links("one two.", "eins zwei."))

    assert [(fragment.text, fragment.source) for fragment in candidate.fragments] == [
        ("eins", Span(start=10, end=13)),
        (" ", None),
        ("zwei.", Span(start=14, end=18)),
    ]
    assert all(fragment.is_model_text for fragment in candidate.fragments)
    assert candidate_of("one", "").text == ""


def test_violations_have_ranges_of_source_and_translation() -> None:
    source = "We saw 3 dogs."

    candidate = candidate_of(source, "Wir sahen 5 Hunde.", plain_part(source, start=100))

    (violation,) = candidate.violations
    assert violation.kind is WarningKind.NUMBER_CHANGED
    assert violation.source
    assert violation.target
    assert source[violation.source.start : violation.source.end] == "3"
    assert candidate.text[violation.target.start : violation.target.end] == "5"
    assert (candidate.num_hard, candidate.kinds) == (1, frozenset({WarningKind.NUMBER_CHANGED}))


def test_soft_violations_are_not_hard() -> None:
    candidate = candidate_of("We use GitHub daily", "Wir nutzen es täglich")

    assert kinds(candidate) == [WarningKind.NAME_CHANGED]
    assert candidate.num_hard == 0


@pytest.mark.parametrize(
    "text",
    [
        "Open {name} now.",
        "Pay $1,234.50 at 10:30 today.",
        "See https://a.example/x?y=1 first.",
        "Run `ls -l` here.",
        "Order ABC-123 came.",
        "Hello <b>dear</b> {user}!",
        "Mail me@x.example now.",
        "Set %s to %d.",
        "Version v1.2.3 works.",
        "Copy /usr/bin/env there.",
    ],
)
def test_restored_codes_are_no_violations(text: str) -> None:
    part = planned_part(text)
    assert part.unit

    candidate = candidate_of(text, part.unit.text, part)

    assert set(kinds(candidate)) <= {WarningKind.UNTRANSLATED}
    assert candidate.num_hard == 0
    assert candidate.links is None


@pytest.mark.parametrize("lost", ["{name}", "%d", "https://a.example/x", "ABC-1234", "`a b`", "${v}", "me@x.example"])
def test_lost_placeholder_is_a_violation_with_the_range_of_its_source(lost: str) -> None:
    text = f"Open {lost} now."
    part = planned_part(text).shifted(50)

    candidate = candidate_of(text, "Jetzt auf.", part)

    (violation,) = [each for each in candidate.violations if each.kind is WarningKind.PLACEHOLDER_LOST]
    assert violation.source
    assert text[violation.source.start : violation.source.end] == lost
    assert candidate.num_hard == 1


def test_long_lost_placeholder_is_shortened_in_the_message() -> None:
    text = f"Open `{'a ' * 100}` now."

    (violation,) = candidate_of(text, "Jetzt auf.", planned_part(text)).violations

    assert len(violation.detail) < 150


def test_codes_in_capitals_are_unchanged() -> None:
    text = "OPEN {name} ON <b>THE STREET</b> NOW!"
    part = planned_part(text)
    assert part.unit
    assert part.model_text.is_from_capitals
    (placeholder,) = part.unit.placeholders

    candidate = candidate_of(text, f"Öffne jetzt {placeholder} auf der Straße!", part)

    written = "".join(
        text[each.copied.start : each.copied.end] if each.copied else each.text for each in candidate.fragments
    )
    assert "{name}" in written
    assert re.sub(r"\{name\}|</?b>", "", written).isupper()
    assert "STRASSE" in written


@pytest.mark.parametrize(
    "body",
    ["a", "ha ", "|a", '"', "“", "...", "!?", "a b, ", "{", "- ", "ß", "1 ", "'"],
)
def test_long_texts_are_corrected_in_linear_time(body: str) -> None:
    source, target = f"A{body * 10_000}b?", f"A{body * 10_000}b."

    candidate = candidate_of(source, target, links=word_links(source[:100], target[:100]))

    assert candidate.text.endswith(("b?", "b."))  # `a.b.` is an abbreviation
    assert all(link.target.end <= len(candidate.text) for link in candidate.links or ())


def test_links_around_long_changes_are_kept() -> None:
    source = f"One{'.' * 100} “two” three?"
    target = f'Eins{"." * 100} "zwei" drei.'

    candidate = candidate_of(source, target, links=word_links(source, target))

    assert linked(candidate)[1:] == ["„zwei“", "drei?"]


@pytest.mark.parametrize(
    ("source", "target", "options", "expected"),
    [
        ("Größe: 2 m", "size: 2 m", {}, "Size: 2 m"),
        ("Straße und Ort", "street and place", {}, "Street and place"),
        ("Artikel 5", "article 5", {}, "Article 5"),
        ("»Ja oder nein?«", "“yes or no?”", {}, "“Yes or no?”"),
        ("Über uns", "about us", {}, "About us"),
        ("über uns", "about us", {}, "about us"),
        ("Das iPhone klingelt.", "iPhone is ringing.", {}, "iPhone is ringing."),
        ("Straße", "road", {}, "road"),  # a single noun
        ("Artikel 5", "article 5", {"begins_sentence": False}, "article 5"),
        ("Artikel 5", "article 5", {"keeps_start": True}, "article 5"),
    ],
)
def test_sentence_begins_with_a_capital_like_its_source(
    source: str, target: str, options: dict[str, bool], expected: str
) -> None:
    keeps_start = options.get("keeps_start", False)
    part = replace(plain_part(source), begins_sentence=options.get("begins_sentence", True))
    reader = CandidateReader(
        source_language="de",
        target_language="en",
        spells=str.isprintable,
        is_word=str.isprintable,
        keeps_start=keeps_start,
    )

    candidate = reader.read(source, part, make_hypothesis(target), target, None)

    assert candidate.text == expected
