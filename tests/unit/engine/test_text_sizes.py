import pytest

from service.datatypes import SearchConfig
from service.engine.forecast import TextSizes
from tests.fakes import make_segment

SEARCH = SearchConfig(beam_size=2)


def learned(*, num_characters: int, sources: list[int]) -> TextSizes:
    sizes = TextSizes()
    for _ in range(100):
        sizes.learn(num_characters, [make_segment(*[7] * (num_tokens - 1)) for num_tokens in sources])
    return sizes


def test_nothing_is_guessed_before_anything_was_seen() -> None:
    assert TextSizes().stand_ins(100, SEARCH) == []


def test_nothing_is_learned_from_segments_of_unknown_texts() -> None:
    assert learned(num_characters=0, sources=[10]).stand_ins(100, SEARCH) == []


def test_a_text_is_expected_to_become_what_such_texts_became() -> None:
    segments = learned(num_characters=120, sources=[10, 20]).stand_ins(240, SEARCH)

    assert [len(segment.source_ids) for segment in segments] == [15] * 4
    assert {segment.search for segment in segments} == {SEARCH}


@pytest.mark.parametrize("num_characters", [1, 5])
def test_the_shortest_text_is_one_segment(num_characters: int) -> None:
    segments = learned(num_characters=120, sources=[10, 20]).stand_ins(num_characters, SEARCH)

    assert [len(segment.source_ids) for segment in segments] == [max(1, round(num_characters / 4))]
