import math
import random

import pytest

from loadtests.stress.soak.memory import doubt, growth, lows, trend

WINDOWS = 15
SECONDS = 120
LIMIT = 480.0  # MiB per hour: 16 MiB in two minutes


def judged(series: list[tuple[float, float, int]]) -> list[str]:
    found = trend(lows(series, num_windows=WINDOWS))
    assert found is not None
    return growth(found, max_slope=LIMIT) or doubt(found, max_slope=LIMIT)


def noisy(
    *, seed: int, leak_mb_per_h: float = 0.0, step_mb: float = 0.0, each_swap_mb: float = 0.0
) -> list[tuple[float, float, int]]:
    """Two samples a second: noise, half of the time a second version beside, and what is asked for."""
    generator = random.Random(seed)  # noqa: S311 - not for secrets
    series = []
    for index in range(2 * SECONDS):
        at_s = index / 2
        beside = 60.0 if at_s % 6 < 3 else 0.0
        grown = leak_mb_per_h * at_s / 3600 + each_swap_mb * (at_s // 6) + (step_mb if at_s > SECONDS / 2 else 0.0)
        series.append((at_s, 250 + abs(generator.gauss(0, 4)) + beside + grown, int(at_s // 6)))
    return series


@pytest.mark.parametrize("seed", range(20))
def test_flat_noise_is_no_leak(seed: int) -> None:
    assert judged(noisy(seed=seed)) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_leak_above_the_limit_is_found(seed: int) -> None:
    (sentence,) = judged(noisy(seed=seed, leak_mb_per_h=3 * LIMIT))

    assert "grows by 1" in sentence


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_at_each_swap_is_found(seed: int) -> None:
    assert judged(noisy(seed=seed, each_swap_mb=9.0))  # the weights of the model that ships


@pytest.mark.parametrize("seed", range(5))
def test_a_small_step_is_no_leak_and_a_large_one_cannot_be_told_from_one(seed: int) -> None:
    assert judged(noisy(seed=seed, step_mb=6.0)) == []
    assert judged(noisy(seed=seed, step_mb=100.0))


def test_what_is_too_uneven_to_judge_does_not_pass() -> None:
    generator = random.Random(1)  # noqa: S311 - not for secrets
    levels = [generator.uniform(0, 400) for _ in range(WINDOWS)]

    (sentence,) = judged([(float(at_s), 250 + levels[at_s * WINDOWS // SECONDS], at_s // 6) for at_s in range(SECONDS)])

    assert "too uneven to judge" in sentence


def test_memory_that_shrinks_keeps_the_promise() -> None:
    assert judged(noisy(seed=1, leak_mb_per_h=-5 * LIMIT)) == []


def test_the_slope_of_a_line_is_its_slope_and_has_no_noise() -> None:
    found = trend([(float(at_s), 100 + at_s / 60) for at_s in range(0, 600, 60)])

    assert found is not None
    assert math.isclose(found.slope, 60.0)
    assert found.noise == pytest.approx(0.0, abs=1e-6)


def test_two_outliers_of_ten_do_not_move_the_slope() -> None:
    points = [(float(index), 100.0) for index in range(10)]
    points[3], points[8] = (3.0, 900.0), (8.0, 900.0)

    found = trend(points)
    assert found is not None
    assert found.slope == 0


def test_the_lowest_of_each_window_of_swaps_counts() -> None:
    samples = [(0, 1, 3), (1, 5, 4), (2, 3, 4), (3, 9, 5), (9, 4, 6), (10, 7, 7)]

    assert lows(samples, num_windows=2) == [(2, 3), (9, 4)]
    assert lows(samples, num_windows=9) == [(2, 3), (3, 9), (9, 4), (10, 7)]
    assert lows([], num_windows=5) == lows(samples[:1], num_windows=5) == []


def test_few_points_have_no_trend() -> None:
    assert trend([(float(index), 1.0) for index in range(5)]) is None
