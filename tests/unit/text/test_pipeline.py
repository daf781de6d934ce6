from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    DegenerationReport,
    SamplingConfig,
    SearchConfig,
    SegmentResult,
    SentenceAlignment,
    Span,
    TextHypothesis,
    Translation,
    TranslationWarning,
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
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.sentence_warnings import sentence_warnings
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
ANY_LENGTH = SearchConfig(max_target_tokens=512)


def make_pipeline(
    *texts: str,
    model: FakeModel | None = None,
    search: SearchConfig = ANY_LENGTH,
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
    return TextPipeline(request, model=model or FakeModel(), search=search)


def sources(pipeline: TextPipeline) -> list[list[str]]:
    return [[source_text(part.segment) for part in plan.parts] for plan in pipeline.plan()]


def test_regions_of_a_language_share_the_characters_that_are_known_to_be_readable() -> None:
    model = FakeModel()
    for tag in ("en", "en-GB", "en-us", "EN-x-1"):
        request = TranslationRequest(texts=("Dé ja.",), source_language=tag, target_language="de")
        TextPipeline(request, model=model, search=ANY_LENGTH).plan()

    assert list(model.tokenizer.readable) == ["en"]


def searches(pipeline: TextPipeline) -> list[SearchConfig]:
    return [part.segment.search for plan in pipeline.plan() for part in plan.parts]


def assembled(pipeline: TextPipeline, *results: SegmentResult) -> Translation:
    plans = pipeline.plan()
    (translation,) = pipeline.assemble(plans, pipeline.attempts(plans, results))
    return translation


def attended(pipeline: TextPipeline, *targets: str, is_finished: bool = True) -> Translation:
    """Translate the segments of one text into these targets, whose attention is monotonic."""
    (plan,) = pipeline.plan()
    hypotheses = [make_hypothesis(target, is_finished=is_finished) for target in targets]
    pairs = zip(hypotheses, plan.parts, strict=True)
    return assembled(pipeline, *(make_result(attending(hypothesis, part.segment)) for hypothesis, part in pairs))


def echoed(pipeline: TextPipeline) -> Translation:
    (plan,) = pipeline.plan()
    return assembled(pipeline, *(make_result(make_hypothesis(source_text(part.segment))) for part in plan.parts))


def texts_and_scores(translation: Translation) -> list[tuple[str, float]]:
    return [(hypothesis.text, hypothesis.score) for hypothesis in translation.hypotheses]


def test_each_sentence_becomes_a_segment_that_ends_with_eos() -> None:
    pipeline = make_pipeline("One. Two.", " ", "Three.")

    assert sources(pipeline) == [["One.", "Two."], [], ["Three."]]
    assert all(part.segment.source_ids[-1] == EOS for plan in pipeline.plan() for part in plan.parts)


def test_text_is_one_sentence_without_splitting() -> None:
    assert sources(make_pipeline("  One. Two\nlines. ", split_sentences=False)) == [["One. Two\nlines."]]


@pytest.mark.parametrize(
    ("search", "model_limit", "options", "shortest", "longest"),
    [
        (ANY_LENGTH, 200, {}, 1, len("Hello.") + 1 + 50),
        (ANY_LENGTH, 200, {"target_prefix": "x" * 90}, 91, 90 + 50),
        (ANY_LENGTH, 20, {}, 1, 20),
        (ANY_LENGTH, 20, {"target_prefix": "x" * 19}, 19, 20),
        (SearchConfig(max_target_tokens=512, min_target_tokens=90), 100, {}, 90, 91),
        (SearchConfig(max_target_tokens=7), 100, {"max_target_tokens": 7}, 1, 7),
    ],
    ids=["source", "prefix", "model", "longest prefix", "minimum", "choice"],
)
def test_target_limits_depend_on_source_prefix_model_minimum_and_choice(
    search: SearchConfig, model_limit: int, options: dict[str, Any], shortest: int, longest: int
) -> None:
    model = FakeModel(max_target_tokens=model_limit)

    (segment_search,) = searches(make_pipeline("Hello.", model=model, search=search, **options))

    prefix = tuple(TOKENIZER.encode(options.get("target_prefix", "")))
    limits: Any = {"min_target_tokens": shortest, "max_target_tokens": longest}
    assert segment_search == replace(search, target_prefix=prefix, **limits)


def test_long_sentence_is_decoded_in_parts_that_fit() -> None:
    pipeline = make_pipeline("Short. This one, however, is long.", model=FakeModel(max_source_tokens=16))

    assert sources(pipeline) == [["Short.", "This one,", "however,", "is long."]]
    assert [part.sentence_index for part in pipeline.plan()[0].parts] == [0, 1, 1, 1]


def test_model_too_small_for_one_character_rejects_the_text() -> None:
    with pytest.raises(InvalidFieldError, match="character at 0") as caught:
        make_pipeline("...", "a", model=FakeModel(max_source_tokens=1)).plan()

    assert caught.value.field == "texts[1]"


def test_long_sentence_is_rejected_on_request() -> None:
    model = FakeModel(max_source_tokens=16)
    fitting, too_long = "a" * 14 + ".", "Short. This one is long."

    assert sources(make_pipeline(fitting, model=model, long_sentences=REFUSE)) == [[fitting]]
    with pytest.raises(InvalidFieldError, match=r"18 source tokens .* at character 7, .* at most 16") as caught:
        make_pipeline("A.", too_long, model=model, long_sentences=REFUSE).plan()

    assert caught.value.field == "texts[1]"


@pytest.mark.parametrize(
    ("texts", "options", "prefixes"),
    [
        (("One. Two.", "...", "Three."), {"target_prefix": "Ei"}, ["Ei", "", "Ei"]),
        (("This one, however, is long.",), {"target_prefix": "Ei"}, ["Ei", "", ""]),
        (("One.", "Two."), {"target_prefix": "Ei", "target_prefixes": ("", "Zwei")}, ["", "Zwei"]),
        (("...",), {"target_prefix": "x" * 500}, []),
    ],
    ids=["first sentence", "first part", "one for each text", "nothing to translate"],
)
def test_prefix_begins_the_first_segment_of_a_text(
    texts: tuple[str, ...], options: dict[str, Any], prefixes: list[str]
) -> None:
    pipeline = make_pipeline(*texts, model=FakeModel(max_source_tokens=16), **options)

    assert [TOKENIZER.decode(search.target_prefix) for search in searches(pipeline)] == prefixes


@pytest.mark.parametrize(
    ("prefixes", "field"),
    [
        ({"target_prefix": "abcd"}, "options.target_prefix"),
        ({"target_prefixes": ("", "abcd")}, "target_prefixes[1]"),
        ({"target_prefix": "a☃"}, "options.target_prefix"),
    ],
    ids=["too long", "one too long", "unknown character"],
)
def test_invalid_prefix_is_rejected(prefixes: dict[str, Any], field: str) -> None:
    limits: dict[str, Any] = {"max_target_tokens": 4, "search": SearchConfig(max_target_tokens=4)}

    assert searches(make_pipeline("One.", target_prefix="abc", **limits))
    with pytest.raises(InvalidFieldError) as caught:
        make_pipeline("One.", "Two.", **limits, **prefixes).plan()

    assert caught.value.field == field


def test_each_segment_samples_with_its_own_seed() -> None:
    search = replace(ANY_LENGTH, sampling=SamplingConfig(temperature=0.5, seed=7))

    first, second = (searches(make_pipeline("One. Two.", "One. Two.", search=search)) for _ in range(2))

    assert first == second
    assert len({one.sampling for one in first}) == 4
    assert all(one.sampling and one.sampling.temperature == 0.5 for one in first)
    assert searches(make_pipeline("One. And. More.", "One. Two.", search=search))[-1] == first[-1]


def test_text_without_words_is_its_own_translation() -> None:
    translation = assembled(make_pipeline(" \n..."))

    assert translation == Translation(hypotheses=(TextHypothesis(text=" \n...", score=0.0),), sentences=())


def test_spans_and_token_counts_are_those_of_the_best_hypothesis() -> None:
    results = [make_result(make_hypothesis("  Jawohl. \n")), make_result(make_hypothesis("Nein."))]

    translation = assembled(make_pipeline(" Yes. No. "), *results)

    assert translation.hypotheses[0].text == " Jawohl. Nein. "
    spans = [(Span(start=1, end=5), Span(start=1, end=8)), (Span(start=6, end=9), Span(start=9, end=14))]
    assert [(sentence.source, sentence.target) for sentence in translation.sentences] == spans
    assert [(each.num_source_tokens, each.num_target_tokens) for each in translation.sentences] == [(5, 12), (4, 6)]


LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run of 3 tokens 12 times in a row")
SHORT_LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run of 1 token 8 times in a row")
LONG = Degeneration(kind=DegenerationKind.LENGTH_RATIO, detail="90 tokens for 4")


def guarded(*found: Degeneration, remaining: Sequence[Degeneration] = (), is_replaced: bool = True) -> SegmentResult:
    report = DegenerationReport(found=found, remaining=tuple(remaining), is_replaced=is_replaced) if found else None
    return replace(make_result(make_hypothesis("a")), degeneration=report)


def warnings_about(*results: SegmentResult, is_truncated: bool = False) -> list[TranslationWarning]:
    sentence = SentenceAlignment(
        source=Span(start=0, end=1),
        target=Span(start=0, end=1),
        num_source_tokens=70,
        num_target_tokens=2,
        is_truncated=is_truncated,
        is_split=len(results) > 1,
    )
    return list(sentence_warnings(sentence, results, sentence_index=3, max_source_tokens=64, max_target_tokens=9))


@pytest.mark.parametrize(
    ("result", "messages"),
    [
        (guarded(), []),
        (guarded(LOOP), [f"{LOOP.detail}; redecoding fixed it"]),
        (guarded(LOOP, remaining=[SHORT_LOOP]), [f"{LOOP.detail}; redecoding still gave {SHORT_LOOP.detail}"]),
        (guarded(LOOP, remaining=[LOOP], is_replaced=False), [f"{LOOP.detail}; redecoding did not help"]),
        (guarded(LOOP, remaining=[LONG]), [f"{LOOP.detail}; redecoding fixed it", f"{LONG.detail}, after redecoding"]),
        (guarded(LOOP, LONG), [f"{LOOP.detail}; redecoding fixed it", f"{LONG.detail}; redecoding fixed it"]),
    ],
    ids=["none", "fixed", "better", "no help", "other", "both fixed"],
)
def test_warning_reports_the_degeneration_and_the_effect_of_redecoding(
    result: SegmentResult, messages: list[str]
) -> None:
    assert [warning.message for warning in warnings_about(result)] == messages


def test_warnings_name_limits_and_parts() -> None:
    split, repetition = warnings_about(guarded(), guarded(LOOP))
    (truncated,) = warnings_about(guarded(), is_truncated=True)

    assert [split.kind, repetition.kind] == [WarningKind.SOURCE_SPLIT, WarningKind.REPETITION]
    assert split.message == "decoded in 2 parts: 70 source tokens exceed the model limit of 64"
    assert repetition.message.startswith(f"part 2 of 2: {LOOP.detail}")
    assert truncated.message == "truncated at the limit of 9 target tokens"
    assert {warning.sentence_index for warning in (split, repetition, truncated)} == {3}


@pytest.mark.parametrize("kind", DegenerationKind)
def test_every_degeneration_has_a_warning_of_its_kind(kind: DegenerationKind) -> None:
    (warning,) = warnings_about(guarded(Degeneration(kind=kind, detail="a")))

    assert warning.kind.value == kind.value


def test_warnings_are_about_their_sentence() -> None:
    model = FakeModel(max_source_tokens=16)
    pipeline = make_pipeline("A. This one, however, is long. B.", model=model)
    finished = make_result(make_hypothesis("x"))
    cut_off = make_result(make_hypothesis("x,", is_finished=False))

    translation = assembled(pipeline, finished, finished, cut_off, finished, guarded(LOOP))

    assert [(warning.kind, warning.sentence_index) for warning in translation.warnings] == [
        (WarningKind.SOURCE_SPLIT, 1),
        (WarningKind.TRUNCATED, 1),
        (WarningKind.REPETITION, 2),
    ]
    assert translation.warnings[1].message == f"truncated at the limit of {len('This one,') + 1 + 50} target tokens"
    assert [sentence.is_split for sentence in translation.sentences] == [False, True, False]
    assert [sentence.is_truncated for sentence in translation.sentences] == [False, True, False]
    assert translation.sentences[1].source == Span(start=3, end=30)


def test_hypotheses_of_a_text_are_the_best_combinations_of_its_sentences() -> None:
    results = [
        make_result(make_hypothesis("Ja.", score=-1.0), make_hypothesis("Jo.", score=-4.0)),
        make_result(make_hypothesis("Nein.", score=-2.0), make_hypothesis("Nö.", score=-3.0)),
    ]

    translation = assembled(make_pipeline("Yes. No.", search=SearchConfig(num_hypotheses=3)), *results)

    assert texts_and_scores(translation) == [("Ja. Nein.", -3.0), ("Ja. Nö.", -4.0), ("Jo. Nein.", -6.0)]


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [
        ([("", -1.0), ("Ja.", -2.0), (" Ja. ", -3.0), ("Jo.", -4.0)], [("Ja.", -2.0), ("Jo.", -4.0)]),
        ([("", -1.0), (" ", -2.0)], [("", -1.0)]),
    ],
    ids=["texts", "only empty"],
)
def test_beam_search_returns_distinct_texts_and_an_empty_one_only_alone(
    hypotheses: list[tuple[str, float]], expected: list[tuple[str, float]]
) -> None:
    result = make_result(*(make_hypothesis(text, score=score) for text, score in hypotheses))

    translation = assembled(make_pipeline("Yes.", search=SearchConfig(num_hypotheses=4)), result)

    assert texts_and_scores(translation) == expected
    assert translation.sentences[0].num_target_tokens == len(expected[0][0]) + 1


