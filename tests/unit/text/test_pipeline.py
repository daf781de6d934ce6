from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    GuardReport,
    SamplingConfig,
    SearchConfig,
    Span,
    TextHypothesis,
    Translation,
    WarningKind,
)
from dragoman_service.errors import EngineError, InvalidFieldError
from dragoman_service.request import (
    AttentionDetail,
    LongSentencePolicy,
    ProtectionOptions,
    Term,
    TextFormat,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.text.pipeline import TextPipeline, best_combinations
from dragoman_service.text.planning import segment_seed
from tests.unit.text.text_fakes import (
    EOS,
    FIRST_CHARACTER,
    TOKENIZER,
    CharacterTokenizer,
    FakeModel,
    attending,
    make_hypothesis,
    make_result,
    source_text,
)

REFUSE = LongSentencePolicy.REFUSE


def _pipeline(
    *texts: str,
    model: FakeModel | None = None,
    search: SearchConfig | None = None,
    target_prefixes: tuple[str, ...] = (),
    **options: Any,
) -> TextPipeline:
    request = TranslationRequest(
        texts=texts,
        source_language="en",
        target_language="de",
        options=TranslationOptions(**options),
        target_prefixes=target_prefixes,
    )
    return TextPipeline(request, model=model or FakeModel(), search=search or SearchConfig(max_target_tokens=512))


def _sources(pipeline: TextPipeline) -> list[list[str]]:
    return [[source_text(part.segment) for part in plan.parts] for plan in pipeline.plan()]


def _searches(pipeline: TextPipeline) -> list[SearchConfig]:
    return [part.segment.search for plan in pipeline.plan() for part in plan.parts]


def _translated(pipeline: TextPipeline, *targets: str) -> Translation:
    """Translate the segments of one text into these targets, which look at the source in order."""
    (plan,) = pipeline.plan()
    results = [
        make_result(attending(make_hypothesis(target), part.segment))
        for target, part in zip(targets, plan.parts, strict=True)
    ]
    return pipeline.assemble([plan], results)[0]


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


def test_a_model_too_small_for_a_single_character_rejects_the_text() -> None:
    with pytest.raises(InvalidFieldError, match=r"^texts\[1\]: is the character at 0"):
        _pipeline("...", "a", model=FakeModel(max_source_tokens=1)).plan()


def test_an_overlong_sentence_is_rejected_if_the_caller_wants_it_so() -> None:
    pipeline = _pipeline(
        "A.",
        "Short. This one is long.",
        model=FakeModel(max_source_tokens=16),
        long_sentences=REFUSE,
    )

    with pytest.raises(InvalidFieldError) as caught:
        pipeline.plan()

    assert str(caught.value) == (
        "texts[1]: is 18 source tokens long in the sentence at character 7, "
        "must be at most 16 unless options.long_sentences is SPLIT"
    )


def test_a_sentence_that_just_fits_is_not_rejected() -> None:
    assert _sources(_pipeline("123456.", model=FakeModel(max_source_tokens=8), long_sentences=REFUSE)) == [["123456."]]


def test_a_prefix_begins_the_first_sentence_of_each_text() -> None:
    pipeline = _pipeline("One. Two.", "...", "Three.", target_prefix="Ei")

    prefix = tuple(TOKENIZER.encode("Ei"))
    assert [search.target_prefix for search in _searches(pipeline)] == [prefix, (), prefix]


def test_a_prefix_begins_the_first_part_of_a_split_text() -> None:
    pipeline = _pipeline("This one, however, is long.", model=FakeModel(max_source_tokens=16), target_prefix="Ei")

    assert [len(search.target_prefix) for search in _searches(pipeline)] == [2, 0, 0]


def test_a_prefix_of_each_text_replaces_that_of_the_options() -> None:
    pipeline = _pipeline("One.", "Two.", target_prefix="Ei", target_prefixes=("", "Zwei"))

    assert [TOKENIZER.decode(search.target_prefix) for search in _searches(pipeline)] == ["", "Zwei"]


def test_a_long_prefix_leaves_room_for_the_rest() -> None:
    (search,) = _searches(_pipeline("One.", target_prefix="x" * 90))

    assert search.max_target_tokens == 90 + 50


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ({"target_prefix": "abcd"}, "options.target_prefix: is 4 tokens long, must be fewer than 4 tokens"),
        ({"target_prefixes": ("", "abcd")}, r"target_prefixes\[1\]: is 4 tokens long, must be fewer than 4 tokens"),
        ({"target_prefix": "a☃"}, "options.target_prefix: is a text with unknown characters"),
    ],
)
def test_a_prefix_that_no_translation_can_begin_with_is_rejected(prefixes: dict[str, Any], message: str) -> None:
    pipeline = _pipeline("One.", "Two.", max_target_tokens=4, search=SearchConfig(max_target_tokens=4), **prefixes)

    with pytest.raises(InvalidFieldError, match=f"^{message}"):
        pipeline.plan()


