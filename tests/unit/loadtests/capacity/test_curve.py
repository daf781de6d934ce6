import json
from pathlib import Path

import pytest

from loadtests.capacity import record
from loadtests.capacity.contender import SearchPlan, find_capacities
from loadtests.capacity.curve import SHARES, Point, measure_curve
from loadtests.capacity.picture import write_picture
from loadtests.capacity.record import CapacityRun
from loadtests.slo import parse_slo
from loadtests.workload import Workload
from tests.unit.loadtests.capacity.fake_contender import FakeContender

SLO = parse_slo("p95<500ms")


def measured(log: list[tuple[str, float, int]], told: list[Point]) -> CapacityRun:
    contender = FakeContender("it", log, capacity_per_s=100.0, service_s=0.02)
    plan = SearchPlan(closed_loop_s=10.0, probe_s=10.0)
    capacity = find_capacities({"it": contender}, SLO, plan, note=lambda *_: None)["it"]
    points = measure_curve(contender, capacity.per_s, duration_s=10.0, seed=7, note=told.append)
    return CapacityRun(
        title="A <model>",
        workload=Workload(),
        objective=str(SLO),
        capacity=capacity,
        points=points,
        machine={"cpu": "a processor", "cores": 2},
        server=('version="1"',),
        command="python -m loadtests.capacity",
    )


def test_the_curve_goes_from_a_tenth_of_the_capacity_to_beyond_it() -> None:
    log: list[tuple[str, float, int]] = []
    told: list[Point] = []

    found = measured(log, told)

    assert len(SHARES) >= 8
    assert max(SHARES) == 1.2
    assert [rate for _, rate, _ in log[-len(SHARES) :]] == pytest.approx(
        [share * found.capacity.per_s for share in SHARES]
    )
    assert [seed for _, _, seed in log[-len(SHARES) :]] == list(range(7, 7 + len(SHARES)))
    assert told == list(found.points)


def test_the_search_begins_at_what_callers_who_wait_get() -> None:
    found = measured([], [])

    assert found.capacity.closed_loop_per_s == 100.0
    assert found.capacity.probes[0].run.rate_per_s == pytest.approx(80.0)


def test_the_line_has_the_capacity_and_the_latency_at_it() -> None:
    found = measured([], [])

    fields = dict(field.split("=", 1) for field in record.line(found).split()[1:])

    assert float(fields["calls_per_s"]) == pytest.approx(found.capacity.per_s, abs=0.1)
    assert fields["slo"] == "p95<500ms"
    assert float(fields["p95_ms"]) == pytest.approx(found.points[SHARES.index(1.0)].run.p95_ms, abs=0.1)


def test_everything_is_kept_and_drawn(tmp_path: Path) -> None:
    found = measured([], [])

    kept = json.loads(json.dumps(record.as_json(found), allow_nan=False))
    write_picture(tmp_path / "capacity.png", found)

    assert len(kept["points"]) == len(SHARES)
    assert kept["points"][0]["run"]["summary"]["latency"]["p95_ms"] == found.points[0].run.p95_ms
    assert kept["probes"][-1]["run"]["rate_per_s"] > 0
    assert (tmp_path / "capacity.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_a_row_for_each_rate() -> None:
    found = measured([], [])

    assert len(record.table(found.points).splitlines()) == 2 + len(SHARES)
