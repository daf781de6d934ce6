"""Single steps of a search; `tests/parity/test_search.py` compares whole searches with reference implementations."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dragoman_service.datatypes import SearchConfig
from dragoman_service.decoding.beam_search import advance, conclude, find_ended, rank_candidates
from dragoman_service.decoding.beam_state import BeamState
from dragoman_service.decoding.constraints import CandidateRules
from dragoman_service.decoding.step_model import FloatArray, Placeholder, StepOutput, VocabularySpec
from tests.fakes import BOS, EOS, FIRST_WORD, PAD, UNK

VOCABULARY = VocabularySpec(size=100, pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK)
PAD_IS_EOS = replace(VOCABULARY, pad_id=EOS, bos_id=-1)
PLACEHOLDERS = replace(VOCABULARY, placeholders=(Placeholder(90, 12), Placeholder(91, 10), Placeholder(92, 11)))
RULES = CandidateRules(VOCABULARY)

Row = dict[int, float]  # candidates of a row: log-probability by token id


def make_output(*rows: Row) -> StepOutput:
    """Return the candidates of the rows of one segment."""
    return StepOutput(
        log_probs=np.array([[list(row.values()) for row in rows]], np.float32),
        token_ids=np.array([[list(row) for row in rows]]),
    )


def make_ranked(num_segments: int, *token_ids: int) -> StepOutput:
    """Return the same candidates for the only row of each segment, with log-probabilities -1, -2, ..."""
    log_probs = -np.arange(1.0, len(token_ids) + 1, dtype=np.float32)
    return StepOutput(
        log_probs=np.tile(log_probs, (num_segments, 1, 1)), token_ids=np.tile(token_ids, (num_segments, 1, 1))
    )


def start(**search: float) -> BeamState:
    return BeamState([SearchConfig(**search)], bos_id=BOS)  # type: ignore[arg-type]


def take(state: BeamState, *rows: Row) -> None:
    advance(state, make_output(*rows), rules=RULES, attention_of=attend_to_first)


def attend_to_first(segment: int, target_ids: Sequence[int]) -> FloatArray:
    """Attend only to the first of two source tokens."""
    return np.tile(np.array([1.0, 0.0], np.float32), (1, 1, len(target_ids), 1))


@pytest.mark.parametrize(
    ("vocabulary", "token_ids", "forbids_eos", "expected"),
    [
        (VOCABULARY, (PAD, BOS, UNK, EOS, FIRST_WORD), [False], [[-np.inf, -np.inf, -np.inf, -4, -5]]),
        (VOCABULARY, (EOS, FIRST_WORD), [True, False], [[-np.inf, -2], [-1, -2]]),
        (PAD_IS_EOS, (EOS, UNK, 99), [False], [[-1, -np.inf, -3]]),
    ],
)
def test_special_tokens_and_early_eos_are_forbidden(
    vocabulary: VocabularySpec, token_ids: tuple[int, ...], forbids_eos: list[bool], expected: list[list[float]]
) -> None:
    output = make_ranked(len(forbids_eos), *token_ids)
    before = output.log_probs.tolist()

    allowed = CandidateRules(vocabulary).apply(output, forbids_eos=np.array(forbids_eos))

    assert allowed[:, 0].tolist() == expected
    assert output.log_probs.tolist() == before  # the arrays belong to the model


@pytest.mark.parametrize(
    ("source_ids", "prefix", "expected"),
    [
        ((50, EOS), (), [True, True, True]),
        ((50, 91, 91, EOS), (), [False, True, True]),
        ((90, EOS), (11,), [True, False, False]),
        ((10, 11, 12, EOS), (90,), [True, True, True]),
    ],
)
def test_placeholders_are_masked_unless_source_or_prefix_contains_them(
    source_ids: tuple[int, ...], prefix: tuple[int, ...], expected: list[bool]
) -> None:
    rules = CandidateRules(PLACEHOLDERS)

    assert rules.placeholder_ids.tolist() == [10, 11, 12]
    assert rules.find_masked(source_ids, prefix).tolist() == expected


def test_masked_candidates_are_last_and_the_others_are_unchanged() -> None:
    output = make_ranked(2, 11, 20, 10, 12, 21)

    output = CandidateRules(PLACEHOLDERS).without_masked(output, np.array([[True, True, False], [False, False, False]]))

    assert output.token_ids.tolist() == [[[20, 12, 21, 11, 10]], [[11, 20, 10, 12, 21]]]
    assert output.log_probs.tolist() == [[[-2.0, -4.0, -5.0, -np.inf, -np.inf]], [[-1.0, -2.0, -3.0, -4.0, -5.0]]]


def test_a_step_without_masked_candidates_is_not_copied() -> None:
    output = make_ranked(1, 20, 21, 11)

    assert CandidateRules(PLACEHOLDERS).without_masked(output, np.array([[True, False, True]])) is output


def test_best_candidates_of_all_rows_stay_live_in_order() -> None:
    state = start(beam_size=2)
    take(state, {10: -1.0, 11: -2.0})

    take(state, {20: -3.0, 21: -4.0}, {30: -0.5, 31: -9.0})

    assert state.tokens.tolist() == [[30, 20]]
    assert state.parents.tolist() == [[1, 0]]
    assert state.log_probs.tolist() == [[-2.5, -4.0]]


@pytest.mark.parametrize(
    ("candidates", "finished"),
    [
        ({10: -1.0, EOS: -2.0, 11: -3.0}, [-2.0]),
        ({10: -1.0, 11: -2.0, EOS: -3.0}, []),
        ({EOS: -0.5, 10: -1.0, 11: -2.0}, [-0.5]),
    ],
)
def test_eos_finishes_only_within_the_beam_and_replaces_no_live_hypothesis(
    candidates: Row, finished: list[float]
) -> None:
    state = start(beam_size=2, num_hypotheses=2)

    take(state, candidates)

    assert [hypothesis.log_prob for hypothesis in state.finished[0]] == finished
    assert state.tokens.tolist() == [[10, 11]]


def test_ties_go_to_the_better_row_and_the_earlier_candidate() -> None:
    state = start(beam_size=2)
    take(state, {10: -1.0, 11: -1.0})

    ranking = rank_candidates(state, make_output({20: -1.0, 21: -1.0}, {30: -1.0, 31: -1.0}), rules=RULES)

    assert ranking.tokens.tolist() == [[20, 21, 30, 31]]


@pytest.mark.parametrize(
    ("search", "candidates", "is_over"),
    [
        ({"beam_size": 2, "length_penalty": 0.0}, {10: -1.0, EOS: -2.0, 11: -3.0}, False),
        ({"beam_size": 2, "length_penalty": 0.0}, {10: -2.0, EOS: -2.0, 11: -3.0}, True),  # the earlier one is kept
        ({"beam_size": 2, "length_penalty": 1.0, "max_target_tokens": 100}, {EOS: -2.0, 10: -3.0, 11: -4.0}, False),
        ({"beam_size": 1, "length_penalty": 1.0}, {EOS: -2.0, 10: -3.0}, True),
    ],
    ids=["better live hypothesis", "tie", "longer targets score higher", "greedy"],
)
def test_search_ends_when_no_live_hypothesis_can_win(search: dict[str, float], candidates: Row, is_over: bool) -> None:
    state = start(**search)

    take(state, candidates)

    assert find_ended(state) == [0] * is_over


@pytest.mark.parametrize(
    ("search", "log_probs"),
    [
        ({"length_penalty": 0.0}, [-1.0, -2.4, -np.inf]),
        ({"length_penalty": 0.0, "early_stopping": True}, [-1.0, -2.4, -2.6]),
        ({"length_penalty": 0.0, "num_hypotheses": 2}, [-1.0, -2.4, -2.6]),
        ({"length_penalty": 1.0, "max_target_tokens": 100}, [-1.0, -2.4, -2.6]),
    ],
    ids=["cannot win", "early stopping", "another hypothesis is missing", "longer targets score higher"],
)
def test_rows_that_cannot_win_die(search: dict[str, float], log_probs: list[float]) -> None:
    state = start(beam_size=3, **search)

    take(state, {10: -1.0, 11: -2.4, EOS: -2.5, 12: -2.6})

    assert state.log_probs.tolist() == [[pytest.approx(log_prob) for log_prob in log_probs]]
    assert state.tokens.tolist() == [[10, 11, 12 if np.isfinite(log_probs[2]) else 10]]


def test_search_without_an_allowed_token_ends_without_hypotheses() -> None:
    state = start(beam_size=2)

    take(state, {PAD: -0.1, UNK: -2.0})

    assert find_ended(state) == [0]
    assert conclude(state, 0, eos_id=EOS) == ()
