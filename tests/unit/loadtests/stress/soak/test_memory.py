import random

import pytest

from loadtests.stress.soak.scenario import Sample, Settings, judge_memory, judged_lows

SHORT, LONG = Settings(duration_s=180.0, growth_limit_mb=16.0), Settings(duration_s=1800.0)
LIMIT = 480.0  # MiB per hour: 16 MiB in two minutes


def sample(at_s: float, rss_mb: float, swaps: int) -> Sample:
    return {"at_s": at_s, "rss_mb": rss_mb, "swaps": swaps}


def judged(samples: list[Sample], settings: Settings = SHORT) -> list[str]:
    promise, doubt = judge_memory(samples, settings)
    return [*promise.broken, *doubt]


def noisy(*, seed: int, leak_mb_per_h: float = 0.0, step_mb: float = 0.0, each_swap_mb: float = 0.0) -> list[Sample]:
    """Two samples a second: noise, half of the time a second version beside, and what is asked for."""
    generator = random.Random(seed)  # noqa: S311 - not for secrets
    samples = []
    for index in range(360):
        at_s, num_swaps = index / 2, index // 12
        beside = 60.0 if at_s % 6 < 3 else 0.0
        grown = leak_mb_per_h * at_s / 3600 + each_swap_mb * num_swaps + (step_mb if at_s > 120 else 0.0)
        samples.append(sample(at_s, 250 + abs(generator.gauss(0, 4)) + beside + grown, num_swaps))
    return samples


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_and_noise_is_none(seed: int) -> None:
    assert judged(noisy(seed=seed)) == judged(noisy(seed=seed, leak_mb_per_h=-5 * LIMIT)) == []
    assert "grows by 1" in judged(noisy(seed=seed, leak_mb_per_h=3 * LIMIT))[0]
    assert judged(noisy(seed=seed, each_swap_mb=9.0))  # the weights of the model that ships


@pytest.mark.parametrize("seed", range(5))
def test_a_small_step_is_no_leak_and_a_large_one_cannot_be_told_from_one(seed: int) -> None:
    assert judged(noisy(seed=seed, step_mb=6.0)) == []
    assert judged(noisy(seed=seed, step_mb=100.0))


def test_memory_too_uneven_to_judge_breaks_the_promise_of_long_runs_only() -> None:
    levels = (0, 300, 40, 390, 10, 210, 350, 90, 260, 150, 5, 310, 120, 240, 380, 60)
    uneven = [sample(at_s, 250.0 + levels[at_s // 12], at_s // 6) for at_s in range(181)]
    longer = [{**one, "at_s": 10 * one["at_s"]} for one in uneven]

    (in_short, notes), (in_long, none) = judge_memory(uneven, SHORT), judge_memory(longer, LONG)

    assert (in_short.broken, none) == ([], [])
    assert all("too uneven to judge" in told for (told,) in (notes, in_long.broken))


@pytest.mark.parametrize("outliers", [{}, {70: 900.0, 130: 900.0}])
def test_the_slope_of_a_line_is_its_slope_whatever_two_points_of_ten_are(outliers: dict[int, float]) -> None:
    line = [sample(at_s, outliers.get(at_s, 100 + at_s / 60), at_s // 10) for at_s in range(60, 180, 10)]

    figures = judge_memory(line, SHORT)[0].figures

    assert figures["slope"] == pytest.approx(60.0)
    assert figures["noise"] == pytest.approx(0.0, abs=1e-6)
    assert figures["limit"] == LIMIT


def test_the_lowest_of_each_window_of_swaps_counts_after_the_warm_up() -> None:
    samples = [(0, 0, 0), (60, 1, 3), (61, 5, 4), (62, 3, 4), (63, 9, 5), (69, 4, 6), (70, 7, 7), (181, 0, 8)]
    made = [sample(*one) for one in samples]

    assert judged_lows(made, SHORT) == [(62, 3), (63, 9), (69, 4), (70, 7)]
    assert judged_lows(made, Settings(duration_s=24.0)) == judged_lows(made[:2], SHORT) == judged_lows([], SHORT) == []
    assert judged(made) == ["the run is too short to tell"]
    assert [len(judged_lows(noisy(seed=1), Settings(duration_s=seconds))) for seconds in (180.0, 72.0)] == [15, 6]


def test_a_long_run_is_held_to_less_growth() -> None:
    assert LONG.max_slope < 60 < LIMIT == SHORT.max_slope < Settings(duration_s=180.0).max_slope
    assert (SHORT.warm_up_s, LONG.warm_up_s) == (60.0, 240.0)
