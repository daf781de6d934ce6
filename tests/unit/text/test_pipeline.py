from typing import Any

import pytest

from service.datatypes import (
    SearchConfig,
    Span,
    TextHypothesis,
    Translation,
    TranslationOptions,
    TranslationRequest,
    WarningKind,
)
from service.errors import InvalidFieldError
from service.text.pipeline import TextPipeline, best_combinations
from tests.unit.text.text_fakes import EOS, FakeModel, make_hypothesis, make_result, source_text


def _pipeline(
    *texts: str, model: FakeModel | None = None, search: SearchConfig | None = None, **options: Any
) -> TextPipeline:
    request = TranslationRequest(
        texts=texts, source_language="en", target_language="de", options=TranslationOptions(**options)
    )
    return TextPipeline(request, model=model or FakeModel(), search=search or SearchConfig(max_target_tokens=512))


def _sources(pipeline: TextPipeline) -> list[list[str]]:
    return [[source_text(part.segment) for part in plan.parts] for plan in pipeline.plan()]


def _echoed(pipeline: TextPipeline) -> tuple[Translation, ...]:
    plans = pipeline.plan()
    results = [make_result(make_hypothesis(source_text(part.segment))) for plan in plans for part in plan.parts]
    return pipeline.assemble(plans, results)


def test_each_sentence_becomes_a_segment_that_ends_with_eos() -> None:
    pipeline = _pipeline("One. Two.", " ", "Three.")

    assert _sources(pipeline) == [["One.", "Two."], [], ["Three."]]
    assert all(part.segment.source_ids[-1] == EOS for plan in pipeline.plan() for part in plan.parts)


def test_without_splitting_a_text_is_one_sentence_line_breaks_included() -> None:
    assert _sources(_pipeline("  One. Two\nlines. ", split_sentences=False)) == [["One. Two\nlines."]]


def test_a_target_may_have_fifty_tokens_more_than_its_source() -> None:
    (plan,) = _pipeline("Hello.").plan()

    assert plan.parts[0].segment.search == SearchConfig(max_target_tokens=len("Hello.") + 1 + 50)


@pytest.mark.parametrize(
    ("search", "model_limit", "choice", "expected"),
    [
        (SearchConfig(max_target_tokens=512), 20, None, 20),
        (SearchConfig(max_target_tokens=512, min_target_tokens=90), 100, None, 91),
        (SearchConfig(max_target_tokens=7), 100, 7, 7),
    ],
    ids=["model", "minimum", "choice"],
)
def test_the_target_limit_respects_model_minimum_and_choice(
    search: SearchConfig, model_limit: int, choice: int | None, expected: int
) -> None:
    model = FakeModel(max_target_tokens=model_limit)

    (plan,) = _pipeline("Hello.", model=model, search=search, max_target_tokens=choice).plan()

    assert plan.parts[0].segment.search.max_target_tokens == expected


def test_an_overlong_sentence_is_decoded_in_parts_that_fit() -> None:
    pipeline = _pipeline("Short. This one, however, is long.", model=FakeModel(max_source_tokens=16))

    assert _sources(pipeline) == [["Short.", "This one,", "however,", "is long."]]
    assert [part.sentence_index for part in pipeline.plan()[0].parts] == [0, 1, 1, 1]


def test_a_model_too_small_for_a_single_character_refuses_the_text() -> None:
    with pytest.raises(InvalidFieldError, match=r"^texts\[1\]: is the character at 0"):
        _pipeline("...", "a", model=FakeModel(max_source_tokens=1)).plan()


def test_an_untranslated_text_comes_back_as_it_was() -> None:
    text = "  One, two.\r\n\r\n- Three.\tFour!\u2028  "

    (translation,) = _echoed(_pipeline(text))

    assert translation.hypotheses[0].text == text
    assert [sentence.source for sentence in translation.sentences] == [s.target for s in translation.sentences]


def test_a_text_with_nothing_to_translate_is_its_own_translation() -> None:
    (translation,) = _pipeline(" \n...").assemble(_pipeline(" \n...").plan(), [])

    assert translation == Translation(hypotheses=(TextHypothesis(text=" \n...", score=0.0),), sentences=())


