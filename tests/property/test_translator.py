import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from service.datatypes import Hypothesis, TranslationOptions, TranslationRequest, TranslationResult
from service.decoding.scoring import rank
from service.telemetry.metrics import Metrics
from service.text.pipeline import best_combinations
from service.translator import Translator
from tests.unit.text.text_fakes import FakeModel, FakeQueue, echo, make_hypothesis, shout

_TEXTS = st.lists(st.text(st.sampled_from("aB1ß.!,  \n\t-é🎉"), max_size=80), min_size=1, max_size=8)
_ROWS = st.lists(
    st.lists(st.tuples(st.integers(-9, 0), st.booleans()), min_size=1, max_size=4).map(
        lambda row: rank(make_hypothesis("a", score=score, is_finished=is_finished) for score, is_finished in row)
    ),
    max_size=4,
)


def _translate(model: FakeModel, texts: list[str], **options: bool) -> TranslationResult:
    translator = Translator(model, metrics=Metrics(CollectorRegistry()))
    request = TranslationRequest(
        texts=tuple(texts), source_language="en", target_language="de", options=TranslationOptions(**options)
    )
    return asyncio.run(translator.translate(request, deadline_s=None))


@given(_TEXTS, st.booleans(), st.integers(3, 40))
def test_texts_translated_into_themselves_come_back_in_order(
    texts: list[str], split_sentences: bool, max_source_tokens: int
) -> None:
    model = FakeModel(FakeQueue(echo), max_source_tokens=max_source_tokens)

    result = _translate(model, texts, split_sentences=split_sentences)

    assert [translation.hypotheses[0].text for translation in result.translations] == texts


@given(_TEXTS, st.integers(3, 40))
def test_target_spans_index_the_translation_and_source_spans_the_text(texts: list[str], max_source_tokens: int) -> None:
    result = _translate(FakeModel(FakeQueue(shout), max_source_tokens=max_source_tokens), texts)

    for text, translation in zip(texts, result.translations, strict=True):
        target = translation.hypotheses[0].text
        for sentence in translation.sentences:
            source = text[sentence.source.start : sentence.source.end]
            assert target[sentence.target.start : sentence.target.end] == source.upper()


@given(_TEXTS, st.integers(3, 40))
def test_counts_add_up_and_segments_fit_the_model(texts: list[str], max_source_tokens: int) -> None:
    queue = FakeQueue(shout)

    result = _translate(FakeModel(queue, max_source_tokens=max_source_tokens), texts)

    sentences = [sentence for translation in result.translations for sentence in translation.sentences]
    assert result.num_source_tokens == sum(sentence.num_source_tokens for sentence in sentences)
    assert result.num_target_tokens == sum(sentence.num_target_tokens for sentence in sentences)
    assert all(1 < len(segment.source_ids) <= max_source_tokens for segment in queue.segments)


def _all_combinations(rows: list[list[Hypothesis]]) -> list[tuple[int, ...]]:
    """Every combination, best first."""

    def key(indices: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        chosen = [row[index] for row, index in zip(rows, indices, strict=True)]
        return sum(not one.is_finished for one in chosen), -sum(one.score for one in chosen), indices

    return sorted(itertools.product(*(range(len(row)) for row in rows)), key=key)


@given(_ROWS, st.integers(1, 16))
def test_the_best_combinations_are_those_of_an_exhaustive_search(rows: list[list[Hypothesis]], count: int) -> None:
    assert best_combinations(rows, count=count) == _all_combinations(rows)[:count]
