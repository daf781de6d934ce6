import argparse
import time
from typing import Any

import pytest

from loadtests.flags import add_workload_flags
from loadtests.session import Plan, Session

SOON_S = 2.0


class FakeRunner:
    """Hears of messages, and hands them to the listeners of the same process, as Locust's lone runner does."""

    worker_index = 0

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}
        self.sent: list[str] = []
        self.data: list[Any] = []

    def register_message(self, name: str, listener: Any) -> None:
        self.listeners[name] = listener

    def send_message(self, name: str, data: Any = None) -> None:
        self.sent.append(name)
        self.data.append(data)

    def quit(self) -> None:
        self.sent.append("quit")


class FakeEnvironment:
    def __init__(self, **options: Any) -> None:
        self.runner = FakeRunner()
        self.parsed_options = flags(**options)
        self.host = "localhost:1"


def flags(**changed: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_workload_flags(parser, profile_flag="--texts")
    usual = {"arrivals": "poisson", "rate": 20.0, "duration": 2.0, "warm_up": 1.0, "seed": 1, "run_time": None}
    role = {"master": False, "worker": False, "expect_workers": 1, "records": None, "ca": None}
    return argparse.Namespace(**{**vars(parser.parse_args([])), **usual, **role, **changed})


def session(**options: Any) -> tuple[Session, FakeRunner]:
    environment = FakeEnvironment(**options)
    return Session(environment, lambda function: function()), environment.runner


def test_all_processes_together_make_every_call_once() -> None:
    whole = list(Plan(flags()).share(0, 1))

    shares = [list(Plan(flags()).share(index, 3)) for index in range(3)]

    assert [shares[index % 3][index // 3] for index in range(len(whole))] == whole
    assert len(whole) > 30


def test_users_of_a_closed_loop_have_calls_without_end_until_time_is_up() -> None:
    plan = Plan(flags(arrivals="closed"))

    share = plan.share(0, 2)

    assert [next(share)[1] for _ in range(1000)] == [None] * 1000
    assert [plan.is_over(elapsed_s) for elapsed_s in (0.0, 2.9, 3.0)] == [False, False, True]


def test_a_schedule_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="--arrivals needs --duration or --run-time"):
        session(duration=None)


def test_the_run_time_of_locust_is_the_duration_where_none_is_given() -> None:
    environment = FakeEnvironment(duration=None, run_time=7)

    Session(environment, lambda function: function())

    assert environment.parsed_options.duration == 7.0


def test_the_master_begins_when_all_are_prepared_and_ends_when_all_are_done() -> None:
    _, runner = session(master=True, expect_workers=2)

    for name in ("dragoman-prepared", "dragoman-prepared", "dragoman-done", "dragoman-done"):
        runner.listeners[name](environment=None, msg=None)

    assert runner.sent == ["dragoman-begin", "quit"]
    assert 0 < runner.data[0]["began_s"] - time.monotonic() < SOON_S


def test_one_worker_that_is_not_ready_holds_back_the_start() -> None:
    _, runner = session(master=True, expect_workers=2)

    runner.listeners["dragoman-prepared"](environment=None, msg=None)

    assert runner.sent == []
