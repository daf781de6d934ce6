import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.request import AttentionDetail, NumberFormat, SamplingOptions
from dragoman_service.text.hypotheses import best_combinations
from tests.unit.text.text_fakes import FakeModel, FakeQueue, echo, shout, translate

Rank = tuple[int, bool, float]  # hard violations, whether it is unfinished, negated score

_TEXTS = st.lists(st.text(st.sampled_from("aB1ß.!,  \n\t-é🎉"), max_size=80), min_size=1, max_size=8)
_RANK = st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 9))
_ROWS = st.lists(st.lists(_RANK, min_size=1, max_size=4).map(sorted), max_size=4)
_ONE_SEARCH: dict[str, Any] = {"sampling": SamplingOptions(seed=1)}  # samples are not decoded again
_LENGTHS = st.integers(20, 60)  # room for placeholders


@given(_TEXTS, st.booleans(), st.integers(3, 40))
def test_texts_translated_into_themselves_are_unchanged(
    texts: list[str], split_sentences: bool, max_source_tokens: int
) -> None:
    model = FakeModel(FakeQueue(echo), max_source_tokens=max_source_tokens)

    options: dict[str, Any] = {"number_format": NumberFormat.AS_WRITTEN, "repetition_guard": False}
    result = translate(model, *texts, split_sentences=split_sentences, **options)

    assert [translation.hypotheses[0].text for translation in result.translations] == texts


@given(_TEXTS, st.integers(3, 40))
def test_spans_index_the_translation_and_the_text(texts: list[str], max_source_tokens: int) -> None:
    model = FakeModel(FakeQueue(shout), max_source_tokens=max_source_tokens)

    result = translate(model, *texts, number_format=NumberFormat.AS_WRITTEN)

    for text, translation in zip(texts, result.translations, strict=True):
        target = translation.hypotheses[0].text
        for sentence in translation.sentences:
            source = text[sentence.source.start : sentence.source.end]
            own = target[sentence.target.start : sentence.target.end]
            assert own.casefold() == source.casefold()  # names with inner capitals stay


@given(_TEXTS, st.booleans(), st.integers(3, 40))
def test_links_cover_every_visible_character_in_order(
    texts: list[str], split_sentences: bool, max_source_tokens: int
) -> None:
    model = FakeModel(FakeQueue(shout), max_source_tokens=max_source_tokens)

    result = translate(model, *texts, split_sentences=split_sentences, return_alignment=True)

    for text, translation in zip(texts, result.translations, strict=True):
        target = translation.hypotheses[0].text
        links = translation.hypotheses[0].alignment
        covered = [index for link in links for index in range(link.target.start, link.target.end)]
        assert covered == sorted(set(covered))
        assert all(0 <= link.source.start < link.source.end <= len(text) for link in links)
        assert all(link.target.start < link.target.end <= len(target) and 0 <= link.weight <= 1 for link in links)
        for sentence in translation.sentences:
            uncovered = set(range(sentence.target.start, sentence.target.end)) - set(covered)
            left = {target[index] for index in uncovered if not target[index].isspace()}
            assert not any(map(str.isalnum, left)) if sentence.is_split else not left  # copied between the parts
            covered = [index for index in covered if not sentence.target.start <= index < sentence.target.end]
        assert covered == []


@given(_TEXTS, _LENGTHS)
def test_every_segment_has_attention_whose_rows_sum_to_one(texts: list[str], max_source_tokens: int) -> None:
    queue = FakeQueue(shout)

    options: dict[str, Any] = {"return_attention": AttentionDetail.AVERAGED, **_ONE_SEARCH}
    result = translate(FakeModel(queue, max_source_tokens=max_source_tokens), *texts, **options)

    attention = [one for translation in result.translations for one in translation.hypotheses[0].attention]
    assert [len(one.source_pieces) for one in attention] == [len(segment.source_ids) for segment in queue.segments]
    for one in attention:
        assert one.weights.shape == (1, len(one.target_pieces), len(one.source_pieces))
        assert np.allclose(one.weights.sum(axis=2), 1)


@given(_TEXTS, _LENGTHS)
def test_segments_of_all_searches_fit_the_model(texts: list[str], max_source_tokens: int) -> None:
    queue = FakeQueue(shout)

    translate(FakeModel(queue, max_source_tokens=max_source_tokens), *texts)

    assert all(1 < len(segment.source_ids) <= max_source_tokens for segment in queue.segments)


@given(_TEXTS, _LENGTHS)
def test_token_counts_add_up(texts: list[str], max_source_tokens: int) -> None:
    model = FakeModel(FakeQueue(shout), max_source_tokens=max_source_tokens)

    result = translate(model, *texts, **_ONE_SEARCH)

    sentences = [sentence for translation in result.translations for sentence in translation.sentences]
    assert result.num_source_tokens == sum(sentence.num_source_tokens for sentence in sentences)
    assert result.num_target_tokens == sum(sentence.num_target_tokens for sentence in sentences)


def _all_combinations(rows: list[list[Rank]]) -> list[tuple[int, ...]]:
    """Every combination, best first."""

    def key(indices: tuple[int, ...]) -> tuple[list[float], tuple[int, ...]]:
        chosen = [row[index] for row, index in zip(rows, indices, strict=True)]
        return [sum(rank[place] for rank in chosen) for place in range(3)], indices

    return sorted(itertools.product(*(range(len(row)) for row in rows)), key=key)


@given(_ROWS, st.integers(1, 16))
def test_best_combinations_equal_an_exhaustive_search(rows: list[list[Rank]], count: int) -> None:
    assert best_combinations(rows, count=count) == _all_combinations(rows)[:count]
