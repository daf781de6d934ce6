from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_service.datatypes import SearchConfig
from dragoman_service.decoding.beam_search import advance, conclude, find_ended, rank_candidates
from dragoman_service.decoding.beam_state import BeamState
from dragoman_service.decoding.constraints import CandidateRules
from dragoman_service.decoding.step_model import FloatArray, StepOutput, VocabularySpec
from tests.fakes import BOS, EOS, PAD, UNK

VOCABULARY = VocabularySpec(size=100, pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK)
RULES = CandidateRules(VOCABULARY)


def make_output(*rows: dict[int, float]) -> StepOutput:
    """Return the candidates of the rows of one segment, from token id to log-probability."""
    return StepOutput(
        log_probs=np.array([[list(row.values()) for row in rows]], np.float32),
        token_ids=np.array([[list(row) for row in rows]]),
    )


def start(**search: float) -> BeamState:
    return BeamState.starting([SearchConfig(**search)], bos_id=BOS)  # type: ignore[arg-type]


def take(state: BeamState, *rows: dict[int, float]) -> None:
    advance(state, make_output(*rows), rules=RULES, attend=attend_to_first)


def attend_to_first(segment: int, target_ids: Sequence[int]) -> FloatArray:
    """Attend only to the first of two source tokens."""
    return np.tile(np.array([1.0, 0.0], np.float32), (1, 1, len(target_ids), 1))


def live_tokens(state: BeamState) -> list[int]:
    live: NDArray[np.bool_] = np.isfinite(state.log_probs)
    return [int(token) for token in state.tokens[live]]


def test_best_candidates_of_all_rows_stay_live_in_order() -> None:
    state = start(beam_size=2)
    take(state, {10: -1.0, 11: -2.0})

    take(state, {20: -3.0, 21: -4.0}, {30: -0.5, 31: -9.0})

    assert live_tokens(state) == [30, 20]
    assert state.parents.tolist() == [[1, 0]]
    assert state.log_probs.tolist() == [[-2.5, -4.0]]


def test_eos_finishes_only_within_the_beam() -> None:
    inside, outside = start(beam_size=2, num_hypotheses=2), start(beam_size=2, num_hypotheses=2)

    take(inside, {10: -1.0, EOS: -2.0, 11: -3.0})
    take(outside, {10: -1.0, 11: -2.0, EOS: -3.0})

    assert [hypothesis.log_prob for hypothesis in inside.finished[0]] == [-2.0]
    assert outside.finished[0] == []


def test_eos_does_not_replace_a_live_hypothesis() -> None:
    state = start(beam_size=2, num_hypotheses=2)

    take(state, {EOS: -0.1, 10: -1.0, 11: -2.0})

    assert live_tokens(state) == [10, 11]


def test_ties_go_to_the_better_row_and_the_earlier_candidate() -> None:
    state = start(beam_size=2)
    take(state, {10: -1.0, 11: -1.0})

    ranking = rank_candidates(state, make_output({20: -1.0, 21: -1.0}, {30: -1.0, 31: -1.0}), rules=RULES)

    assert ranking.tokens.tolist() == [[20, 21, 30, 31]]


def test_search_continues_while_a_live_hypothesis_can_win() -> None:
    state = start(beam_size=2, length_penalty=0.0)

    take(state, {10: -1.0, EOS: -2.0, 11: -3.0})
    assert find_ended(state) == []

    take(state, {20: -1.5, 21: -4.0}, {30: -1.0, 31: -2.0})
    assert find_ended(state) == [0]


def test_search_stops_at_a_tie_because_the_earlier_hypothesis_is_kept() -> None:
    state = start(beam_size=2, length_penalty=0.0)

    take(state, {10: -2.0, EOS: -2.0, 11: -3.0})

    assert find_ended(state) == [0]


def test_length_penalty_continues_the_search() -> None:
    state = start(beam_size=2, length_penalty=1.0, max_target_tokens=100)

    take(state, {EOS: -2.0, 10: -3.0, 11: -4.0})

    assert find_ended(state) == []


def test_greedy_search_ends_with_the_first_eos() -> None:
    state = start(beam_size=1, length_penalty=1.0)

    take(state, {EOS: -2.0, 10: -3.0})

    assert find_ended(state) == [0]
    assert conclude(state, 0, eos_id=EOS)[0].token_ids == (EOS,)


def test_only_the_best_finished_hypotheses_are_kept() -> None:
    state = start(beam_size=3, num_hypotheses=1, length_penalty=0.0)
    take(state, {10: -1.0, 11: -1.5, EOS: -3.0})

    take(state, {EOS: -1.0, 20: -9.0}, {EOS: -0.75, 30: -9.0})

    assert [hypothesis.token_ids for hypothesis in conclude(state, 0, eos_id=EOS)] == [(10, EOS)]


def test_search_without_an_allowed_token_ends_without_hypotheses() -> None:
    state = start(beam_size=2)

    take(state, {PAD: -0.1, UNK: -2.0})

    assert find_ended(state) == [0]
    assert conclude(state, 0, eos_id=EOS) == ()
