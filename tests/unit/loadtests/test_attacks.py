"""Attacks: their payloads, the end of responses, and the checks."""

from collections.abc import Sequence
from typing import Any

import pytest

from loadtests.generator.calls import Reply
from loadtests.scenarios.bad_inputs.attacks.attack import ATTACKS, TIMEOUT, Attack, Port, Way
from loadtests.scenarios.bad_inputs.attacks.payload import Credentials, fill, make_payload
from loadtests.scenarios.bad_inputs.attacks.results import (
    Campaign,
    Limits,
    Result,
    Work,
    failures_of,
    limits_of,
    report_of,
)
from loadtests.scenarios.bad_inputs.attacks.send import Sent
from loadtests.scenarios.bad_inputs.attacks.watch import GRPC, HEALTH, Seen
from loadtests.scenarios.bad_inputs.kinds import KINDS

CREDENTIALS = Credentials(key="dgm_0123456789ab_secret", key_id="stress")
CONSTANT_HEADS = {"terms-in-words-text", "terms-long"}  # half of the bytes do not depend on the size


def seen(*latencies_ms: float, lost: str = "OK") -> Seen:
    probes = [Reply(status="OK", ended_s=latency_ms / 1000) for latency_ms in latencies_ms]
    return Seen(calls={HEALTH: probes, GRPC: [Reply(status=lost)]})


ATTACK = Attack(name="a", surface="b", size=8)
LIMITS = Limits(stall_ms=500.0, p99_ms=250.0)
HELD = {"attack": ATTACK, "seen": seen(2.0, 20.0), "sent": Sent(statuses={"200": 3}, seconds=1.0)}


def result(**changed: Any) -> Result:
    return Result(**{**HELD, **changed})


def campaign(*results: Result, **changed: Any) -> Campaign:
    return Campaign(**{"quiet": seen(1.0), "limits": LIMITS, "results": list(results), **changed})


def test_attacks_cover_all_surfaces_and_expect_no_server_error() -> None:
    short = [one for one in ATTACKS.values() if one.is_short]

    assert not ATTACKS.keys() & KINDS.keys()
    assert {one.surface for one in short if one.is_stopped} >= {"chunks", "slow clients", "documents, html"}
    assert not {"500", "INTERNAL"} & set().union(*(one.expected for one in ATTACKS.values()))
    assert {one.way for one in ATTACKS.values() if TIMEOUT in one.expected} == {Way.DRIP, Way.UNREAD}


def test_twice_the_size_is_twice_the_bytes() -> None:
    def num_bytes(attack: Attack, size: int) -> int:
        return sum(map(len, make_payload(attack, size, CREDENTIALS).parts))

    ratios = {}
    for attack in ATTACKS.values():
        if attack.grows and attack.name not in CONSTANT_HEADS:
            largest, head = min(attack.grown_size or attack.size, 500_000), num_bytes(attack, 1)
            ratios[attack.name] = (num_bytes(attack, largest) - head) / (num_bytes(attack, largest // 2) - head)

    assert {name: ratio for name, ratio in ratios.items() if not 1.8 < ratio < 2.2} == {}


def test_fill_closes_what_it_opens() -> None:
    assert fill(ATTACKS["tags-matched-plain"], 21) == "<b>" * 3 + "</b>" * 3
    assert fill(ATTACKS["tags-distinct-html"], 22) == "<a100003><a100010>"


def test_payloads_are_requests_without_open_templates() -> None:
    payloads = [(one, make_payload(one, max(1, min(one.size, 1000)), CREDENTIALS)) for one in ATTACKS.values()]

    assert all(bool(payload.path) == (attack.port is Port.GRPC) for attack, payload in payloads)
    assert all(len(payload.parts) == 1 for _, payload in payloads if payload.path)
    marks = (b"{fill}", b"{key", b"{kid}", b"{token}")
    assert not [one.name for one, payload in payloads if any(mark in payload.parts[0] for mark in marks)]


@pytest.mark.parametrize(
    ("quiet", "is_short", "limits"),
    [
        (seen(2.0), True, Limits(stall_ms=800.0, p99_ms=400.0)),
        (seen(90.0), True, Limits(stall_ms=900.0, p99_ms=450.0)),
        (seen(2.0), False, Limits(stall_ms=52.0, p99_ms=100.0)),
    ],
)
def test_limits_are_absolute_or_relative_to_the_quiet_server(quiet: Seen, is_short: bool, limits: Limits) -> None:
    assert limits_of(quiet, is_short=is_short) == limits


QUADRATIC = (Work(10, 0.1), Work(20, 0.4))


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({}, set()),
        ({"seen": seen(*[1.0] * 200, 501.0)}, {"stall"}),
        ({"seen": seen(251.0)}, {"p99"}),
        ({"seen": seen(1.0, lost="UNAVAILABLE")}, {"lost"}),
        ({"works": QUADRATIC}, {"growth"}),
        ({"works": [Work(10, 0.1), Work(20, 0.29)]}, set()),
        ({"works": [Work(10, 0.1), Work(40, 0.8)]}, set()),
        ({"works": [Work(10, 0.01), Work(40, 0.16)]}, {"growth"}),
        ({"works": [Work(20, 0.06), Work(40, 0.07), Work(80, 0.25)]}, set()),  # one measurement is off
        ({"works": [Work(20, 0.02), Work(40, 0.07), Work(80, 0.25)]}, {"growth"}),
        ({"works": [Work(10, 0.001), Work(20, 0.02)]}, set()),  # too little work
        ({"works": QUADRATIC[1:]}, set()),
        ({"end_s": 9.9}, set()),
        ({"end_s": 10.1}, {"end"}),
        ({"faults": ["answered 500"]}, {"faults"}),
    ],
)
def test_each_check_of_an_attack_can_fail_alone(changed: dict[str, Any], failed: set[str]) -> None:
    report = report_of(campaign(result(**changed)))

    assert failures_of(result(**changed), LIMITS).keys() == failed
    assert len(report.failures) == len(failed)
    assert f" attacks=1 attacks_held={1 - len(failed)} " in report.line


@pytest.mark.parametrize("changed", [{"server_faults": ["a traceback"]}, {"skipped": ["chunks"]}])
def test_logged_errors_and_skipped_attacks_fail(changed: dict[str, Sequence[str]]) -> None:
    assert [list(check.failures) for check in report_of(campaign(**changed)).failed] == list(changed.values())
