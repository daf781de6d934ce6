"""Shapes, counts and thresholds of Locust tests."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.metrics import CPU_SECONDS, Sample
from loadtests.generator.slo import parse_slo
from loadtests.load.flags import SHAPES
from loadtests.load.results import Tally, violations
from loadtests.load.server_metrics import report_section, series_of
from tests.unit.loadtests.samples import record

STAGES = {"queue_s": 0.1, "encode_s": 0.2, "decode_s": 0.3, "text_s": 0.15}
STATISTICS = SimpleNamespace(
    response_times={200: 3},
    get_response_time_percentile=lambda share: 1000 * share,
    max_response_time=2000,
    start_time=10.0,
    last_request_timestamp=14.0,
)


def tally_of(*outcomes: Outcome, lag_s: float = 0.0) -> Tally:
    tally = Tally()
    for outcome in outcomes:
        tally.add(record(outcome, lag_s=lag_s, **STAGES))
    return tally


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    return importlib.import_module("loadtests.load.shapes")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("steps", [20, 20, 40, 60, 80, 100]),
        ("ramp", [1, 10, 30, 50, 75, 90]),
        ("spike", [20, 20, 20, 100, 20, 20]),
        ("daily", [20, 28, 72, 100, 60, 28]),
    ],
)
def test_shape_sets_the_users_over_the_time(
    name: str, counts: list[int], shapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = getattr(shapes, SHAPES[name])()
    options = SimpleNamespace(run_time=1000, num_users=100)
    shape.runner = SimpleNamespace(environment=SimpleNamespace(parsed_options=options))
    ticks = []
    for elapsed_s in (0, 100, 300, 500, 750, 900, 1000):
        monkeypatch.setattr(shape, "get_run_time", lambda elapsed_s=elapsed_s: elapsed_s)
        ticks.append(shape.tick())

    assert [tick[0] for tick in ticks[:-1]] == counts
    assert ticks[-1] is None


def test_counts_of_workers_are_added() -> None:
    master, workers = Tally(), [tally_of(*Outcome), tally_of(Outcome.ANSWERED, lag_s=0.04)]
    for worker in workers:
        master.merge(worker.take())
        master.merge(worker.take())  # now without calls

    assert master.outcomes == {**dict.fromkeys((one.value for one in Outcome), 1), "answered": 2}
    assert master.lags_ms == {0: 5, 40: 1}
    assert master.stage_means_ms() == pytest.approx({"queue": 100, "encode": 200, "decode": 300, "text": 150})


def test_figures_are_shares_of_all_calls() -> None:
    figures = tally_of(*Outcome, Outcome.ANSWERED).figures(STATISTICS)

    assert (figures["p95"], figures["max"], figures["goodput/s"]) == (0.95, 2.0, 0.5)
    assert figures["goodput"] == 2 / 5  # without the call that its client cancelled
    assert figures["rejected"] == figures["late"] == figures["errors"] == 1 / 6


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({}, []),
        ({"tally": Tally()}, ["no call"]),
        ({"tally": tally_of(Outcome.ANSWERED, lag_s=0.05)}, ["generator lag"]),
        ({"lost_workers": ["a"]}, ["1 workers were lost"]),
        ({"slo": parse_slo("p95<0.9s,p99<1s,rejected<1%,errors<=0%")}, ["p95 is 0.95s", "rejected is 50%"]),
        ({"slo": parse_slo("p95<1s,rejected<60%,goodput>=50%")}, []),
    ],
)
def test_test_fails_for_each_reason(changed: dict[str, Any], failed: list[str]) -> None:
    given = {"tally": tally_of(Outcome.ANSWERED, Outcome.REJECTED), "slo": None, "max_lag_ms": 25.0, **changed}

    sentences = violations(given.pop("tally"), STATISTICS, **given)

    assert len(sentences) == len(failed)
    assert all(sentence.startswith(start) for sentence, start in zip(sentences, failed, strict=True))


def test_series_are_values_or_growth_and_the_report_shows_them() -> None:
    steps = "dragoman_batch_segments_"
    values = [
        {"dragoman_queue_segments": 3.0, CPU_SECONDS: 1.0, f"{steps}sum": 10.0, f"{steps}count": 5.0},
        {},  # the server did not respond
        {"dragoman_queue_segments": 5.0, CPU_SECONDS: 4.0, f"{steps}sum": 30.0, f"{steps}count": 10.0},
    ]
    series = series_of([Sample(at_s=100.0 + 2 * index, values=one) for index, one in enumerate(values)])
    section = report_section({"p95_ms": "7"}, ["a <b>"], series)

    assert {name: points for name, points in series.items() if points} == {
        "queued segments": [(0.0, 3.0), (4.0, 5.0)],
        "segments of a batch step": [(4.0, 4.0)],
        "rejections/s": [(4.0, 0.0)],
        "CPU cores": [(4.0, 0.75)],
    }
    assert all(part in section for part in ("<li>a &lt;b&gt;</li>", "<td>p95_ms</td><td>7</td>", "image/svg+xml"))