def test_a_prefix_one_token_short_of_the_limit_is_taken() -> None:
    search = SearchConfig(max_target_tokens=4)

    (taken,) = _searches(_pipeline("One.", target_prefix="abc", max_target_tokens=4, search=search))

    assert len(taken.target_prefix) == 3


def test_a_text_with_nothing_to_translate_takes_no_prefix() -> None:
    assert _pipeline("...", target_prefix="x" * 500).plan()[0].parts == ()


def test_each_segment_draws_from_a_seed_of_its_own() -> None:
    search = SearchConfig(max_target_tokens=512, sampling=SamplingConfig(temperature=0.5, seed=7))

    def seeds() -> list[int]:
        samplings = [one.sampling for one in _searches(_pipeline("One. Two.", "One. Two.", search=search))]
        assert all(sampling and sampling.temperature == 0.5 for sampling in samplings)
        return [sampling.seed for sampling in samplings if sampling]

    assert len(set(seeds())) == 4
    assert seeds() == seeds()


def test_what_a_segment_draws_does_not_depend_on_the_other_texts() -> None:
    search = SearchConfig(max_target_tokens=512, sampling=SamplingConfig(seed=7))

    few, many = (_searches(_pipeline(first, "Two.", search=search)) for first in ("One.", "One. And. More."))

    assert few[-1] == many[-1]


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


def test_a_beam_search_returns_no_text_twice_and_no_empty_text_beside_another() -> None:
    pipeline = _pipeline("Yes.", search=SearchConfig(num_hypotheses=4))
    found = [("", -1.0), ("Ja.", -2.0), (" Ja. ", -3.0), ("Jo.", -4.0)]
    results = [make_result(*(make_hypothesis(text, score=score) for text, score in found))]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    assert [(one.text, one.score) for one in translation.hypotheses] == [("Ja.", -2.0), ("Jo.", -4.0)]
    assert translation.sentences[0].num_target_tokens == len("Ja.") + 1


def test_combinations_of_sentences_hold_no_text_twice() -> None:
    pipeline = _pipeline("Yes. No.", search=SearchConfig(num_hypotheses=4))
    results = [
        make_result(make_hypothesis("Ja."), make_hypothesis(" Ja."), make_hypothesis("Ja. Ja.", score=-4.0)),
        make_result(make_hypothesis("Nein."), make_hypothesis("Ja. Nein.", score=-2.0)),
    ]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    assert [(one.text, one.score) for one in translation.hypotheses] == [
        ("Ja. Nein.", -2.0),
        ("Ja. Ja. Nein.", -3.0),
        ("Ja. Ja. Ja. Nein.", -6.0),
    ]


def test_a_source_without_a_translation_has_one_empty_hypothesis() -> None:
    pipeline = _pipeline("Hm.", search=SearchConfig(num_hypotheses=3))

    (translation,) = pipeline.assemble(pipeline.plan(), [make_result(make_hypothesis(""), make_hypothesis(" "))])

    assert [one.text for one in translation.hypotheses] == [""]


def test_samples_may_repeat_and_be_empty() -> None:
    pipeline = _pipeline("Yes.", search=SearchConfig(num_hypotheses=3, sampling=SamplingConfig()))
    results = [make_result(make_hypothesis("Ja."), make_hypothesis("Ja."), make_hypothesis(""))]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    assert [one.text for one in translation.hypotheses] == ["Ja.", "Ja.", ""]


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


def _pieces(text: str, translation: Translation) -> list[tuple[str, str]]:
    target = translation.hypotheses[0].text
    return [
        (text[link.source.start : link.source.end], target[link.target.start : link.target.end])
        for link in translation.hypotheses[0].alignment
    ]


