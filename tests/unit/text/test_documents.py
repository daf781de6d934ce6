from collections.abc import Iterator

from dragoman_service.datatypes import Span
from dragoman_service.text.documents import MAX_COPIED_CHARACTERS, PlannedSentence, TextPart, document_sentences
from tests.fakes import make_segment


def parts(*spans: tuple[int, int]) -> list[TextPart]:
    return [
        TextPart(span=Span(start=start, end=end), segment=make_segment(5), sentence_index=7) for start, end in spans
    ]


def pieces(text: str, *sentences: list[TextPart], separator: str = "") -> list[PlannedSentence]:
    return list(document_sentences(text, sentences, separator=separator))


def test_each_sentence_has_what_is_before_it_and_the_last_what_follows() -> None:
    first, last = pieces(" a.\n\nb. ", parts((1, 3)), parts((5, 7)))

    assert first.plan
    assert last.plan
    assert (first.before, first.plan.text, first.after, first.start) == (" ", "a.", "", 1)
    assert (last.before, last.plan.text, last.after, last.start) == ("\n\n", "b.", " ", 5)


def test_spans_are_counted_from_the_sentence() -> None:
    (piece,) = pieces("- one, two", parts((2, 6), (7, 10)))

    assert piece.plan
    assert piece.plan.spans == [Span(start=0, end=4), Span(start=5, end=8)]
    assert len(piece.segments) == 2


def test_document_without_sentences_is_only_copied() -> None:
    assert pieces("...\n") == [PlannedSentence(before="...\n")]


def test_sentences_that_touch_get_the_separator_between_them_only() -> None:
    first, last = pieces("你好。再见。", parts((0, 3)), parts((3, 6)), separator=" ")

    assert (first.before, last.before, last.after) == ("", " ", "")


def test_much_to_copy_comes_in_pieces_of_its_own() -> None:
    much = "." * (2 * MAX_COPIED_CHARACTERS + 1)

    found = pieces(f"{much}a{much}", parts((len(much), len(much) + 1)))

    assert [len(piece.before) + len(piece.after) for piece in found] == [MAX_COPIED_CHARACTERS] * 2 + [1] + [
        MAX_COPIED_CHARACTERS
    ] * 2 + [1]
    assert [bool(piece.plan) for piece in found] == [False, False, True, False, False, False]


def test_sentence_is_yielded_once_the_next_one_is_known() -> None:
    read: list[int] = []

    def sentences() -> Iterator[list[TextPart]]:
        for start in range(0, 1000, 2):
            read.append(start)
            yield parts((start, start + 1))

    next(document_sentences("a " * 500, sentences(), separator=""))

    assert read == [0, 2]
