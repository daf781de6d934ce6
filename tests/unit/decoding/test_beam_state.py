import numpy as np
import pytest

from service.datatypes import SearchConfig
from service.decoding.beam_state import BeamState, History, indices_without
from tests.fakes import BOS


def take_step(history: History, step: int, tokens: list[int], parents: list[int]) -> None:
    width = np.array([tokens])
    history.record(np.array([step]), width, np.array([parents]), -width.astype(np.float32))


def test_a_hypothesis_is_read_back_through_its_parents() -> None:
    history = History.empty(1, 2)
    take_step(history, 0, [10, 11], [0, 0])
    take_step(history, 1, [20, 21], [1, 0])
    take_step(history, 2, [30, 31], [1, 0])

    assert history.trace(0, row=0, length=3) == ([10, 21, 30], [-10.0, -21.0, -30.0])
    assert history.trace(0, row=1, length=3) == ([11, 20, 31], [-11.0, -20.0, -31.0])
    assert history.trace(0, row=1, length=0) == ([], [])


def test_a_history_grows_with_its_hypotheses() -> None:
    history = History.empty(1, 1)
    for step in range(200):
        take_step(history, step, [step], [0])

    assert history.trace(0, row=0, length=200)[0] == list(range(200))


def test_newcomers_have_one_live_row_holding_bos() -> None:
    state = BeamState.starting([SearchConfig(beam_size=3), SearchConfig(beam_size=1)], bos_id=BOS)

    assert state.num_live_rows == 1
    assert state.tokens[:, 0].tolist() == [BOS, BOS]
    assert np.isneginf(state.log_probs[:, 1:]).all()


def test_a_wider_beam_may_join_a_narrower_batch() -> None:
    state = BeamState.starting([SearchConfig(beam_size=2)], bos_id=BOS)

    state.append(BeamState.starting([SearchConfig(beam_size=5)], bos_id=BOS))

    assert state.widest_beam == 5
    assert state.log_probs.shape == (2, 5)
    assert state.history.tokens.shape[2] == 5


def test_segments_are_kept_in_the_order_given() -> None:
    state = BeamState.starting([SearchConfig(beam_size=size) for size in (1, 2, 3)], bos_id=BOS)

    state.keep([2, 0])

    assert [search.beam_size for search in state.searches] == state.beam_sizes.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("leaving", "kept"), [([], [0, 1, 2, 3]), ([1], [0, 3, 2]), ([3], [0, 1, 2]), ([0, 3], [2, 1]), ([0, 1, 2, 3], [])]
)
def test_the_last_ones_fill_the_holes(leaving: list[int], kept: list[int]) -> None:
    assert indices_without(4, leaving) == kept


def test_rows_that_a_wider_newcomer_brings_do_as_the_first_row_does() -> None:
    narrow = BeamState.starting([SearchConfig(beam_size=2)], bos_id=1)
    narrow.tokens, narrow.parents = np.array([[7, 8]]), np.array([[1, 0]])

    narrow.append(BeamState.starting([SearchConfig(beam_size=4)], bos_id=1))

    assert narrow.tokens.tolist() == [[7, 8, 7, 7], [1, 1, 1, 1]]
    assert narrow.parents.tolist() == [[1, 0, 1, 1], [0, 0, 0, 0]]