def test_combinations_of_sentences_are_distinct_texts() -> None:
    results = [
        make_result(make_hypothesis("Ja."), make_hypothesis(" Ja."), make_hypothesis("Ja. Ja.", score=-4.0)),
        make_result(make_hypothesis("Nein."), make_hypothesis("Ja. Nein.", score=-2.0)),
    ]

    translation = assembled(make_pipeline("Yes. No.", search=SearchConfig(num_hypotheses=4)), *results)

    assert texts_and_scores(translation) == [("Ja. Nein.", -2.0), ("Ja. Ja. Nein.", -3.0), ("Ja. Ja. Ja. Nein.", -6.0)]


def test_samples_may_repeat_and_be_empty() -> None:
    pipeline = make_pipeline("Yes.", search=SearchConfig(num_hypotheses=3, sampling=SamplingConfig()))

    translation = assembled(pipeline, make_result(make_hypothesis("Ja."), make_hypothesis("Ja."), make_hypothesis("")))

    assert [hypothesis.text for hypothesis in translation.hypotheses] == ["Ja.", "Ja.", ""]


def test_tokens_scores_and_attention_are_returned_only_on_request() -> None:
    full = attended(make_pipeline("One", return_tokens=True, return_scores=True), "c").hypotheses[0]
    bare = attended(make_pipeline("One"), "c").hypotheses[0]

    assert (full.tokens, full.token_log_probs) == (("c", "</s>"), (-1.0, -1.0))
    assert bare == TextHypothesis(text="c", score=-1.0)
    assert not make_pipeline("One.").plan()[0].parts[0].segment.wants_attention


