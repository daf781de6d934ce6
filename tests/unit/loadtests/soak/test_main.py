import argparse
from pathlib import Path

import pytest

from loadtests.soak.__main__ import main, settings_for

OPTIONS = argparse.Namespace(callers=16, load=0.65, seed=1, max_growth_mb=None)


@pytest.mark.parametrize(
    "flags", [["--duration", "1"], ["--load", "0"], ["--callers", "0"], ["--max-growth-mb", "0"], ["--mode", "long"]]
)
def test_a_flag_out_of_range_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)

    assert caught.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(("duration_s", "warm_up_s"), [(180.0, 60.0), (1800.0, 240.0)])
def test_most_of_the_time_is_judged_in_windows_that_see_a_swap_each(duration_s: float, warm_up_s: float) -> None:
    settings = settings_for(duration_s, OPTIONS)

    assert settings.warm_up_s == warm_up_s
    assert settings.num_windows >= 10
    assert settings.swap_each_s < (duration_s - warm_up_s) / settings.num_windows


def test_a_long_run_is_held_to_less_growth() -> None:
    assert settings_for(1800.0, OPTIONS).max_slope < 60 < settings_for(180.0, OPTIONS).max_slope
    stricter = argparse.Namespace(**{**vars(OPTIONS), "max_growth_mb": 5.0})
    assert settings_for(180.0, stricter).max_growth_mb == 5.0


def test_a_bundle_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", str(tmp_path / "nowhere"), "--output", str(tmp_path)]) == 1

    assert "nowhere" in capsys.readouterr().err
