import weakref

import numpy as np
import pytest

from dragoman_service.datatypes import SearchConfig
from dragoman_service.decoding.beam_state import BeamState, History, indices_without
from tests.fakes import BOS


def test_new_segments_have_one_live_row_with_bos() -> None:
    state = BeamState.starting([SearchConfig(beam_size=3), SearchConfig(beam_size=1)], bos_id=BOS)

    assert state.num_live_rows == 1
    assert state.tokens[:, 0].tolist() == [BOS, BOS]
    assert np.isneginf(state.log_probs[:, 1:]).all()


def test_wider_beam_can_join_a_narrower_batch() -> None:
    state = BeamState.starting([SearchConfig(beam_size=2)], bos_id=BOS)

    state.append(BeamState.starting([SearchConfig(beam_size=5)], bos_id=BOS))

    assert state.widest_beam == 5
    assert state.log_probs.shape == (2, 5)


def test_segments_are_kept_in_the_order_given() -> None:
    state = BeamState.starting([SearchConfig(beam_size=size) for size in (1, 2, 3)], bos_id=BOS)

    state.keep([2, 0])

    assert [search.beam_size for search in state.searches] == state.beam_sizes.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("leaving", "kept"), [([], [0, 1, 2, 3]), ([1], [0, 3, 2]), ([3], [0, 1, 2]), ([0, 3], [2, 1]), ([0, 1, 2, 3], [])]
)
def test_the_last_segments_fill_the_gaps(leaving: list[int], kept: list[int]) -> None:
    assert indices_without(4, leaving) == kept


def test_rows_added_by_a_wider_segment_copy_the_first_row() -> None:
    narrow = BeamState.starting([SearchConfig(beam_size=2)], bos_id=1)
    narrow.tokens, narrow.parents = np.array([[7, 8]]), np.array([[1, 0]])

    narrow.append(BeamState.starting([SearchConfig(beam_size=4)], bos_id=1))

    assert narrow.tokens.tolist() == [[7, 8, 7, 7], [1, 1, 1, 1]]
    assert narrow.parents.tolist() == [[1, 0, 1, 1], [0, 0, 0, 0]]


def take_step(history: History, tokens: list[list[int]], parents: list[list[int]]) -> None:
    """Let each segment take a step; the log-probability of a token is its number, negative."""
    history.record(np.array(tokens), np.array(parents), -np.array(tokens, np.float32))


def test_hypothesis_is_traced_through_its_parents() -> None:
    history = History(1)
    take_step(history, [[10, 11]], [[0, 0]])
    take_step(history, [[20, 21]], [[1, 0]])
    take_step(history, [[30, 31]], [[1, 0]])

    assert history.trace(0, row=0, length=3) == ([10, 21, 30], [-10.0, -21.0, -30.0])
    assert history.trace(0, row=1, length=3) == ([11, 20, 31], [-11.0, -20.0, -31.0])
    assert history.trace(0, row=1, length=0) == ([], [])


def test_segments_can_move_and_join_late() -> None:
    history = History(2)
    take_step(history, [[10], [11]], [[0], [0]])
    history.keep([1])
    take_step(history, [[20]], [[0]])
    history.add_segments(1)
    take_step(history, [[30], [31]], [[0], [0]])
    history.keep([1, 0])
    take_step(history, [[41], [40]], [[0], [0]])

    assert history.trace(1, row=0, length=4)[0] == [11, 20, 30, 40]
    assert history.trace(0, row=0, length=2)[0] == [31, 41]


def test_steps_are_freed_with_the_last_segment_that_took_them() -> None:
    history, tokens = History(1), [np.array([[10]]), np.array([[20], [21]])]
    references = [weakref.ref(array) for array in tokens]
    history.record(tokens[0], np.array([[0]]), np.zeros((1, 1), np.float32))
    history.add_segments(1)
    history.record(tokens[1], np.array([[0], [0]]), np.zeros((2, 1), np.float32))
    tokens.clear()

    history.keep([1])

    assert [reference() is None for reference in references] == [True, False]
    assert history.trace(0, row=0, length=1)[0] == [21]

    history.keep([])

    assert [reference() is None for reference in references] == [True, True]