def linked_texts(text: str, translation: Translation) -> list[tuple[str, str]]:
    target = translation.hypotheses[0].text
    return [
        (text[link.source.start : link.source.end], target[link.target.start : link.target.end])
        for link in translation.hypotheses[0].alignment
    ]


def test_links_index_the_whole_text_and_the_whole_translation() -> None:
    text = "- One, two.\n\nSee?"

    translation = attended(make_pipeline(text, return_alignment=True), "  Uno, due.", "see!")

    assert translation.hypotheses[0].text == "- Uno, due.\n\nsee?"
    assert linked_texts(text, translation)[-4:] == [("S", "s"), ("e", "e"), ("e", "e"), ("?", "?")]
    assert "".join(target for _, target in linked_texts(text, translation)) == "Uno,due.see?"


def test_links_of_a_split_sentence_index_the_whole_text() -> None:
    text = "This one, however, is long."
    pipeline = make_pipeline(text, model=FakeModel(max_source_tokens=16), return_alignment=True)

    translation = attended(pipeline, "This one,", "however,", "is long.")

    assert all(source == target for source, target in linked_texts(text, translation))
    assert "".join(target for _, target in linked_texts(text, translation)) == text.replace(" ", "")


def test_last_token_of_an_unfinished_hypothesis_is_linked() -> None:
    translation = attended(make_pipeline("Yes.", return_alignment=True), "Ja", is_finished=False)

    assert linked_texts("Yes.", translation) == [("Y", "J"), ("e", "a")]


