import numpy as np
import pytest

from service.datatypes import SearchConfig
from service.decoding.beam_state import BeamState, indices_without
from tests.fakes import BOS


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
