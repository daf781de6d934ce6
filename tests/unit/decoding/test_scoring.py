import pytest

from service.datatypes import Hypothesis, SearchConfig
from service.decoding.scoring import bound_penalty, length_penalty, rank, score


def make_hypothesis(score: float, *, is_finished: bool = True) -> Hypothesis:
    return Hypothesis(token_ids=(4,), token_log_probs=(score,), log_prob=score, score=score, is_finished=is_finished)


@pytest.mark.parametrize(
    ("length", "alpha", "expected"), [(1, 0.6, 1.0), (7, 1.0, 2.0), (19, 0.5, 2.0), (50, 0.0, 1.0)]
)
def test_the_penalty_is_that_of_wu_et_al(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha=alpha) == pytest.approx(expected)


def test_an_empty_hypothesis_has_no_penalty() -> None:
    with pytest.raises(ValueError, match="length is 0"):
        length_penalty(0, alpha=0.6)


def test_a_longer_hypothesis_of_the_same_log_prob_scores_higher() -> None:
    assert score(-6.0, length=20, alpha=0.6) > score(-6.0, length=10, alpha=0.6)


@pytest.mark.parametrize("alpha", [-1.5, -0.2, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("min_target_tokens", [0, 3, 30])
def test_no_length_that_may_end_scores_above_the_bound(alpha: float, min_target_tokens: int) -> None:
    search = SearchConfig(length_penalty_alpha=alpha, min_target_tokens=min_target_tokens, max_target_tokens=20)
    shortest = min(min_target_tokens + 1, 20)

    best = max(score(-5.0, length=length, alpha=alpha) for length in range(shortest, 21))

    assert best == -5.0 / bound_penalty(search)


def test_finished_hypotheses_stand_before_unfinished_ones_and_each_kind_by_score() -> None:
    unfinished = make_hypothesis(-0.1, is_finished=False)
    good, bad = make_hypothesis(-1.0), make_hypothesis(-2.0)

    assert rank([unfinished, bad, good]) == [good, bad, unfinished]
