"""The steps of a translation: first and second searches, and the choice between their results."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights
from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    DegenerationReport,
    SamplingConfig,
    SearchConfig,
    Segment,
    SegmentResult,
    WarningKind,
)
from dragoman_service.text.confidence import FEATURES
from dragoman_service.text.pipeline import (
    Outcome,
    Searches,
    Steps,
    TextPipeline,
    advance,
    translate_offline,
    translation_steps,
)
from tests.unit.text.text_fakes import (
    FIRST_CHARACTER,
    TOKENIZER,
    CharacterTokenizer,
    FakeModel,
    garble,
    make_hypothesis,
    make_request,
    make_result,
    source_text,
)

SEARCH = SearchConfig(max_target_tokens=512, repetition_guard=True)
LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a loop")


def pipeline_of(
    *texts: str, search: SearchConfig = SEARCH, model: FakeModel | None = None, **options: Any
) -> TextPipeline:
    return TextPipeline(make_request(*texts, **options), model=model or FakeModel(), search=search)


def answers(*targets: str, **options: Any) -> list[SegmentResult]:
    return [make_result(make_hypothesis(target, **options)) for target in targets]


def started(pipeline: TextPipeline) -> tuple[Steps, Searches]:
    steps = translation_steps(pipeline)
    state = advance(steps)
    assert isinstance(state, Searches)
    assert not state.is_second
    return steps, state


def second(pipeline: TextPipeline, *first: SegmentResult) -> Searches | Outcome:
    """Return the searches or the outcome after the first results."""
    steps, _ = started(pipeline)
    return advance(steps, first)


def finished(pipeline: TextPipeline, first: Sequence[SegmentResult], again: Sequence[SegmentResult] | None) -> Outcome:
    steps, _ = started(pipeline)
    state = advance(steps, first)
    assert isinstance(state, Searches)
    assert state.is_second
    state = advance(steps, again)
    assert isinstance(state, Outcome)
    return state


def text_of(outcome: Outcome) -> str:
    (translation,) = outcome.translations
    return translation.hypotheses[0].text


def kinds_of(outcome: Outcome) -> list[WarningKind]:
    return [warning.kind for translation in outcome.translations for warning in translation.warnings]


def test_first_searches_are_the_segments_of_all_texts() -> None:
    steps, state = started(pipeline_of("One man. Two men.", "Three men."))

    assert [source_text(segment) for segment in state.segments] == ["One man.", "Two men.", "Three men."]
    outcome = advance(steps, answers("Ein Mann.", "Zwei Männer.", "Drei Männer."))
    assert isinstance(outcome, Outcome)
    assert [each.hypotheses[0].text for each in outcome.translations] == ["Ein Mann. Zwei Männer.", "Drei Männer."]
    assert (outcome.num_second, outcome.num_replaced, outcome.is_skipped) == (0, 0, False)
    assert len(outcome.plans) == 2
    assert len(outcome.results) == 3


@pytest.mark.parametrize("texts", [(), ("",), (" \n", "..."), ("{name}",)])
def test_texts_without_words_need_no_search(texts: tuple[str, ...]) -> None:
    outcome = advance(translation_steps(pipeline_of(*texts)))

    assert isinstance(outcome, Outcome)
    assert tuple(each.hypotheses[0].text for each in outcome.translations) == texts


def test_steps_of_some_plans_translate_these() -> None:
    pipeline = pipeline_of("One man.", "Two men.")

    state = advance(translation_steps(pipeline, pipeline.plan()[1:]))

    assert isinstance(state, Searches)
    assert [source_text(segment) for segment in state.segments] == ["Two men."]


def test_first_searches_need_results() -> None:
    steps, _ = started(pipeline_of("One man."))

    with pytest.raises(ValueError, match="first searches"):
        advance(steps, None)


@pytest.mark.parametrize("results", [(), ("Ein Mann.", "Zwei.")])
def test_each_segment_needs_one_result(results: tuple[str, ...]) -> None:
    steps, _ = started(pipeline_of("One man."))

    with pytest.raises(ValueError, match="zip"):
        advance(steps, answers(*results))


_REPAIRED = [
    # text, first target, source of the second search, second target
    ("We use GitHub daily.", "Wir nutzen es täglich.", "We use 2013 daily.", "Wir nutzen 2013 täglich."),
    ("Ask McDonald about it.", "Frag ihn danach.", "Ask 2013 about it.", "Frag 2013 danach."),
    ("Save", "Save", "save", "speichern"),
    ("Log Out", "log out", "log out", "abmelden"),
    ("we saw some dogs", "we saw some dogs", "we saw some dogs", "wir sahen einige Hunde"),
    ("We saw dogs.", "", "We saw dogs.", "Wir sahen Hunde."),
    ("We saw dogs.", "\ufffd", "We saw dogs.", "Wir sahen Hunde."),
    ("Open {name} now.", "Öffne jetzt.", "Open 2013 now.", "Öffne jetzt 2013."),
    ("Open {name} now.", "Öffne 2013 2013.", "Open 2013 now.", "Öffne jetzt 2013."),
    ("Send {a} to {b}.", "Sende 2013.", "Send 2013 to 1947.", "Sende 2013 an 1947."),
    ("It costs $5.50 and {x}.", "Es kostet 2013.", "It costs 2013 and 1947.", "Es kostet 2013 und 1947."),
    ("Call get_user first.", "Rufe zuerst.", "Call 2013 first.", "Rufe zuerst 2013."),
]


@pytest.mark.parametrize(
    ("text", "first", "source", "target"), _REPAIRED, ids=[f"{case[0]} {case[1]}" for case in _REPAIRED]
)
def test_violations_are_decoded_again_and_the_better_result_is_chosen(
    text: str, first: str, source: str, target: str
) -> None:
    pipeline = pipeline_of(text)
    state = second(pipeline, *answers(first))

    outcome = finished(pipeline, answers(first), answers(target))

    assert isinstance(state, Searches)
    assert [source_text(segment) for segment in state.segments] == [source]
    assert (outcome.num_second, outcome.num_replaced, outcome.is_skipped) == (1, 1, False)
    assert kinds_of(outcome) == []
    assert [attempt.result for attempt in outcome.first] == answers(first)
    assert outcome.results == answers(target)


@pytest.mark.parametrize(("text", "first", "target"), [(case[0], case[1], case[3]) for case in _REPAIRED])
def test_first_result_stays_without_second_results(text: str, first: str, target: str) -> None:
    pipeline = pipeline_of(text)

    skipped = finished(pipeline, answers(first), None)

    alone = finished(pipeline, answers(first), answers(first))
    assert skipped.translations[0].hypotheses == alone.translations[0].hypotheses
    assert skipped.results == answers(first)
    assert WarningKind.REPAIR_SKIPPED in kinds_of(skipped)
    assert WarningKind.REPAIR_SKIPPED not in kinds_of(alone)
    assert (skipped.num_second, skipped.num_replaced, skipped.is_skipped) == (1, 0, True)


@pytest.mark.parametrize(("text", "first", "target"), [(case[0], case[1], case[3]) for case in _REPAIRED])
def test_second_result_that_is_not_better_is_dropped(text: str, first: str, target: str) -> None:
    outcome = finished(pipeline_of(text), answers(first), answers(first))

    assert outcome.chosen[0] is outcome.first[0]
    assert (outcome.num_second, outcome.num_replaced, outcome.is_skipped) == (1, 0, False)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("We saw three dogs.", "Wir sahen 3 Hunde."),
        ("We saw dogs", "Wir sahen Hunde."),
        ("We use GitHub daily.", "Wir nutzen GitHub täglich."),
        ("Open {name} now.", "Öffne jetzt 2013."),
        ("Hi {a} and {b}!", "Hallo 1947 und 2013!"),
        ("Computers are useful today.", "Computer sind heute nützlich."),
        ("STOP", "HALT"),
        ("Save", "Speichern"),
        ("Wait...", "Warte..."),
        ("She said “no” twice.", 'Sie sagte zweimal "nein".'),
        ("Cut it off here.", "Schneide es hier ab"),
    ],
)
def test_translation_without_violations_is_not_decoded_again(text: str, target: str) -> None:
    outcome = second(pipeline_of(text), *answers(target))

    assert isinstance(outcome, Outcome)
    assert outcome.num_second == 0
    assert kinds_of(outcome) == []


def test_only_parts_with_violations_are_decoded_again() -> None:
    pipeline = pipeline_of("One man. Save {x} now. Two men.", "Save", "Three men.")
    first = answers("Ein Mann.", "Speichere jetzt.", "Zwei Männer.", "Save", "Drei Männer.")

    outcome = finished(pipeline, first, answers("Speichere 2013 jetzt.", "speichern"))

    texts = [each.hypotheses[0].text for each in outcome.translations]
    assert texts == ["Ein Mann. Speichere {x} jetzt. Zwei Männer.", "Speichern", "Drei Männer."]
    assert (outcome.num_second, outcome.num_replaced) == (2, 2)


def test_some_second_results_may_be_better() -> None:
    pipeline = pipeline_of("Save", "Open")

    outcome = finished(pipeline, answers("Save", "Open"), answers("speichern", "open"))

    assert [each.hypotheses[0].text for each in outcome.translations] == ["Speichern", "Open"]
    assert (outcome.num_second, outcome.num_replaced) == (2, 1)


class ByteTokenizer(CharacterTokenizer):
    """A tokenizer with tokens of single bytes."""

    byte_ids = frozenset((7, 8))


@pytest.mark.parametrize(
    ("text", "target", "changes"),
    [
        ("we saw some dogs", "we saw some dogs", {"avoids_source": True, "no_repeat_ngram_size": 3}),
        ("We saw dogs.", "", {"min_target_tokens": 2}),
        ("We saw dogs.", "Wir \ufffd Hunde.", {"suppressed_tokens": frozenset((7, 8))}),
        ("We use GitHub daily.", "Wir nutzen es täglich.", {}),
    ],
)
def test_second_search_differs_only_by_its_repair(text: str, target: str, changes: dict[str, Any]) -> None:
    pipeline = pipeline_of(text, model=FakeModel(tokenizer=ByteTokenizer()))
    _, state = started(pipeline)

    again = second(pipeline, *answers(target))

    assert isinstance(again, Searches)
    assert again.segments[0].search == replace(state.segments[0].search, **changes)


@pytest.mark.parametrize(
    ("target", "prefix"),
    [
        ("Sende an 1947 heute.", "Sende 2013"),
        ("Sende 2013 heute.", "Sende 2013 1947"),
        ("Heute.", "Heute 2013 1947"),
        ("Sende 2013 an 1947 2013 heute.", ""),  # only duplicated
        ("2013 2013 1947", ""),
    ],
)
def test_second_search_begins_with_the_first_translation_up_to_lost_placeholders(target: str, prefix: str) -> None:
    again = second(pipeline_of("Send {a} to {b} today."), *answers(target))

    assert isinstance(again, Searches)
    (segment,) = again.segments
    assert TOKENIZER.decode(segment.search.target_prefix) == prefix
    assert segment.search.no_repeat_ngram_size == len("2013")


def degenerate(result: SegmentResult) -> SegmentResult:
    return replace(result, degeneration=DegenerationReport(found=(LOOP,), remaining=(), is_replaced=True))


@pytest.mark.parametrize(("text", "target"), [(case[0], case[1]) for case in _REPAIRED])
def test_parts_that_are_never_decoded_again(text: str, target: str) -> None:
    sampling = replace(SEARCH, sampling=SamplingConfig(seed=1))
    (result,) = answers(target)

    assert isinstance(second(pipeline_of(text), degenerate(result)), Outcome)
    assert isinstance(second(pipeline_of(text, search=sampling), result), Outcome)
    assert isinstance(second(pipeline_of(text, target_prefix="x"), result), Outcome)


def test_tags_of_a_multilingual_model_are_no_prefix_of_the_caller() -> None:
    class TaggedTokenizer(CharacterTokenizer):
        target_prefix = (2001 + FIRST_CHARACTER,)

        def decode(self, token_ids: Sequence[int]) -> str:
            return super().decode([token_id for token_id in token_ids if token_id not in self.target_prefix])

    pipeline = pipeline_of("Send {a} today.", model=FakeModel(tokenizer=TaggedTokenizer()))

    again = second(pipeline, *answers(chr(2001) + "Sende heute."))

    assert isinstance(again, Searches)
    assert again.segments[0].search.target_prefix[0] == 2001 + FIRST_CHARACTER


def test_text_that_grows_beyond_the_model_is_not_decoded_again() -> None:
    text = "ask AbC"
    longest = len(text) + 1

    assert isinstance(second(pipeline_of(text), *answers("frag")), Searches)
    assert isinstance(second(pipeline_of(text, model=FakeModel(max_source_tokens=longest)), *answers("frag")), Outcome)


def two(first: str, other: str, *, scores: tuple[float, float] = (-1.0, -2.0)) -> SegmentResult:
    return make_result(make_hypothesis(first, score=scores[0]), make_hypothesis(other, score=scores[1]))


NBEST = replace(SEARCH, num_hypotheses=2)


def test_hypotheses_with_fewer_hard_violations_come_first() -> None:
    pipeline = pipeline_of("Open {name} now.", search=NBEST)

    outcome = second(pipeline, two("Öffne jetzt.", "Öffne jetzt 2013."))

    assert isinstance(outcome, Outcome)  # the best candidate needs no repair
    (translation,) = outcome.translations
    assert [each.score for each in translation.hypotheses] == [-2.0, -1.0]
    assert translation.hypotheses[0].text == "Öffne jetzt {name}."
    assert translation.warnings == ()


def test_combinations_of_sentences_are_ordered_by_hard_violations() -> None:
    pipeline = pipeline_of("Open {a} now. Close {b} now.", search=NBEST)

    outcome = second(pipeline, two("Öffne jetzt.", "Öffne jetzt 2013."), two("Schließe 2013 jetzt.", "Zu."))

    assert isinstance(outcome, Outcome)
    texts = [each.text for each in outcome.translations[0].hypotheses]
    assert texts[0] == "Öffne jetzt {a}. Schließe {b} jetzt."


def test_soft_violations_do_not_change_the_order() -> None:
    outcome = second(
        pipeline_of("We saw it", search=NBEST, repetition_guard=False), two("Wir sahen es?!", "Wir sahen das")
    )

    assert isinstance(outcome, Outcome)
    assert [each.score for each in outcome.translations[0].hypotheses] == [-1.0, -2.0]


@pytest.mark.parametrize("options", [{"target_prefix": "Ö"}, {"sampling": True}])
def test_order_of_the_search_stays_with_a_prefix_or_samples(options: dict[str, Any]) -> None:
    search = replace(NBEST, sampling=SamplingConfig(seed=1)) if options.pop("sampling", False) else NBEST
    pipeline = pipeline_of("Open {name} now.", search=search, **options)

    outcome = second(pipeline, two("Öffne jetzt.", "Öffne jetzt 2013."))

    assert isinstance(outcome, Outcome)
    assert [each.score for each in outcome.translations[0].hypotheses] == [-1.0, -2.0]


@pytest.mark.parametrize(("scores", "is_replaced"), [((-1.0, -0.5), True), ((-1.0, -1.0), True), ((-1.0, -2.0), False)])
def test_fewer_soft_violations_win_only_if_the_translation_is_as_likely(
    scores: tuple[float, float], is_replaced: bool
) -> None:
    first = answers("Wir nutzen es.", score=scores[0])

    outcome = finished(pipeline_of("We use GitHub."), first, answers("Wir nutzen 2013.", score=scores[1]))

    assert bool(outcome.num_replaced) is is_replaced


def test_confidence_of_the_model_decides_about_soft_violations() -> None:
    weights = {**dict.fromkeys(FEATURES, 0.0), "min_log_prob": -1.0}
    confidence = Confidence(
        weights=ConfidenceWeights(**weights), bias=0.0, usual_log_ratio=0.0, good_chrf=40.0, data="nothing"
    )
    model = FakeModel(confidence=confidence)  # which prefers unlikely translations

    outcome = finished(
        pipeline_of("We use GitHub.", model=model),
        answers("Wir nutzen es.", score=-1.0),
        answers("Wir nutzen 2013.", score=-2.0),
    )

    assert outcome.num_replaced == 1


@pytest.mark.parametrize(
    ("text", "target", "bias", "kinds"),
    [
        ("Undo", "Undo", -5.0, [WarningKind.UNTRANSLATED]),
        ("undo", "Undo", -5.0, [WarningKind.UNTRANSLATED]),
        ("UNDO", "Undo", -5.0, [WarningKind.UNTRANSLATED]),
        ("Undo…", "Undo…", -5.0, [WarningKind.UNTRANSLATED]),
        ("U&ndo", "Undo", -5.0, [WarningKind.UNTRANSLATED]),
        ("Undo", "Undo", 0.0, [WarningKind.UNTRANSLATED]),
        ("Undo", "Undo", 5.0, []),
        ("HAllo", "HAllo", 5.0, [WarningKind.UNTRANSLATED]),
        ("NASA", "NASA", -5.0, [WarningKind.LOW_CONFIDENCE]),
        ("Undo it", "Undo it", -5.0, [WarningKind.LOW_CONFIDENCE]),
        ("Undo", "Umkehren", -5.0, [WarningKind.LOW_CONFIDENCE]),
        ("Undo", "Umkehren", -2.0, []),
    ],
)
def test_sentence_of_low_confidence_has_a_warning(
    text: str, target: str, bias: float, kinds: list[WarningKind]
) -> None:
    weights = ConfidenceWeights(**dict.fromkeys(FEATURES, 0.0))
    confidence = Confidence(weights=weights, bias=bias, usual_log_ratio=0.0, good_chrf=40.0, data="nothing")
    search = replace(SEARCH, repetition_guard=False)
    steps, _ = started(pipeline_of(text, model=FakeModel(confidence=confidence), search=search))

    outcome = advance(steps, answers(target))

    assert isinstance(outcome, Outcome)
    assert kinds_of(outcome) == kinds


def test_fewer_hard_violations_win_at_any_score() -> None:
    outcome = finished(pipeline_of("Open {x} now."), answers("Auf."), answers("Öffne 2013 jetzt.", score=-50.0))

    assert outcome.num_replaced == 1


def test_translation_that_is_cut_off_is_a_hard_violation() -> None:
    cut_off = answers("Wir nutzen 2013", is_finished=False)

    assert finished(pipeline_of("We use GitHub."), answers("Wir nutzen es."), cut_off).num_replaced == 0


def decoder(*rounds: dict[str, str]) -> tuple[list[list[str]], Callable[[list[Segment]], list[SegmentResult]]]:
    """Return the sources of each call, and a decoder that translates by a dictionary for each call."""
    calls: list[list[str]] = []

    def decode(segments: list[Segment]) -> list[SegmentResult]:
        calls.append([source_text(segment) for segment in segments])
        return answers(*(rounds[len(calls) - 1][source] for source in calls[-1]))

    return calls, decode


def test_searches_of_all_requests_are_decoded_together() -> None:
    texts = ("One man.", "Save", "...", "Open {x} now.")
    calls, decode = decoder(
        {"One man.": "Ein Mann.", "Save": "Save", "Open 2013 now.": "Auf."},
        {"save": "speichern", "Open 2013 now.": "Öffne 2013 jetzt."},
    )

    outcomes = translate_offline([translation_steps(pipeline_of(text)) for text in texts], decode)

    assert calls == [["One man.", "Save", "Open 2013 now."], ["save", "Open 2013 now."]]
    assert list(map(text_of, outcomes)) == ["Ein Mann.", "Speichern", "...", "Öffne {x} jetzt."]
    assert [outcome.num_second for outcome in outcomes] == [0, 1, 0, 1]


def test_requests_have_the_same_outcome_alone_and_together() -> None:
    def decode(segments: list[Segment]) -> list[SegmentResult]:
        return [make_result(*answer) for answer in map(garble, segments) if isinstance(answer, tuple)]

    def alone(text: str) -> Outcome:
        steps, state = started(pipeline_of(text))
        following: Searches | Outcome = state
        while isinstance(following, Searches):
            following = advance(steps, decode(following.segments))
        return following

    texts = [case[0] for case in _REPAIRED]

    together = translate_offline([translation_steps(pipeline_of(text)) for text in texts], decode)

    assert [outcome.translations for outcome in together] == [alone(text).translations for text in texts]
    assert sum(outcome.num_second for outcome in together) > 0


def test_nothing_is_decoded_without_requests() -> None:
    assert translate_offline([], lambda _: pytest.fail("decoded")) == []
