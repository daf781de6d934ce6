"""Batches against exhaustive search, a greedy loop, and a plain beam search without early stop."""

from typing import Any

import pytest

from dragoman_service.datatypes import Hypothesis, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from tests.batch_decoding import decode_all
from tests.fakes import EOS, FIRST_WORD, ToyModel, make_segment
from tests.reference_search import Candidate, allowed_tokens, exhaustive_search, final_score, full_beam_search

SCORE_TOLERANCE = 1e-9  # both sides add float32 log-probabilities in float64, in the same order

OPTIONS: list[dict[str, Any]] = [
    {},
    {"target_prefix": (5, 6)},
    {"target_prefix": (5, 5, 5, 5), "no_repeat_ngram_size": 2},
    {"suppressed_tokens": frozenset({4, 7})},
    {"suppressed_tokens": frozenset({0, 2, 8})},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 4.0, "target_prefix": (6,)},
    {"coverage_penalty": 0.2},
    {"coverage_penalty": 1.0, "repetition_penalty": 1.5},
    {
        "coverage_penalty": 0.5,
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "suppressed_tokens": frozenset({6}),
        "target_prefix": (8, 4),
    },
]


def decode(model: ToyModel, segment: Segment) -> tuple[Hypothesis, ...]:
    return decode_all(model, [segment])[0].hypotheses


def assert_same(model: ToyModel, segment: Segment, expected: list[Candidate]) -> None:
    hypotheses = decode(model, segment)
    assert [hypothesis.token_ids for hypothesis in hypotheses] == [candidate.token_ids for candidate in expected]
    assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx(
        [candidate.log_prob for candidate in expected], abs=SCORE_TOLERANCE
    )
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
        [final_score(model, segment, candidate) for candidate in expected], abs=SCORE_TOLERANCE
    )


def greedy_search(model: ToyModel, segment: Segment) -> tuple[int, ...]:
    target = segment.search.target_prefix
    while len(target) < segment.search.max_target_tokens and EOS not in target:
        allowed = allowed_tokens(model, segment, target)
        target += (max(allowed, key=lambda token: allowed[token]),)
    return target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"target_prefix": (5,)},
        {"suppressed_tokens": frozenset({6})},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 2.0},
        {"coverage_penalty": 0.3},
        {"coverage_penalty": 0.7, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "target_prefix": (5,)},
    ],
)
def test_wide_beam_equals_exhaustive_search(seed: int, alpha: float, options: dict[str, Any]) -> None:
    model = ToyModel(num_words=3, seed=seed)
    segment = make_segment(
        7,
        beam_size=150,
        num_hypotheses=10,
        min_target_tokens=1,
        max_target_tokens=5,
        length_penalty=alpha,
        **options,
    )

    assert_same(model, segment, exhaustive_search(model, segment))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", OPTIONS)
def test_beam_of_one_is_greedy_search(seed: int, options: dict[str, Any]) -> None:
    model = ToyModel(seed=seed, eos_bias=1.0)
    segment = make_segment(7, 8, beam_size=1, max_target_tokens=15, **options)

    assert decode(model, segment)[0].token_ids == greedy_search(model, segment)


def searched_segment(seed: int, *, beam_size: int, **search: Any) -> Segment:
    """Return a segment to be searched under one of the options."""
    options = OPTIONS[(seed + beam_size) % len(OPTIONS)]
    return make_segment(seed, beam_size=beam_size, max_target_tokens=10, **search, **options)


@pytest.mark.parametrize("seed", range(len(OPTIONS)))
@pytest.mark.parametrize("alpha", [-0.7, 0.6, 2.0])
@pytest.mark.parametrize(("beam_size", "num_hypotheses"), [(2, 1), (4, 4), (7, 3)])
def test_exact_bound_never_changes_the_result(seed: int, alpha: float, beam_size: int, num_hypotheses: int) -> None:
    model = ToyModel(seed=seed, eos_bias=seed % 3 - 1.0)
    segment = searched_segment(
        seed,
        beam_size=beam_size,
        num_hypotheses=num_hypotheses,
        length_penalty=alpha,
        min_target_tokens=seed % 4,
    )

    assert_same(model, segment, full_beam_search(model, segment))


