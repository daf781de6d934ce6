from typing import Any

import pytest

from loadtests.cancellations.__main__ import broken_promises, line, main
from loadtests.cancellations.soak import SoakResult

GOOD: dict[str, Any] = {
    "num_calls": 100,
    "ends": {"CANCELLED": 95, "OK": 5},
    "unanswered": [],
    "memory_mb": [100.0] * 10,
    "left": {},
    "elapsed_s": 10.0,
}


def test_a_soak_of_which_nothing_stays_keeps_every_promise() -> None:
    assert broken_promises(SoakResult(**GOOD), max_rss_growth_mb=32.0) == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"unanswered": ["unary, left never: INTERNAL"]}, "1 calls ended as they should not have, the first: unary"),
        ({"left": {"mt_queue_segments": 1.0}}, "work is left: {'mt_queue_segments': 1.0}"),
        ({"memory_mb": [100.0, *range(100, 200, 10), 190.0]}, "grew by 90.0 MB, more than 32"),
        ({"ends": {"CANCELLED": 100}}, "not every kind of end was met"),
        ({"ends": {"OK": 100}}, "not every kind of end was met"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = broken_promises(SoakResult(**{**GOOD, **changed}), max_rss_growth_mb=32.0)

    assert sentence in broken


def test_the_line_has_the_promises_first() -> None:
    assert line(SoakResult(**GOOD)).startswith("cancellations calls=100 rss_growth_mb=0.0 unanswered=0 ")


def test_one_high_sample_is_no_growth() -> None:
    result = SoakResult(**{**GOOD, "memory_mb": [100.0] * 60 + [150.0] + [100.0] * 60 + [150.0]})

    assert result.rss_growth_mb == 0


@pytest.mark.parametrize("flags", [["--calls", "0"], ["--methods", "unary,telepathy"], ["--warm-up", "10000000"]])
def test_a_flag_out_of_range_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)

    assert caught.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err
