from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.soak.judging import Notes
from loadtests.stress.soak.ledger import AccessLog, Logged
from loadtests.stress.soak.run import Settings
from loadtests.stress.soak.scenario import details, judged_lows, progress_line, summarize
from loadtests.stress.verdict import Summary
from tests.unit.loadtests.stress.soak.fake_soak import ENDS, SETTINGS, idle, notes, observations, samples

LINES = tuple(Logged(request_id=status, method="Translate", status=status) for status in ENDS)
BROKEN_VERSION = '{"event": "model could not be loaded", "level": "error"}'


def log(*, lines: tuple[Logged, ...] = LINES, complaints: tuple[str, ...] = (BROKEN_VERSION,)) -> AccessLog:
    return AccessLog(logged=lines, complaints=complaints)


def summary(*, noted: Notes | None = None, heard: AccessLog | None = None, exit_code: int = 0, **found: Any) -> Summary:
    return summarize(observations(**found), noted or notes(), heard or log(), SETTINGS, exit_code=exit_code)


def broken(**changed: Any) -> list[str]:
    return [promise.sentence for promise in summary(**changed).broken]


def test_a_soak_in_which_everything_held_keeps_every_promise() -> None:
    assert broken() == []


def test_the_limit_of_the_slope_is_the_growth_over_the_time_that_is_judged() -> None:
    assert SETTINGS.max_slope == 480.0


def test_memory_too_uneven_to_judge_breaks_the_promise_of_long_runs_only() -> None:
    levels = (0, 300, 40, 390, 10, 210, 350, 90, 260, 150, 5, 310, 120, 240, 380, 60)
    uneven = [replace(sample, rss_mb=250.0 + levels[int(sample.at_s) // 12]) for sample in samples()]
    found = summary(samples=uneven)
    longer = observations(samples=[replace(sample, at_s=10 * sample.at_s) for sample in uneven])
    in_long = summarize(longer, notes(), log(), Settings(duration_s=1800.0))

    assert found.broken == []
    assert "too uneven to judge" in found.notes[0]
    assert ["too uneven to judge" in promise.sentence for promise in in_long.broken] == [True]


def test_memory_is_judged_under_load_and_after_the_warm_up_only() -> None:
    lows = judged_lows(samples(), SETTINGS)

    assert len(lows) == SETTINGS.num_windows
    assert {size_mb for _, size_mb in lows} == {250.0}
    assert lows[0][0] >= SETTINGS.warm_up_s


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"samples": samples(mb_per_s=0.5)}, "memory does not grow: it grows by 1800.0 MB/h"),
        ({"samples": samples()[:90]}, "memory does not grow: the run is too short to tell"),
        ({"after": idle(num_threads=18)}, "nothing is left: 2 threads"),
        ({"after": idle(num_fds=15)}, "nothing is left: 1 fds"),
        ({"after": idle(metrics={"mt_open_streams": 3.0})}, "nothing is left: 3 tasks"),
        ({"after": idle(metrics={"mt_queue_tokens": 9.0})}, "nothing is left: 1 slots"),
        ({"after": idle(metrics={'mt_ready{model="m",version="6"}': 1.0})}, "nothing is left: 1 slots"),
        ({"after": idle(metrics={'mt_model_swaps_total{model="m"}': 31.0})}, "30 were made, the server counted 31"),
        ({"num_swaps": 0, "after": idle(without="swaps")}, "everything is met: run longer: 0 swaps"),
        (
            {"after": idle(metrics={'mt_segments_total{outcome="ok"}': 4.0})},
            "callers got 5 sentences, the server counted 4 segments",
        ),
        (
            {"after": idle(metrics={'mt_segments_total{outcome="error"}': 2.0})},
            "no error that was not provoked: 2 segments failed",
        ),
        ({"num_broken_versions": 0}, "no error that was not provoked"),
        ({"after": idle(without="requests")}, "clients and server know the same calls: "),
    ],
)
def test_each_promise_of_the_server_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    assert any(sentence in told for told in broken(**changed))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"noted": notes(unanswered=["a", "b"])}, "each request is answered: a; b"),
        ({"noted": notes(twice=["a"])}, "no request is answered twice: a"),
        ({"noted": notes(wrong=["a"])}, "each answer is right: a"),
        ({"noted": notes(errors=list("abcdefg"))}, "no error that was not provoked: a; b; c; d; e; and 2 more"),
        ({"noted": notes(last="OK")}, "no call ended with ['NOT_FOUND']"),
        ({"heard": log(complaints=(BROKEN_VERSION, "Traceback"))}, "no error that was not provoked: Traceback"),
        ({"exit_code": -9}, "the server drains: it ended with exit code -9"),
    ],
)
def test_each_promise_can_be_broken_alone(changed: dict[str, Any], sentence: str) -> None:
    (told,) = broken(**changed)

    assert sentence in told


def test_calls_that_the_log_has_twice_or_not_at_all_break_a_promise() -> None:
    assert any("OK was ended 2 times" in told for told in broken(heard=log(lines=(*LINES, LINES[0]))))
    assert any("expected OK, the server says UNSEEN" in told for told in broken(heard=log(lines=LINES[1:])))


def test_fewer_threads_than_before_are_no_leak() -> None:
    assert broken(after=idle(num_threads=12, num_fds=10)) == []


def test_the_line_has_every_figure() -> None:
    assert summary(heard=log(lines=())).line == (
        "soak seconds=181 calls=5 unanswered=0 twice=0 ledger_difference=10 rss_slope_mb_per_h=0.0 rss_noise=0.0 "
        "threads_left=0 fds_left=0 tasks_left=0 slots_left=0 swaps=30 wrong=0 errors=0 verdict=broken"
    )
    assert summary().line.endswith(
        "ledger_difference=0 rss_slope_mb_per_h=0.0 rss_noise=0.0 threads_left=0 fds_left=0 "
        "tasks_left=0 slots_left=0 swaps=30 wrong=0 errors=0 verdict=held"
    )


def test_the_json_holds_the_whole_run() -> None:
    record = details(observations(), notes(), SETTINGS)

    assert len(record["samples"]) == len(samples())
    assert {"kind": "usual Translate", "status": "OK", "count": 1} in record["calls"]


def test_progress_says_how_far_it_is() -> None:
    told = progress_line(samples()[60], SETTINGS)

    assert told == "60 of 180 s: rss_mb=250.0 threads=16 fds=14 calls=600 swaps=10"


@pytest.mark.parametrize(("duration_s", "warm_up_s"), [(180.0, 60.0), (1800.0, 240.0)])
def test_most_of_the_time_is_judged_in_windows_that_see_a_swap_each(duration_s: float, warm_up_s: float) -> None:
    settings = Settings(duration_s=duration_s)

    assert settings.warm_up_s == warm_up_s
    assert settings.num_windows >= 10
    assert settings.swap_each_s < (duration_s - warm_up_s) / settings.num_windows


def test_a_long_run_is_held_to_less_growth() -> None:
    assert Settings(duration_s=1800.0).max_slope < 60 < Settings(duration_s=180.0).max_slope
    assert Settings(duration_s=180.0, growth_limit_mb=5.0).max_slope == 150.0


def test_a_directory_without_a_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--model-dir", str(tmp_path / "nowhere"), "--output", str(tmp_path)]) == 1

    assert "nowhere" in capsys.readouterr().err