def test_white_space_that_a_model_adds_is_dropped() -> None:
    pipeline = _pipeline(" Hello. ")

    (translation,) = pipeline.assemble(pipeline.plan(), [make_result(make_hypothesis("  Hallo. \n"))])

    assert translation.hypotheses[0].text == " Hallo. "


def test_spans_and_token_counts_belong_to_the_best_hypothesis() -> None:
    pipeline = _pipeline("Yes. No.")
    results = [make_result(make_hypothesis("Jawohl.")), make_result(make_hypothesis("Nein."))]

    first, second = pipeline.assemble(pipeline.plan(), results)[0].sentences

    assert (first.source, first.target) == (Span(start=0, end=4), Span(start=0, end=7))
    assert (second.source, second.target) == (Span(start=5, end=8), Span(start=8, end=13))
    assert (first.num_source_tokens, first.num_target_tokens) == (5, 8)
    assert not first.is_truncated
    assert not first.is_split


def test_a_split_sentence_is_one_sentence_with_a_warning() -> None:
    (translation,) = _echoed(_pipeline("A. This one, however, is long.", model=FakeModel(max_source_tokens=16)))

    sentence = translation.sentences[1]
    assert sentence.is_split
    assert sentence.source == Span(start=3, end=30)
    (warning,) = translation.warnings
    assert (warning.kind, warning.sentence_index) == (WarningKind.SOURCE_SPLIT, 1)
    assert warning.message == "decoded in 3 parts: 28 source tokens, the model takes 16"


def test_an_unfinished_best_hypothesis_is_a_truncated_sentence() -> None:
    pipeline = _pipeline("Yes. No.", search=SearchConfig(max_target_tokens=3), max_target_tokens=3)
    results = [make_result(make_hypothesis("Ja.")), make_result(make_hypothesis("Nei", is_finished=False))]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    assert [sentence.is_truncated for sentence in translation.sentences] == [False, True]
    (warning,) = translation.warnings
    assert (warning.kind, warning.sentence_index) == (WarningKind.TRUNCATED, 1)
    assert warning.message == "cut off at the limit of 3 target tokens"


def test_hypotheses_of_a_text_are_the_best_combinations_of_its_sentences() -> None:
    pipeline = _pipeline("Yes. No.", search=SearchConfig(num_hypotheses=3))
    results = [
        make_result(make_hypothesis("Ja.", score=-1.0), make_hypothesis("Jo.", score=-4.0)),
        make_result(make_hypothesis("Nein.", score=-2.0), make_hypothesis("Nö.", score=-3.0)),
    ]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    assert [(one.text, one.score) for one in translation.hypotheses] == [
        ("Ja. Nein.", -3.0),
        ("Ja. Nö.", -4.0),
        ("Jo. Nein.", -6.0),
    ]


def test_tokens_and_their_log_probabilities_come_if_asked_for() -> None:
    pipeline = _pipeline("One. Two.", return_tokens=True, return_scores=True)
    results = [make_result(make_hypothesis("c", score=-1.0)), make_result(make_hypothesis("d", score=-2.0))]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    assert translation.hypotheses[0].tokens == ("c", "</s>", "d", "</s>")
    assert translation.hypotheses[0].token_log_probs == (-1.0, -1.0, -2.0, -2.0)


def test_tokens_and_their_log_probabilities_stay_away_otherwise() -> None:
    (translation,) = _echoed(_pipeline("A. B."))

    assert translation.hypotheses[0].tokens == ()
    assert translation.hypotheses[0].token_log_probs == ()


def test_an_unfinished_hypothesis_counts_as_worse_whatever_its_score() -> None:
    row = [make_hypothesis("a", score=-9.0), make_hypothesis("b", score=-1.0, is_finished=False)]

    assert best_combinations([row, row], count=4) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_there_are_no_more_combinations_than_hypotheses_allow() -> None:
    assert best_combinations([[make_hypothesis("a")], [make_hypothesis("b")]], count=5) == [(0, 0)]
