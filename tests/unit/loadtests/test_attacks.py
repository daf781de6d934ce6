"""Attacks: payloads of growing size, limits and verdicts."""

from typing import Any

import pytest

from loadtests.generator.calls import Reply
from loadtests.hostile.attacks import ATTACKS, Attack, Credentials, Fill, Http, Load
from loadtests.scenarios.bad_inputs.monitor import GRPC, HEALTH, Sample
from loadtests.scenarios.bad_inputs.results import Campaign, Limits, Result, Work, failures_of, limits_of, report_of

CREDENTIALS = Credentials(key="dgm_0123456789ab_secret", key_id="stress")
CONSTANT_HEADS = {"terms-in-words-text"}  # half of the bytes do not depend on the size
ATTACK = Attack(name="a", surface="b", size=8, fill=Fill(), content=Http(), load=Load())
LIMITS = Limits(stall_ms=500.0, p99_ms=250.0)
QUADRATIC = (Work(10, 0.1), Work(20, 0.4))


def sample(*latencies_ms: float, lost: str = "OK") -> Sample:
    probes = [Reply(status="OK", ended_s=latency_ms / 1000) for latency_ms in latencies_ms]
    return Sample(calls={HEALTH: probes, GRPC: [Reply(status=lost)]})


def test_twice_the_size_is_twice_the_bytes() -> None:
    def num_bytes(attack: Attack, size: int) -> int:
        return sum(map(len, attack.payload(size, CREDENTIALS).parts))

    ratios = {}
    for attack in ATTACKS.values():
        if attack.grows and attack.name not in CONSTANT_HEADS:
            largest, head = min(attack.grown_size or attack.size, 500_000), num_bytes(attack, 1)
            ratios[attack.name] = (num_bytes(attack, largest) - head) / (num_bytes(attack, largest // 2) - head)

    assert {name: ratio for name, ratio in ratios.items() if not 1.8 < ratio < 2.2} == {}


@pytest.mark.parametrize(
    ("baseline", "is_short", "limits"),
    [
        (sample(2.0), True, Limits(stall_ms=800.0, p99_ms=400.0)),
        (sample(90.0), True, Limits(stall_ms=900.0, p99_ms=450.0)),
        (sample(2.0), False, Limits(stall_ms=52.0, p99_ms=100.0)),
    ],
)
def test_limits_are_absolute_or_relative_to_the_baseline(baseline: Sample, is_short: bool, limits: Limits) -> None:
    assert limits_of(baseline, is_short=is_short) == limits


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({}, set()),
        ({"sample": sample(*[1.0] * 200, 501.0)}, {"stall"}),
        ({"sample": sample(251.0)}, {"p99"}),
        ({"sample": sample(1.0, lost="UNAVAILABLE")}, {"lost"}),
        ({"works": QUADRATIC}, {"growth"}),
        ({"works": [*QUADRATIC, Work(40, 0.01)]}, {"growth"}),  # the largest input is rejected
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
    result = Result(**{"attack": ATTACK, "sample": sample(2.0, 20.0), **changed})
    report = report_of(Campaign(limits=LIMITS, results=[result]))

    assert failures_of(result, LIMITS).keys() == failed
    assert len(report.failures) == len(failed)
    assert f" attacks=1 attacks_held={1 - len(failed)} " in report.line
