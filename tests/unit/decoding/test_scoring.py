import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_service.datatypes import Hypothesis, SearchConfig
from dragoman_service.decoding.scoring import bound_penalty, coverage_penalty, length_penalty, rank, score


def make_hypothesis(score: float, *, is_finished: bool = True) -> Hypothesis:
    return Hypothesis(token_ids=(4,), token_log_probs=(score,), log_prob=score, score=score, is_finished=is_finished)


@pytest.mark.parametrize(
    ("length", "alpha", "expected"), [(1, 0.6, 1.0), (7, 1.0, 2.0), (19, 0.5, 2.0), (50, 0.0, 1.0)]
)
def test_length_penalty_follows_wu_et_al(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha=alpha) == pytest.approx(expected)


def test_length_below_1_is_invalid() -> None:
    with pytest.raises(ValueError, match="length is 0"):
        length_penalty(0, alpha=0.6)


def test_longer_hypothesis_of_the_same_log_prob_scores_higher() -> None:
    assert score(-6.0, length=20, alpha=0.6) > score(-6.0, length=10, alpha=0.6)


@pytest.mark.parametrize("alpha", [-1.5, -0.2, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("min_target_tokens", [0, 3, 30])
def test_no_final_length_scores_above_the_bound(alpha: float, min_target_tokens: int) -> None:
    search = SearchConfig(length_penalty=alpha, min_target_tokens=min_target_tokens, max_target_tokens=20)
    shortest = min(min_target_tokens + 1, 20)

    best = max(score(-5.0, length=length, alpha=alpha) for length in range(shortest, 21))

    assert best == -5.0 / bound_penalty(search)


def test_rank_sorts_finished_hypotheses_first_then_by_score() -> None:
    unfinished = make_hypothesis(-0.1, is_finished=False)
    good, bad = make_hypothesis(-1.0), make_hypothesis(-2.0)

    assert rank([unfinished, bad, good]) == [good, bad, unfinished]


def attention_of(*columns: float) -> NDArray[np.float32]:
    """Return attention of two layers, heads and target tokens; the last layer adds up to `columns`."""
    last = np.array([[0.5 * column for column in columns]] * 2, np.float32)
    return np.stack([np.full((2, *last.shape), 0.9, np.float32), np.stack([2 * last, 0 * last])])


def test_coverage_penalty_follows_wu_et_al_over_the_last_layer() -> None:
    assert coverage_penalty(attention_of(0.5, 1.2, 0.3), beta=2.0) == pytest.approx(2 * (np.log(0.5) + np.log(0.3)))


def test_full_coverage_has_no_penalty() -> None:
    assert coverage_penalty(attention_of(1.0, 1.0), beta=5.0) == 0.0


def test_source_token_without_attention_has_a_finite_penalty() -> None:
    assert -100.0 < coverage_penalty(attention_of(2.0, 0.0), beta=1.0) < -5.0


def test_bound_includes_the_length_of_the_prefix() -> None:
    search = SearchConfig(length_penalty=-1.0, target_prefix=(4, 5, 6), max_target_tokens=20)

    assert bound_penalty(search) == length_penalty(4, alpha=-1.0)
