from collections.abc import Iterator

import pytest

from dragoman_service.datatypes import Span, WarningKind
from dragoman_service.request import TextFormat
from dragoman_service.text.documents import MAX_COPIED_CHARACTERS, PlannedSentence, document_sentences
from dragoman_service.text.plans import ModelText, TextPart
from tests.fakes import make_segment
from tests.unit.text.text_fakes import (
    FakeModel,
    FakeQueue,
    make_hypothesis,
    make_request,
    make_translator,
    source_text,
    translate_document,
)


def parts(*spans: tuple[int, int]) -> list[TextPart]:
    return [
        TextPart(
            span=Span(start=start, end=end), segment=make_segment(5), sentence_index=7, model_text=ModelText(text="a")
        )
        for start, end in spans
    ]


def planned(text: str, *sentences: list[TextPart], separator: str = "") -> list[PlannedSentence]:
    return list(document_sentences(text, sentences, separator=separator))


def test_text_around_sentences_is_copied() -> None:
    first, last = planned(" a.\n\nb. ", parts((1, 3)), parts((5, 7)))

    assert first.plan
    assert last.plan
    assert (first.before, first.plan.text, first.after, first.start) == (" ", "a.", "", 1)
    assert (last.before, last.plan.text, last.after, last.start) == ("\n\n", "b.", " ", 5)
    assert planned("...\n") == [PlannedSentence(before="...\n", is_last=True)]


def test_spans_are_relative_to_the_sentence() -> None:
    (sentence,) = planned("- one, two", parts((2, 6), (7, 10)))

    assert sentence.plan
    assert [part.span for part in sentence.plan.parts] == [Span(start=0, end=4), Span(start=5, end=8)]
    assert len(sentence.segments) == 2


def test_separator_is_only_between_sentences_that_touch() -> None:
    first, last = planned("你好。再见。", parts((0, 3)), parts((3, 6)), separator=" ")

    assert (first.before, last.before, last.after) == ("", " ", "")


def test_long_text_between_sentences_is_copied_in_chunks() -> None:
    gap = "." * (2 * MAX_COPIED_CHARACTERS + 1)

    sentences = planned(f"{gap}a{gap}", parts((len(gap), len(gap) + 1)))

    chunk = MAX_COPIED_CHARACTERS
    sizes = [len(sentence.before) + len(sentence.after) for sentence in sentences]
    assert sizes == [chunk, chunk, 1, chunk, chunk, 1]
    assert [bool(sentence.plan) for sentence in sentences] == [False, False, True, False, False, False]


def test_sentence_is_yielded_once_the_next_one_is_known() -> None:
    read: list[int] = []

    def sentences() -> Iterator[list[TextPart]]:
        for start in range(0, 1000, 2):
            read.append(start)
            yield parts((start, start + 1))

    next(document_sentences("a " * 500, sentences(), separator=""))

    assert read == [0, 2]


@pytest.mark.parametrize(
    ("text", "replacement", "num_warnings"),
    [
        ("# One.\n\n- **Two.** and [three](u).\n\nFour.\n", "Two.", 0),
        ("One.\n\nTwo.\n", "Two\n\nThree.", 1),
        ("One.\n\nTwo.\n\nFour.", "Two\n\nThree.", 1),
        ("| One. | Two. |\n|--|--|\n", "Two\n---", 1),
        ("```\nTwo.\n```\n", "Two.", 0),
    ],
)
async def test_marks_of_markdown_are_compared_at_the_end_of_a_document(
    text: str, replacement: str, num_warnings: int
) -> None:
    queue = FakeQueue(lambda segment: (make_hypothesis(source_text(segment).replace("Two.", replacement)),))

    sentences = await translate_document(
        make_translator(FakeModel(queue)), make_request(text, format=TextFormat.MARKDOWN)
    )

    changed = [[warning.kind is WarningKind.MARKUP_CHANGED for warning in each.warnings] for each in sentences]
    assert sum(changed[-1]) == num_warnings
    assert not any(map(any, changed[:-1]))
