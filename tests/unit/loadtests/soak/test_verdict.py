from dataclasses import replace
from typing import Any

import pytest

from loadtests.soak.access_log import AccessLog
from loadtests.soak.book import Book
from loadtests.soak.ledger import Logged
from loadtests.soak.observations import Observations
from loadtests.soak.run import counted_requests
from loadtests.soak.verdict import broken_promises, judged_lows, memory_doubt, summarize
from tests.unit.loadtests.soak.fake_soak import ENDS, SETTINGS, book, footprint, idle, observations, samples

LINES = tuple(Logged(request_id=status, method="Translate", status=status) for status in ENDS)
BROKEN_VERSION = '{"event": "model could not be loaded", "level": "error"}'


def log(*, lines: tuple[Logged, ...] = LINES, complaints: tuple[str, ...] = (BROKEN_VERSION,)) -> AccessLog:
    return AccessLog(logged=lines, complaints=complaints)


def broken(found: Observations | None = None, notes: Book | None = None, heard: AccessLog | None = None) -> list[str]:
    summary = summarize(found or observations(), notes or book(), heard or log(), SETTINGS)
    return broken_promises(summary, SETTINGS)


def test_a_soak_in_which_everything_held_keeps_every_promise() -> None:
    assert broken() == []


def test_the_limit_of_the_slope_is_the_growth_over_the_time_that_is_judged() -> None:
    assert SETTINGS.max_slope == 480.0


def test_memory_too_uneven_to_judge_breaks_the_promise_of_long_runs_only() -> None:
    levels = (0, 300, 40, 390, 10, 210, 350, 90, 260, 150, 5, 310, 120, 240, 380, 60)
    uneven = [replace(sample, footprint=footprint(250.0 + levels[int(sample.at_s) // 12])) for sample in samples()]
    summary = summarize(observations(samples=uneven), book(), log(), SETTINGS)

    (sentence,) = broken_promises(summary, SETTINGS)
    in_short = broken_promises(summary, replace(SETTINGS, must_be_sure_of_memory=False))

    assert "too uneven to judge" in sentence
    assert memory_doubt(summary, SETTINGS) == sentence
    assert in_short == []


def test_memory_is_judged_under_load_and_after_the_warm_up_only() -> None:
    lows = judged_lows(samples(), SETTINGS)

    assert len(lows) == SETTINGS.num_windows
    assert {size_mb for _, size_mb in lows} == {250.0}
    assert lows[0][0] >= SETTINGS.warm_up_s


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"samples": samples(mb_per_s=0.5)}, "memory grows by 1800.0 MB/h"),
        ({"samples": samples()[:63]}, "too short to tell whether memory grows"),
        ({"after": idle(footprint=footprint(num_threads=18))}, "2 threads are left"),
        ({"after": idle(footprint=footprint(num_fds=15))}, "1 open files are left"),
        ({"after": idle(open_calls={"mt_open_streams": 3.0})}, "3 calls still counted as being answered are left"),
        ({"after": idle(held_segments={"mt_queue_tokens": 9.0})}, "1 gauges of queue, batches and versions"),
        ({"after": idle(versions=("6", "7"))}, "1 gauges of queue, batches and versions"),
        ({"num_swaps_counted": 31}, "30 swaps were made, the server counted 31"),
        ({"num_swaps": 0, "num_swaps_counted": 0}, "not everything was met, run longer: 0 swaps"),
        ({"num_segments_ok": 4}, "callers got 5 sentences, the server counted 4 segments"),
        ({"num_segments_failed": 2}, "1 errors that nobody provoked: 2 segments failed"),
        ({"num_broken_versions": 0}, "1 errors that nobody provoked"),
        ({"counted": {}}, "5 calls differ between clients and server"),
    ],
)
def test_each_promise_of_the_server_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    assert any(sentence in told for told in broken(observations(**changed)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"unanswered": ["a", "b"]}, "2 requests were not answered: a; b"),
        ({"twice": ["a"]}, "1 requests were answered twice: a"),
        ({"wrong": ["a"]}, "1 answers are wrong: a"),
        ({"errors": list("abcdefg")}, "7 errors that nobody provoked: a; b; c; d; e; and 2 more"),
        ({"status": "OK"}, "no call ended with ['NOT_FOUND']"),
    ],
)
def test_each_promise_to_the_callers_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    (told,) = broken(notes=book(**changed))

    assert sentence in told


def test_calls_that_the_log_has_twice_or_not_at_all_break_a_promise() -> None:
    assert any("OK was ended 2 times" in told for told in broken(heard=log(lines=(*LINES, LINES[0]))))
    assert any("expected OK, the server says UNSEEN" in told for told in broken(heard=log(lines=LINES[1:])))


def test_a_complaint_of_the_server_is_an_error() -> None:
    (told,) = broken(heard=log(complaints=(BROKEN_VERSION, "Traceback (most recent call last):")))

    assert told == "1 errors that nobody provoked: Traceback (most recent call last):"


def test_fewer_threads_than_before_are_no_leak() -> None:
    assert broken(observations(after=idle(footprint=footprint(num_threads=12, num_fds=10)))) == []


def test_counters_of_requests_are_read_by_method_and_status() -> None:
    exposed = {
        'mt_requests_total{method="Translate",status="OK"}': 3.0,
        'mt_segments_total{outcome="ok"}': 9.0,
    }

    assert counted_requests(exposed) == {("Translate", "OK"): 3}