class TaggedTokenizer(CharacterTokenizer):
    """Tokenizer of a multilingual model, with a tag before every source and target."""

    source_prefix = (2000 + FIRST_CHARACTER,)
    target_prefix = (2001 + FIRST_CHARACTER,)

    def decode(self, token_ids: Sequence[int]) -> str:
        return super().decode([token_id for token_id in token_ids if token_id not in self.target_prefix])


def test_segments_have_the_tags_and_the_suffix_of_the_model() -> None:
    class WithoutEos(TaggedTokenizer):
        source_suffix = ()

    pipeline = make_pipeline("One. Two.", target_prefix="Ei", model=FakeModel(tokenizer=WithoutEos()))

    (plan,) = pipeline.plan()

    segments = [part.segment for part in plan.parts]
    assert [segment.source_ids for segment in segments] == [
        (2004, *TOKENIZER.encode(text)) for text in ("One.", "Two.")
    ]
    assert [segment.search.target_prefix for segment in segments] == [(2005, *TOKENIZER.encode("Ei")), (2005,)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("☃ Done", ["Done"]),
        ("Done ☃", ["Done"]),
        ("☃ ☃ ☃ Done ☃", ["Done"]),
        ("☃\xa0Done.", ["Done."]),
        ("☃ One. ☃ Two.", ["One.", "Two."]),
        ("Go ☃ now", ["Go 2013 now"]),  # inside
        ("Go ☃!", ["Go 2013!"]),
        ("☃Go", ["2013 Go"]),  # joined with the word
        ("{n} Go", ["2013 Go"]),  # a word
        ("☃", []),
        ("☃ {n} ☃", []),
        ("%%1$dme@x.orghttps://a.b/c?d=1", ["2013 1947 1985://a.b/c?d=1"]),  # the spaces are of the placeholders
        ("☃{n} Go {n}☃", ["2013 Go 1947"]),
    ],
)
def test_symbols_at_the_edges_are_not_read(text: str, read: list[str]) -> None:
    pipeline = make_pipeline(text)

    assert sources(pipeline) == [read]
    assert (
        assembled(make_pipeline(text), *(make_result(make_hypothesis(part)) for part in read)).hypotheses[0].text
        == text
    )