@pytest.mark.parametrize("seed", range(len(OPTIONS)))
@pytest.mark.parametrize("alpha", [0.0, 2.0])
@pytest.mark.parametrize(("beam_size", "num_hypotheses"), [(1, 1), (4, 4), (7, 3)])
def test_early_stopping_ends_with_the_last_hypothesis_of_the_beam(
    seed: int, alpha: float, beam_size: int, num_hypotheses: int
) -> None:
    model = ToyModel(seed=seed, eos_bias=seed % 3 - 1.0)
    segment = searched_segment(
        seed, beam_size=beam_size, num_hypotheses=num_hypotheses, length_penalty=alpha, early_stopping=True
    )

    assert_same(model, segment, full_beam_search(model, segment))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("num_words", [5, 60])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("beam_size", "num_hypotheses"), [(1, 1), (3, 2), (5, 5)])
def test_options_equal_a_search_over_the_whole_vocabulary(
    seed: int, num_words: int, options: dict[str, Any], beam_size: int, num_hypotheses: int
) -> None:
    model = ToyModel(num_words=num_words, seed=seed, eos_bias=seed % 3 - 1.0)
    segment = make_segment(
        7, 8, beam_size=beam_size, num_hypotheses=num_hypotheses, min_target_tokens=seed % 4, **options
    )

    assert_same(model, segment, full_beam_search(model, segment))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", OPTIONS)
def test_masked_placeholders_are_never_taken(seed: int, options: dict[str, Any]) -> None:
    words = range(FIRST_WORD, FIRST_WORD + 60)
    model = ToyModel(num_words=60, seed=seed, placeholders=[word for word in words if word % 3])
    segment = make_segment(7, 8, beam_size=4, num_hypotheses=4, **options)
    others = make_segment(10, beam_size=6), make_segment(7, 8, no_repeat_ngram_size=2)
    batch = RunningBatch(model)

    segment_id, *_ = batch.start([segment, *others])
    ended = [each for _ in range(12) if batch.num_segments for each in batch.step().ended]

    assert_same(model, segment, full_beam_search(model, segment))
    assert next(each.hypotheses for each in ended if each.segment_id == segment_id) == decode(model, segment)
    assert {token for each in ended for best in each.hypotheses for token in best.token_ids} - {EOS, *words[2::3]} <= {
        *(7, 8, 10),
        *segment.search.target_prefix,
    }


@pytest.mark.parametrize("seed", range(6))
def test_lowered_tokens_can_exceed_the_beam(seed: int) -> None:
    model = ToyModel(num_words=60, seed=seed)
    likely = model.next_log_probs((7, EOS), ()).argsort()[-40:].tolist()
    segment = make_segment(7, suppressed_tokens=frozenset(likely) - {EOS}, repetition_penalty=1.5, num_hypotheses=4)

    assert_same(model, segment, full_beam_search(model, segment))


def test_exact_bound_saves_most_steps() -> None:
    batch = RunningBatch(ToyModel(eos_bias=4.0))
    batch.start([make_segment(7, length_penalty=0.0, max_target_tokens=200)])

    ended = [segment for _ in range(10) if batch.num_segments for segment in batch.step().ended]

    assert ended[0].hypotheses[0].is_finished


def test_prefix_can_contain_forbidden_tokens() -> None:
    unlikely = int(ToyModel().next_log_probs((7, EOS), ())[FIRST_WORD:].argmin()) + FIRST_WORD
    segment = make_segment(7, target_prefix=(unlikely, 3), suppressed_tokens=frozenset({unlikely}))

    best = decode(ToyModel(), segment)[0]

    assert best.token_ids[:2] == (unlikely, 3)
    assert best.token_log_probs[:2] == (0.0, 0.0)
