from collections import Counter
from typing import Any

import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.calls import Ended, Ending, Moment, PlannedCall
from loadtests.stress.cancellations import METHODS, Found, planned_calls, summarize
from loadtests.stress.verdict import Summary
from loadtests.wire import Method

GOOD: dict[str, Any] = {
    "num_calls": 100,
    "ends": Counter(CANCELLED=95, OK=5),
    "memory_mb": [100.0] * 10,
    "elapsed_s": 10.0,
}


def summary(**changed: Any) -> Summary:
    return summarize(Found(**{**GOOD, **changed}), exit_code=0, max_rss_growth_mb=32.0)


def test_a_run_that_leaves_nothing_behind_keeps_every_promise() -> None:
    assert summary().line == (
        "cancellations calls=100 rss_growth_mb=0.0 unanswered=0 cancelled=95 answered=5 left=0 rss_mb=100 "
        "calls_per_s=10 verdict=held"
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"unexpected": ["Translate: INTERNAL"]}, "each call is answered or cancelled: Translate: INTERNAL"),
        ({"left": {"mt_queue_segments": 1.0}}, "work is left: {'mt_queue_segments': 1.0}"),
        ({"memory_mb": [100.0, *range(100, 200, 10), 190.0]}, "grows: 90 MB, more than 32"),
        ({"ends": Counter(CANCELLED=100)}, "both ends are met"),
        ({"ends": Counter(OK=100)}, "both ends are met"),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (broken,) = summary(**changed).broken

    assert sentence in broken.sentence


def test_one_high_sample_is_no_growth() -> None:
    assert Found(**{**GOOD, "memory_mb": [100.0] * 60 + [150.0] + [100.0] * 60 + [150.0]}).rss_growth_mb == 0


@pytest.mark.parametrize(
    ("ending", "status", "is_expected"),
    [
        (Ending.WAITS, "OK", True),
        (Ending.WAITS, "CANCELLED", False),
        (Ending.CANCELS, "CANCELLED", True),
        (Ending.CANCELS, "OK", True),
        (Ending.CANCELS, "INTERNAL", False),
    ],
)
def test_a_call_ends_as_its_caller_meant_it_to(ending: Ending, status: str, is_expected: bool) -> None:
    found, method = Found(), Method.TRANSLATE
    planned = PlannedCall(request_id="r", method=method, path=method.path, raw=(b"",), ending=ending)

    found.note(planned, Ended(status=status, is_of_server=True))

    assert (found.ends, found.unexpected == []) == (Counter([status]), is_expected)


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    assert list(planned_calls(METHODS, 50, 1)) == list(planned_calls(METHODS, 50, 1))
    assert list(planned_calls(METHODS, 50, 1)) != list(planned_calls(METHODS, 50, 2))


def test_methods_take_turns_and_each_meets_every_moment() -> None:
    calls = list(planned_calls(METHODS, 600, 1))

    assert Counter(call.method for call in calls) == dict.fromkeys(METHODS, 200)
    assert len({(call.method, call.moment) for call in calls}) == len(METHODS) * len(Moment)


def test_a_stream_whose_caller_waits_is_half_closed() -> None:
    calls = list(planned_calls([Method.TRANSLATE_STREAM], 300, 1))

    assert all(call.half_closes for call in calls if call.moment is Moment.NEVER)
    assert {call.half_closes for call in calls if call.moment is Moment.DECODING} == {True, False}


@pytest.mark.parametrize("flags", [["--calls", "0"], ["--methods", "Translate,Guess"], ["--warm-up", "10000000"]])
def test_a_flag_out_of_range_is_rejected(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cancellations", *flags])

    assert caught.value.code == 2
    assert f"argument {flags[0]}" in capsys.readouterr().err
