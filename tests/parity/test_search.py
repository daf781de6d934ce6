"""The engine against exhaustive search, a greedy loop, and a plain beam search without early stop."""

import itertools
from dataclasses import dataclass

import pytest

from service.datatypes import Hypothesis, SearchConfig, Segment
from service.decoding.engine import Engine
from service.decoding.scoring import score
from tests.fakes import EOS, FIRST_WORD, ToyModel, make_segment

SCORE_TOLERANCE = 1e-9  # both sides add float32 log-probabilities in float64, in the same order


@dataclass(frozen=True)
class Candidate:
    """A target of the reference searches."""

    token_ids: tuple[int, ...]
    log_prob: float

    def score(self, alpha: float) -> float:
        return score(self.log_prob, length=len(self.token_ids), alpha=alpha)


def decode(model: ToyModel, segment: Segment) -> tuple[Hypothesis, ...]:
    engine = Engine(model)
    engine.start([segment])
    while True:
        if ended := engine.step().ended:
            return ended[0].hypotheses


def assert_same(hypotheses: tuple[Hypothesis, ...], expected: list[Candidate], alpha: float) -> None:
    assert [hypothesis.token_ids for hypothesis in hypotheses] == [candidate.token_ids for candidate in expected]
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
        [candidate.score(alpha) for candidate in expected], abs=SCORE_TOLERANCE
    )


def words(model: ToyModel) -> range:
    return range(FIRST_WORD, model.vocabulary.size)


def exhaustive_search(model: ToyModel, segment: Segment) -> list[Candidate]:
    """Score every finished target; return the best."""
    search, found = segment.search, []
    for num_words in range(search.min_target_tokens, search.max_target_tokens):
        for target in itertools.product(words(model), repeat=num_words):
            log_prob = 0.0
            for step, token in enumerate((*target, EOS)):
                log_prob += float(model.next_log_probs(segment.source_ids, target[:step])[token])
            found.append(Candidate((*target, EOS), log_prob))
    found.sort(key=lambda candidate: -candidate.score(search.length_penalty_alpha))
    return found[: search.num_hypotheses]


def extensions(model: ToyModel, segment: Segment, candidate: Candidate) -> list[Candidate]:
    log_probs = model.next_log_probs(segment.source_ids, candidate.token_ids)
    may_end = len(candidate.token_ids) >= segment.search.min_target_tokens
    return [
        Candidate((*candidate.token_ids, token), candidate.log_prob + float(log_probs[token]))
        for token in ([EOS] if may_end else []) + list(words(model))
    ]


def full_beam_search(model: ToyModel, segment: Segment) -> list[Candidate]:
    """The textbook search, run to the longest target whatever has been found."""
    search: SearchConfig = segment.search
    live, finished = [Candidate((), 0.0)], []
    for _ in range(search.max_target_tokens):
        found = [extended for candidate in live for extended in extensions(model, segment, candidate)]
        found.sort(key=lambda candidate: -candidate.log_prob)
        finished += [candidate for candidate in found[: search.beam_size] if candidate.token_ids[-1] == EOS]
        live = [candidate for candidate in found if candidate.token_ids[-1] != EOS][: search.beam_size]
    finished.sort(key=lambda candidate: -candidate.score(search.length_penalty_alpha))
    return [*finished, *live][: search.num_hypotheses]


def greedy_search(model: ToyModel, segment: Segment) -> tuple[int, ...]:
    target: tuple[int, ...] = ()
    while len(target) < segment.search.max_target_tokens and EOS not in target:
        log_probs = model.next_log_probs(segment.source_ids, target)
        target += (max([EOS, *words(model)], key=lambda token: float(log_probs[token])),)
    return target


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.5])
def test_a_wide_beam_finds_what_exhaustive_search_finds(seed: int, alpha: float) -> None:
    model = ToyModel(num_words=3, seed=seed)
    segment = make_segment(
        7, beam_size=150, num_hypotheses=10, length_penalty_alpha=alpha, min_target_tokens=1, max_target_tokens=5
    )

    assert_same(decode(model, segment), exhaustive_search(model, segment), alpha)


@pytest.mark.parametrize("seed", range(30))
def test_beam_one_is_greedy_search(seed: int) -> None:
    model = ToyModel(seed=seed, eos_bias=1.0)
    segment = make_segment(7, 8, beam_size=1, max_target_tokens=15)

    assert decode(model, segment)[0].token_ids == greedy_search(model, segment)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.6, 2.0])
@pytest.mark.parametrize(("beam_size", "num_hypotheses"), [(2, 1), (4, 1), (4, 4), (7, 3)])
def test_stopping_early_never_changes_the_answer(seed: int, alpha: float, beam_size: int, num_hypotheses: int) -> None:
    model = ToyModel(seed=seed, eos_bias=seed % 3 - 1.0)
    segment = make_segment(
        seed,
        beam_size=beam_size,
        num_hypotheses=num_hypotheses,
        length_penalty_alpha=alpha,
        min_target_tokens=seed % 4,
        max_target_tokens=10,
    )

    assert_same(decode(model, segment), full_beam_search(model, segment), alpha)


def test_stopping_early_saves_most_steps_of_a_model_that_ends() -> None:
    engine = Engine(ToyModel(eos_bias=4.0))
    engine.start([make_segment(7, length_penalty_alpha=0.0, max_target_tokens=200)])

    ended = [found for _ in range(10) if engine.num_segments for found in engine.step().ended]

    assert ended[0].hypotheses[0].is_finished
