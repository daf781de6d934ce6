import random

import pytest

from loadtests.scenarios.soak.memory import Settings, check_memory

SHORT = Settings(duration_s=48.0, swap_each_s=2.0)  # 8 phases: 3.2 MiB per phase
FULL = Settings(duration_s=1800.0)


def settled(settings: Settings, seed: int = 1, *, noise_mb: float = 1.0, grows_mb: float = 0.0) -> list[float]:
    generator = random.Random(seed)  # noqa: S311 - not for secrets
    return [250 + generator.gauss(0, noise_mb) + grows_mb * phase for phase in range(settings.num_phases)]


@pytest.mark.parametrize("seed", range(20))
def test_leak_is_found_but_not_noise(seed: int) -> None:
    weights_mb, leak_mb = 3 * 9.0, 0.4

    assert check_memory(settled(SHORT, seed), SHORT).failures == []
    assert "exceeds the limit 3.20" in check_memory(settled(SHORT, seed, grows_mb=weights_mb), SHORT).failures[0]
    assert check_memory(settled(FULL, seed), FULL).failures == []
    assert "exceeds the limit 0.16" in check_memory(settled(FULL, seed, grows_mb=leak_mb), FULL).failures[0]


def test_warm_up_is_not_judged_and_outliers_do_not_count() -> None:
    warm_up, line = [100.0, 150.0], [200.0 + phase for phase in range(20)]
    line[5], line[12] = 900.0, 0.0

    check = check_memory([*warm_up, *line], SHORT)

    assert check.figures["growth"] == 1.0
    assert check.figures["lowest"] <= 1.0 <= check.figures["highest"]


def test_noise_beyond_the_limit_and_few_phases_fail() -> None:
    assert "too noisy" in check_memory([0, 0, 300, 40, 390, 10, 350, 90], SHORT).failures[0]
    assert check_memory([250.0] * 7, SHORT).failures == ["the run is too short to judge"]
