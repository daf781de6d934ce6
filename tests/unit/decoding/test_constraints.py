from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dragoman_service.datatypes import Hypothesis, SamplingConfig, SearchConfig
from dragoman_service.decoding.constraints import Sampler, TargetRules, remaining_weights
from tests.batch_decoding import decode_all
from tests.fakes import EOS, ToyModel, make_segment

PROBABILITIES = np.array([[0.4, 0.3, 0.2, 0.1]])
SQUARES = PROBABILITIES**2
LOG_PROBS = np.log(PROBABILITIES).astype(np.float32)
NUM_DRAWS = 20_000
CHI_SQUARED_LIMIT = 40.0  # 3 to 8 degrees of freedom exceed it once in 100,000 seeds at most; the seed is fixed


def test_four_tokens_of_an_avoided_source_are_not_completed() -> None:
    rules = TargetRules(SearchConfig(avoids_source=True), vocabulary_size=100, source_ids=(10, 50, 11, 12, 13))
    rules.extend(np.array([50, 50]), np.array([0, 0]))
    rules.extend(np.array([11, 12]), np.array([0, 1]))
    rules.extend(np.array([12, 11]), np.array([0, 1]))

    lowered = rules.apply(np.full((2, 3), -1.0, np.float32), np.tile([13, 10, 50], (2, 1)))

    assert lowered.tolist() == [[-np.inf, -1, -1], [-1, -1, -1]]


def sample(model: ToyModel, num_hypotheses: int, sampling: SamplingConfig, **search: object) -> tuple[Hypothesis, ...]:
    options = {"beam_size": num_hypotheses, "num_hypotheses": num_hypotheses, "sampling": sampling, **search}
    return decode_all(model, [make_segment(7, **options)])[0].hypotheses


def chi_squared(counts: Counter[int], expected: dict[int, float]) -> float:
    return sum((counts[token] - number) ** 2 / number for token, number in expected.items())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, (SQUARES / SQUARES.sum()).ravel().tolist()),
        ({"top_k": 2}, [4 / 7, 3 / 7]),
        ({"top_p": 0.01}, [1, 0, 0, 0]),
        ({"top_p": 0.5}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
        # Of 0.4 and 0.3, tempered to 16/25 and 9/25, the first alone reaches 0.6; untempered it would be 4/7.
        ({"top_k": 2, "top_p": 0.6, "temperature": 0.5}, [1, 0]),
        ({"top_k": 2, "top_p": 0.6}, [4 / 7, 3 / 7]),
    ],
)
def test_weights_after_temperature_then_top_k_then_top_p(config: dict[str, float], expected: list[float]) -> None:
    weights = remaining_weights(LOG_PROBS, SamplingConfig(**config))  # type: ignore[arg-type]

    assert (weights / weights.sum()).ravel().tolist() == pytest.approx(expected)


def test_draws_follow_the_weights() -> None:
    sampler = Sampler(SamplingConfig(seed=5), num_samples=NUM_DRAWS)

    columns = sampler.draw(np.repeat(LOG_PROBS, NUM_DRAWS, axis=0))

    expected = {column: NUM_DRAWS * float(share) for column, share in enumerate(PROBABILITIES[0])}
    assert chi_squared(Counter(columns.tolist()), expected) < CHI_SQUARED_LIMIT


def test_token_without_weight_is_never_drawn() -> None:
    log_probs = np.array([[-0.1, -3.0, -np.inf, -np.inf]], np.float32).repeat(NUM_DRAWS, axis=0)

    columns = Sampler(SamplingConfig(), num_samples=NUM_DRAWS).draw(log_probs)

    assert set(columns.tolist()) == {0, 1}


def test_random_numbers_do_not_depend_on_the_live_samples() -> None:
    few, all_ = Sampler(SamplingConfig(seed=3), num_samples=50), Sampler(SamplingConfig(seed=3), num_samples=50)
    few.draw(LOG_PROBS)
    all_.draw(LOG_PROBS.repeat(50, axis=0))

    both = [sampler.draw(LOG_PROBS.repeat(50, axis=0)).tolist() for sampler in (few, all_)]

    assert both[0] == both[1]


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (1.0, 3)])
def test_first_tokens_follow_the_distribution_of_the_model_without_masked_placeholders(
    temperature: float, top_k: int | None
) -> None:
    model = ToyModel(seed=1, num_words=7, placeholders=(5, 6, 7, 8))
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, seed=11)

    hypotheses = sample(model, NUM_DRAWS // 10, sampling, max_target_tokens=1)

    log_probs = model.next_log_probs((7, EOS), ())
    likeliest = sorted((EOS, 4, 7, 9, 10), key=lambda token: -log_probs[token])[:top_k]
    shares = np.exp(log_probs[likeliest].astype(np.float64) / temperature)
    expected = dict(zip(likeliest, (NUM_DRAWS / 10 * shares / shares.sum()).tolist(), strict=True))
    drawn = [hypothesis.token_ids[0] for hypothesis in hypotheses]
    assert set(drawn) <= expected.keys()
    assert chi_squared(Counter(drawn), expected) < CHI_SQUARED_LIMIT
    assert all(each.token_log_probs[0] == log_probs[each.token_ids[0]] for each in hypotheses)  # not normalised again


def test_samples_continue_their_own_tokens() -> None:
    model = ToyModel(seed=2)

    for hypothesis in sample(model, 6, SamplingConfig(temperature=3.0, seed=9)):
        expected = [
            float(model.next_log_probs((7, EOS), hypothesis.token_ids[:step])[token])
            for step, token in enumerate(hypothesis.token_ids)
        ]
        assert list(hypothesis.token_log_probs) == expected  # of the model, without temperature
        assert hypothesis.log_prob == pytest.approx(sum(expected))


def test_top_k_of_one_equals_greedy_search() -> None:
    (greedy,) = decode_all(ToyModel(), [make_segment(7, beam_size=1, max_target_tokens=30)])[0].hypotheses

    sampled = sample(ToyModel(), 3, SamplingConfig(top_k=1, seed=4), max_target_tokens=30)

    assert [hypothesis.token_ids for hypothesis in sampled] == [greedy.token_ids] * 3


def test_samples_depend_on_the_seed_alone() -> None:
    config = SamplingConfig(temperature=2.0, seed=1)

    assert sample(ToyModel(), 4, config) == sample(ToyModel(), 4, config)
    assert sample(ToyModel(), 4, config) != sample(ToyModel(), 4, replace(config, seed=2))


def test_number_of_samples_can_exceed_the_vocabulary() -> None:
    assert len(sample(ToyModel(num_words=2), 40, SamplingConfig(top_k=3))) == 40


@pytest.mark.parametrize("seed", range(5))
def test_samples_respect_the_other_options(seed: int) -> None:
    hypotheses = sample(
        ToyModel(),
        5,
        SamplingConfig(temperature=3.0, seed=seed),
        target_prefix=(5, 6),
        min_target_tokens=5,
        suppressed_tokens=frozenset({7}),
        no_repeat_ngram_size=2,
    )

    for hypothesis in hypotheses:
        words = hypothesis.token_ids[:-1] if hypothesis.is_finished else hypothesis.token_ids
        assert words[:2] == (5, 6)
        assert len(words) >= 5
        assert 7 not in words
        assert len(set(pairwise(words))) == len(words) - 1