def test_links_index_the_whole_text_and_the_whole_translation() -> None:
    text = "- One, 2.\n\nSee?"
    pipeline = _pipeline(text, return_alignment=True)

    translation = _translated(pipeline, "  uno, 2.", "see!")

    assert translation.hypotheses[0].text == "- uno, 2.\n\nsee!"
    assert _pieces(text, translation)[-4:] == [("S", "s"), ("e", "e"), ("e", "e"), ("?", "!")]
    assert "".join(target for _, target in _pieces(text, translation)) == "uno,2.see!"


def test_links_of_a_split_sentence_index_the_whole_text() -> None:
    text = "This one, however, is long."
    pipeline = _pipeline(text, model=FakeModel(max_source_tokens=16), return_alignment=True)

    translation = _translated(pipeline, "This one,", "however,", "is long.")

    assert all(source == target for source, target in _pieces(text, translation))
    assert "".join(target for _, target in _pieces(text, translation)) == text.replace(" ", "")


class _TaggedTokenizer(CharacterTokenizer):
    """That of a model of many languages: a tag before every source, and another before every target."""

    source_prefix = (2000 + FIRST_CHARACTER,)
    target_prefix = (2001 + FIRST_CHARACTER,)

    def decode(self, token_ids: Sequence[int]) -> str:
        return super().decode([token_id for token_id in token_ids if token_id not in self.target_prefix])


def test_every_segment_begins_with_the_tags_of_the_model_then_with_what_the_caller_wants() -> None:
    pipeline = _pipeline("One. Two.", target_prefix="Ei", model=FakeModel(tokenizer=_TaggedTokenizer()))

    (plan,) = pipeline.plan()

    segments = [part.segment for part in plan.parts]
    sources = [(2004, *TOKENIZER.encode(text), EOS) for text in ("One.", "Two.")]
    assert [segment.source_ids for segment in segments] == sources
    assert [segment.search.target_prefix for segment in segments] == [(2005, *TOKENIZER.encode("Ei")), (2005,)]


def test_tags_count_as_tokens_of_the_source() -> None:
    model = FakeModel(tokenizer=_TaggedTokenizer(), max_source_tokens=6)

    assert len(_pipeline("One.", model=model).plan()[0].parts) == 1
    with pytest.raises(InvalidFieldError, match=r"7 source tokens long .* at most 6 unless"):
        _pipeline("Five.", model=model, long_sentences=REFUSE).plan()


def test_sources_end_with_what_the_model_learned_to_see_there() -> None:
    class WithoutEos(CharacterTokenizer):
        source_suffix = ()

    model = FakeModel(tokenizer=WithoutEos(), max_source_tokens=4)

    (part,) = _pipeline("One.", model=model).plan()[0].parts
    assert part.segment.source_ids == tuple(TOKENIZER.encode("One."))


def test_a_target_too_short_for_the_tag_of_its_language_is_rejected() -> None:
    model = FakeModel(tokenizer=_TaggedTokenizer())

    with pytest.raises(InvalidFieldError, match=r"options\.max_target_tokens: is 1, must be at least 2"):
        _pipeline("...", "One. Two.", max_target_tokens=1, model=model).plan()


def test_links_are_between_words_and_never_with_tags() -> None:
    text = "One, see?"
    pipeline = _pipeline(text, return_alignment=True, model=FakeModel(tokenizer=_TaggedTokenizer()))
    (plan,) = pipeline.plan()
    hypothesis = make_hypothesis(chr(2001) + "uno, see!")

    (translation,) = pipeline.assemble([plan], [make_result(attending(hypothesis, plan.parts[0].segment))])

    assert _pieces(text, translation)[-4:] == [("s", "s"), ("e", "e"), ("e", "e"), ("?", "!")]
    assert "".join(target for _, target in _pieces(text, translation)) == "uno,see!"


def test_attention_comes_for_each_segment_with_the_pieces_of_both_sides() -> None:
    pipeline = _pipeline("Yes. No.", return_attention=AttentionDetail.ALL_HEADS)

    first, second = _translated(pipeline, "Ja.", "Ne.").hypotheses[0].attention

    assert first.source_pieces == ("Y", "e", "s", ".", "</s>")
    assert second.target_pieces == ("N", "e", ".", "</s>")
    assert (first.layer, first.weights.shape, second.weights.shape) == (1, (3, 4, 5), (3, 4, 4))


