import random

import pytest

from loadtests.scenarios.soak.memory import Sample, Settings, check_memory, window_minima

SHORT, LONG = Settings(duration_s=180.0, growth_limit_mb=16.0), Settings(duration_s=1800.0)
LIMIT = 480.0  # MiB per hour: 16 MiB in two minutes


def sample(at_s: float, rss_mb: float, swaps: int) -> Sample:
    return {"at_s": at_s, "rss_mb": rss_mb, "swaps": swaps}


def judged(samples: list[Sample]) -> list[str]:
    check, notes = check_memory(samples, SHORT)
    return [*check.failures, *notes]


def noisy(seed: int = 1, *, mb_per_h: float = 0.0, step_mb: float = 0.0, each_swap_mb: float = 0.0) -> list[Sample]:
    """Two samples per second with noise, and a second version half of the time."""
    generator = random.Random(seed)  # noqa: S311 - not for secrets

    def rss_mb(at_s: float, num_swaps: int) -> float:
        grown = mb_per_h * at_s / 3600 + each_swap_mb * num_swaps + (step_mb if at_s > 120 else 0.0)
        return 250 + abs(generator.gauss(0, 4)) + (60.0 if at_s % 6 < 3 else 0.0) + grown

    return [sample(index / 2, rss_mb(index / 2, index // 12), index // 12) for index in range(360)]


@pytest.mark.parametrize("seed", range(20))
def test_leak_is_found_but_not_noise_or_a_small_step(seed: int) -> None:
    for harmless in ({}, {"mb_per_h": -5 * LIMIT}, {"step_mb": 6.0}):
        assert judged(noisy(seed, **harmless)) == []
    assert "growth of 1" in judged(noisy(seed, mb_per_h=3 * LIMIT))[0]
    assert judged(noisy(seed, each_swap_mb=9.0))  # the weights of the bundled model
    assert judged(noisy(seed, step_mb=100.0))


def test_noisy_memory_fails_only_long_runs() -> None:
    levels = (0, 300, 40, 390, 10, 210, 350, 90, 260, 150, 5, 310, 120, 240, 380, 60)
    uneven = [sample(at_s, 250.0 + levels[at_s // 12], at_s // 6) for at_s in range(181)]
    longer = [{**one, "at_s": 10 * one["at_s"]} for one in uneven]
    (in_short, notes), (in_long, none) = check_memory(uneven, SHORT), check_memory(longer, LONG)

    assert (in_short.failures, none) == ([], [])
    assert all("too noisy" in sentence for (sentence,) in (notes, in_long.failures))


@pytest.mark.parametrize("outliers", [{}, {70: 900.0, 130: 900.0}])
def test_slope_ignores_two_outliers_of_ten(outliers: dict[int, float]) -> None:
    line = [sample(at_s, outliers.get(at_s, 100 + at_s / 60), at_s // 10) for at_s in range(60, 180, 10)]
    figures = check_memory(line, SHORT)[0].figures

    assert [figures[name] for name in ("slope", "noise", "limit")] == pytest.approx([60.0, 0.0, LIMIT], abs=1e-6)
    assert LONG.max_slope < 60 < LIMIT < Settings(duration_s=180.0).max_slope


def test_minimum_of_each_window_of_swaps_counts_after_the_warm_up() -> None:
    samples = [(0, 0, 0), (60, 1, 3), (61, 5, 4), (62, 3, 4), (63, 9, 5), (69, 4, 6), (70, 7, 7), (181, 0, 8)]
    made = [sample(*one) for one in samples]

    assert (SHORT.warm_up_s, LONG.warm_up_s) == (60.0, 240.0)
    assert window_minima(made, SHORT) == [(62, 3), (63, 9), (69, 4), (70, 7)]
    assert window_minima(made, Settings(duration_s=24.0)) == window_minima(made[:2], SHORT) == []
    assert judged(made) == ["the run is too short to judge"]
    assert [len(window_minima(noisy(), Settings(duration_s=seconds))) for seconds in (180.0, 72.0)] == [15, 6]
