import random

import pytest

from loadtests.scenarios.soak.memory import Settings, check_memory, needs_phase

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


def test_noisy_run_goes_on_until_the_noise_is_averaged_out() -> None:
    noisy = [248.2, 248.4, 249.1, 248.8, 256.4, 260.9, 249.9, 249.7]
    count = SHORT.num_phases

    assert "too noisy" in check_memory(noisy, SHORT).failures[0]
    assert [needs_phase(noisy[:length], SHORT) for length in (0, count - 1, count)] == [True, True, True]
    assert not needs_phase(settled(SHORT), SHORT)
    assert not needs_phase(settled(SHORT, grows_mb=9.0), SHORT)
    assert check_memory([*noisy, 249.5, 250.1, 249.8], SHORT).failures == []
    assert not needs_phase([*noisy, 0.0, 300.0, 40.0, 390.0, 10.0, 350.0, 90.0, 200.0], SHORT)