def test_tags_count_as_tokens() -> None:
    model = FakeModel(tokenizer=TaggedTokenizer(), max_source_tokens=6)

    assert len(make_pipeline("One.", model=model).plan()[0].parts) == 1
    with pytest.raises(InvalidFieldError, match=r"7 source tokens .* at most 6"):
        make_pipeline("Five.", model=model, long_sentences=REFUSE).plan()
    with pytest.raises(InvalidFieldError, match="at least 2") as caught:
        make_pipeline("...", "One.", max_target_tokens=1, model=model).plan()
    assert caught.value.field == "options.max_target_tokens"


def test_tags_are_not_linked() -> None:
    text = "One, see?"
    pipeline = make_pipeline(text, return_alignment=True, model=FakeModel(tokenizer=TaggedTokenizer()))

    translation = attended(pipeline, chr(2001) + "Uno, see!")

    assert linked_texts(text, translation)[-4:] == [("s", "s"), ("e", "e"), ("e", "e"), ("?", "?")]
    assert "".join(target for _, target in linked_texts(text, translation)) == "Uno,see?"


def test_attention_is_returned_for_each_segment_with_the_pieces_of_both_sides() -> None:
    pipeline = make_pipeline("Yes. No.", return_attention=AttentionDetail.ALL_HEADS)

    first, second = attended(pipeline, "Ja.", "Ne.").hypotheses[0].attention

    assert first.source_pieces == ("Y", "e", "s", ".", "</s>")
    assert second.target_pieces == ("N", "e", ".", "</s>")
    assert (first.layer, first.weights.shape, second.weights.shape) == (1, (3, 4, 5), (3, 4, 4))


@pytest.mark.parametrize(
    "options",
    [{"return_alignment": True}, {"return_attention": AttentionDetail.AVERAGED}],
    ids=["alignment", "attention"],
)
def test_result_without_requested_attention_is_an_engine_error(options: dict[str, Any]) -> None:
    pipeline = make_pipeline("Yes.", **options)

    assert pipeline.plan()[0].parts[0].segment.wants_attention
    with pytest.raises(EngineError):
        assembled(pipeline, make_result(make_hypothesis("Ja.")))


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
def test_markup_terms_and_long_encodings_cost_more(text: str, options: dict[str, Any], cost: int) -> None:
    pipeline = make_pipeline(text, **options)

    assert pipeline.costs_more_than(cost - 1)
    assert not pipeline.costs_more_than(cost)
