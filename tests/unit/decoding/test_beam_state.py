import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_service.datatypes import Hypothesis, SearchConfig
from dragoman_service.decoding.beam_state import (
    BeamState,
    History,
    bound_penalty,
    coverage_penalty,
    indices_without,
    length_penalty,
    rank,
    score,
)
from tests.fakes import BOS


@pytest.mark.parametrize(
    ("length", "alpha", "expected"), [(1, 0.6, 1.0), (7, 1.0, 2.0), (19, 0.5, 2.0), (50, 0.0, 1.0)]
)
def test_length_penalty_follows_wu_et_al(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha=alpha) == pytest.approx(expected)


def test_length_below_1_is_invalid() -> None:
    with pytest.raises(ValueError, match="length is 0"):
        length_penalty(0, alpha=0.6)


@pytest.mark.parametrize("alpha", [-1.5, -0.2, 0.0, 0.6, 2.0])
@pytest.mark.parametrize(
    ("options", "shortest"),
    [({}, 1), ({"min_target_tokens": 3}, 4), ({"min_target_tokens": 30}, 20), ({"target_prefix": (4, 5, 6)}, 4)],
)
def test_bound_is_the_best_score_of_all_final_lengths(alpha: float, options: dict[str, Any], shortest: int) -> None:
    search = SearchConfig(length_penalty=alpha, max_target_tokens=20, **options)

    best = max(score(-5.0, length=length, alpha=alpha) for length in range(shortest, 21))

    assert best == -5.0 / bound_penalty(search)


def test_rank_sorts_finished_hypotheses_first_then_by_score() -> None:
    unfinished, good, bad = (
        Hypothesis(token_ids=(4,), token_log_probs=(-1.0,), log_prob=-1.0, score=score, is_finished=is_finished)
        for score, is_finished in ((-0.1, False), (-1.0, True), (-2.0, True))
    )

    assert rank([unfinished, bad, good]) == [good, bad, unfinished]


def attention_of(*columns: float) -> NDArray[np.float32]:
    """Return attention of two layers, heads and target tokens; the last layer adds up to `columns`."""
    last = np.array([[0.5 * column for column in columns]] * 2, np.float32)
    return np.stack([np.full((2, *last.shape), 0.9, np.float32), np.stack([2 * last, 0 * last])])


@pytest.mark.parametrize(
    ("columns", "beta", "expected"),
    [
        ((0.5, 1.2, 0.3), 2.0, 2 * (np.log(0.5) + np.log(0.3))),
        ((1.0, 1.0), 5.0, 0.0),
        ((2.0, 0.0), 1.0, np.log(1e-6)),
    ],
    ids=["partial", "full", "token without attention"],
)
def test_coverage_penalty_follows_wu_et_al_over_the_last_layer(
    columns: tuple[float, ...], beta: float, expected: float
) -> None:
    assert coverage_penalty(attention_of(*columns), beta=beta) == pytest.approx(expected)


def test_new_segments_have_one_live_row_with_bos() -> None:
    state = BeamState([SearchConfig(beam_size=3), SearchConfig(beam_size=1)], bos_id=BOS)

    assert state.num_live_rows == 1
    assert state.tokens[:, 0].tolist() == [BOS, BOS]
    assert state.log_probs.tolist() == [[0.0, -np.inf, -np.inf]] * 2


def test_rows_added_by_a_wider_segment_are_dead_and_copy_the_first_row() -> None:
    state = BeamState([SearchConfig(beam_size=2)], bos_id=BOS)
    state.log_probs, state.tokens, state.parents = np.array([[-1.0, -2.0]]), np.array([[7, 8]]), np.array([[1, 0]])

    state.append(BeamState([SearchConfig(beam_size=4)], bos_id=BOS))

    assert state.widest_beam == 4
    assert state.log_probs.tolist() == [[-1.0, -2.0, -np.inf, -np.inf], [0.0, -np.inf, -np.inf, -np.inf]]
    assert state.tokens.tolist() == [[7, 8, 7, 7], [BOS] * 4]
    assert state.parents.tolist() == [[1, 0, 1, 1], [0] * 4]


def test_segments_are_kept_in_the_order_given() -> None:
    state = BeamState([SearchConfig(beam_size=size) for size in (1, 2, 3)], bos_id=BOS)

    state.keep([2, 0])

    assert [search.beam_size for search in state.searches] == state.beam_sizes.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("leaving", "kept"), [([], [0, 1, 2, 3]), ([1], [0, 3, 2]), ([3], [0, 1, 2]), ([0, 3], [2, 1]), ([0, 1, 2, 3], [])]
)
def test_the_last_segments_fill_the_gaps(leaving: list[int], kept: list[int]) -> None:
    assert indices_without(4, leaving) == kept


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
