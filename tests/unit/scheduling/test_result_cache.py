from dataclasses import replace

import numpy as np
import pytest

from dragoman_service.datatypes import Hypothesis, SamplingConfig, Segment, SegmentResult, StageTimings
from dragoman_service.scheduling.result_cache import ResultCache
from tests.fakes import make_segment

RESULT = SegmentResult(
    hypotheses=(
        Hypothesis(token_ids=(5, 3), token_log_probs=(-0.5, -0.25), log_prob=-0.75, score=-0.6, is_finished=True),
    ),
    num_steps=2,
    timings=StageTimings(queue_s=1.0, encode_s=2.0, decode_s=3.0),
)


def test_result_is_found_by_source_and_options_with_zero_timings() -> None:
    cache = ResultCache(10_000)
    cache.put(make_segment(7, 8), RESULT)

    assert cache.get(make_segment(7, 8)) == replace(RESULT, timings=StageTimings())
    assert cache.get(make_segment(7, 9)) is None
    assert cache.get(make_segment(7, 8, beam_size=2)) is None
    assert cache.get(make_segment(7, 8, target_prefix=(5,))) is None


def test_least_recently_used_results_are_evicted() -> None:
    cache = ResultCache(10_000)
    for number in range(100):
        cache.put(make_segment(number), RESULT)
        assert cache.get(make_segment(0)) is not None
        assert cache.num_bytes <= 10_000

    cached = [number for number in range(100) if cache.get(make_segment(number))]
    assert cached == [0, *range(100 - len(cached) + 1, 100)]
    assert len(cached) > 5


def test_repeated_result_is_stored_once() -> None:
    cache = ResultCache(10_000)
    cache.put(make_segment(7), RESULT)
    num_bytes = cache.num_bytes

    cache.put(make_segment(7), RESULT)

    assert cache.num_bytes == num_bytes > 0


@pytest.mark.parametrize(
    "segment",
    [
        make_segment(7, beam_size=1, sampling=SamplingConfig()),
        replace(make_segment(7), wants_attention=True),
        make_segment(*range(1000)),
    ],
    ids=["sampled", "with attention", "too large"],
)
def test_result_is_not_cached(segment: Segment) -> None:
    attention = np.zeros((1, 1, 2, 1), np.float32) if segment.wants_attention else None
    cache = ResultCache(10_000)

    cache.put(segment, replace(RESULT, hypotheses=(replace(RESULT.hypotheses[0], attention=attention),)))

    assert cache.get(segment) is None
    assert cache.num_bytes == 0