def test_averaged_attention_has_one_head_and_still_adds_up() -> None:
    pipeline = _pipeline("Yes.", return_attention=AttentionDetail.AVERAGED)

    (attention,) = _translated(pipeline, "Ja.").hypotheses[0].attention

    assert attention.weights.shape == (1, 4, 5)
    assert np.allclose(attention.weights.sum(axis=2), 1)


def test_an_unfinished_hypothesis_has_a_link_for_its_last_token() -> None:
    pipeline = _pipeline("Yes.", return_alignment=True)
    (plan,) = pipeline.plan()
    hypothesis = attending(make_hypothesis("Ja", is_finished=False), plan.parts[0].segment)

    (translation,) = pipeline.assemble([plan], [make_result(hypothesis)])

    assert _pieces("Yes.", translation) == [("Y", "J"), ("e", "a")]


def test_attention_is_computed_and_returned_only_if_asked_for() -> None:
    pipeline = _pipeline("Yes.")

    hypothesis = _translated(pipeline, "Ja.").hypotheses[0]

    assert not pipeline.plan()[0].parts[0].segment.wants_attention
    assert (hypothesis.alignment, hypothesis.attention) == ((), ())


@pytest.mark.parametrize(
    "options",
    [{"return_alignment": True}, {"return_attention": AttentionDetail.AVERAGED}],
    ids=["alignment", "attention"],
)
def test_a_result_without_the_attention_asked_for_is_an_error_of_the_server(options: dict[str, Any]) -> None:
    pipeline = _pipeline("Yes.", **options)

    assert pipeline.plan()[0].parts[0].segment.wants_attention
    with pytest.raises(EngineError):
        pipeline.assemble(pipeline.plan(), [make_result(make_hypothesis("Ja."))])


def test_what_the_guard_found_is_a_warning_about_its_sentence() -> None:
    pipeline = _pipeline("Yes. No.")
    report = GuardReport(
        found=(Degeneration(kind=DegenerationKind.COPIED_SOURCE, detail="3 of 3 tokens"),),
        remaining=(),
        is_replaced=True,
    )
    results = [make_result(make_hypothesis("Ja.")), replace(make_result(make_hypothesis("Nein.")), guard=report)]

    (translation,) = pipeline.assemble(pipeline.plan(), results)

    (warning,) = translation.warnings
    assert (warning.kind, warning.sentence_index) == (WarningKind.COPIED_SOURCE, 1)
    assert warning.message == "3 of 3 tokens; decoding again cured it"


@pytest.mark.parametrize(
    ("text", "options", "cost"),
    [
        ("a" * 100, {}, 100),
        ("漢" * 100, {}, 300),
        ("a" * 98 + "{}", {}, 400),
        ("a" * 100, {"format": TextFormat.HTML}, 400),
        ("a" * 100, {"protection": ProtectionOptions(patterns=("[*]",))}, 400),
        ("a" * 100, {"terms": tuple(Term(source=str(number)) for number in range(32))}, 300),
    ],
)
def test_text_work_costs_more_with_markup_terms_and_long_encodings(
    text: str, options: dict[str, Any], cost: int
) -> None:
    assert _pipeline(text, **options).cost_characters == cost


def test_an_unfinished_hypothesis_counts_as_worse_whatever_its_score() -> None:
    row = [make_hypothesis("a", score=-9.0), make_hypothesis("b", score=-1.0, is_finished=False)]

    assert best_combinations([row, row], count=4) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_there_are_no_more_combinations_than_hypotheses_allow() -> None:
    assert best_combinations([[make_hypothesis("a")], [make_hypothesis("b")]], count=5) == [(0, 0)]


def test_each_segment_of_a_request_has_a_seed_of_its_own() -> None:
    seeds = [
        segment_seed(seed, text_index=text_index, segment_index=segment_index)
        for seed in (0, 1, 2**63 - 1)
        for text_index in range(3)
        for segment_index in range(3)
    ]

    assert len(set(seeds)) == 27
    assert min(seeds) >= 0
    assert segment_seed(1, text_index=2, segment_index=0) == segment_seed(1, text_index=2, segment_index=0)
