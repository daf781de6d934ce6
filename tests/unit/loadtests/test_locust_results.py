"""Figures and thresholds of Locust tests."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.metrics import CPU_SECONDS, Sample
from loadtests.generator.slo import parse_slo
from loadtests.load.results import count_outcomes, figures_of, server_figures, violations

FAILURES = {"rejected: RESOURCE_EXHAUSTED": 2, "CallError('late: DEADLINE_EXCEEDED')": 1, "KeyError('a')": 1}


def statistics(failures: Mapping[str, int], *, num_answered: int = 0, num_left: int = 0) -> Any:
    num_untimed = num_left + sum(count for text, count in failures.items() if "late" not in text)
    total = SimpleNamespace(
        num_requests=num_answered + num_left + sum(failures.values()),
        num_none_requests=num_untimed,
        response_times={200: 3},
        get_response_time_percentile=lambda share: 1000 * share,
        max_response_time=2000,
        start_time=10.0,
        last_request_timestamp=14.0,
    )
    errors = {text: SimpleNamespace(error=text, occurrences=count) for text, count in failures.items()}
    return SimpleNamespace(total=total, errors=errors)


def test_figures_are_shares_of_all_calls() -> None:
    seen = statistics(FAILURES, num_answered=5, num_left=1)
    figures = figures_of(seen)

    assert [count_outcomes(seen)[outcome] for outcome in Outcome] == [5, 2, 1, 1, 1]
    assert (figures["p95"], figures["max"], figures["goodput/s"]) == (0.95, 2.0, 1.25)
    assert figures["goodput"] == 5 / 9  # without the call that its client cancelled
    assert (figures["rejected"], figures["late"], figures["errors"]) == (0.2, 0.1, 0.1)


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({}, []),
        ({"statistics": statistics({})}, ["no call"]),
        ({"lag_ms": 50.0}, ["generator lag"]),
        ({"num_lost_workers": 1}, ["1 workers were lost"]),
        ({"slo": parse_slo("p95<0.9s,p99<1s,rejected<1%,errors<=0%")}, ["p95 is 0.95s", "rejected is 50%"]),
        ({"slo": parse_slo("p95<1s,rejected<60%,goodput>=50%")}, []),
    ],
)
def test_test_fails_for_each_reason(changed: dict[str, Any], failed: list[str]) -> None:
    usual = {"statistics": statistics({"rejected: a": 1}, num_answered=1), "slo": None, "lag_ms": 1, "max_lag_ms": 25.0}

    sentences = violations(**{**usual, **changed})

    assert len(sentences) == len(failed)
    assert all(sentence.startswith(start) for sentence, start in zip(sentences, failed, strict=True))


def test_figures_of_the_server_are_growth_between_both_ends() -> None:
    ends = [{CPU_SECONDS: 1.0, "dragoman_batch_segments_sum": 10.0, "dragoman_batch_segments_count": 5.0,
             "dragoman_target_tokens_total": 100.0, "process_resident_memory_bytes": 2.0**20},
            {CPU_SECONDS: 4.0, "dragoman_batch_segments_sum": 30.0, "dragoman_batch_segments_count": 10.0,
             "dragoman_target_tokens_total": 900.0, "process_resident_memory_bytes": 2.0**21}]  # fmt: skip
    samples = [Sample(at_s=100.0 + 4 * index, values=values) for index, values in enumerate(ends)]

    assert list(server_figures(samples).values()) == ["200", "4.0", "0.75", "2"]
    assert server_figures(samples[:1]) == {}
