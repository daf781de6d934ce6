import json

import numpy as np
import pytest

from loadtests.capacity import report
from loadtests.capacity.report import CapacityRun
from loadtests.capacity.search import SHARES, Point, SearchPlan, find_capacity, measure_curve
from loadtests.slo import parse_slo
from loadtests.workload import Workload
from tests.unit.loadtests.capacity.fake_system import FakeSystem

SLO = parse_slo("p95<500ms")


def measured(log: list[tuple[str, float, int]], told: list[Point]) -> CapacityRun:
    system = FakeSystem("it", log, capacity_per_s=100.0, service_s=0.02)
    capacity = find_capacity(system, SLO, SearchPlan(closed_loop_s=10.0, probe_s=10.0), note=lambda _: None)
    return CapacityRun(
        title="A <model>",
        workload=Workload(),
        texts="sentences.txt",
        objective=str(SLO),
        capacity=capacity,
        points=measure_curve(system, capacity.per_s, duration_s=10.0, seed=7, note=told.append),
        machine={"cpu": "a processor", "cores": 2},
        server=('version="1"',),
        command="python -m loadtests capacity",
    )


def test_the_curve_goes_from_a_tenth_of_the_capacity_to_beyond_it() -> None:
    log: list[tuple[str, float, int]] = []
    told: list[Point] = []

    found = measured(log, told)

    curve = log[-len(SHARES) :]
    assert (min(SHARES), max(SHARES)) == (0.1, 1.2)
    assert [rate for _, rate, _ in curve] == pytest.approx([share * found.capacity.per_s for share in SHARES])
    assert [seed for _, _, seed in curve] == list(range(7, 7 + len(SHARES)))
    assert told == list(found.points)


def test_everything_is_printed_kept_and_drawn() -> None:
    found = measured([], [])

    fields = dict(field.split("=", 1) for field in report.line(found).split()[1:])
    assert float(fields["calls_per_s"]) == pytest.approx(found.capacity.per_s, abs=0.1)
    assert (fields["slo"], fields["closed_loop_per_s"]) == ("p95<500ms", "100.0")
    assert float(fields["p95_ms"]) == pytest.approx(found.points[SHARES.index(1.0)].run.p95_ms, abs=0.1)

    kept = json.loads(json.dumps(report.as_json(found), allow_nan=False))
    latencies, calls = report.picture(found).axes

    assert kept["points"][0]["run"]["summary"]["latency"]["p95_ms"] == found.points[0].run.p95_ms
    assert kept["probes"][-1]["run"]["rate_per_s"] > 0
    assert len(report.table(found.points).splitlines()) == 2 + len(SHARES)
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in (*latencies.lines, *calls.lines)}
    assert drawn["latency p95"] == [point.run.p95_ms for point in found.points]
    assert drawn["answered"] == [point.run.summary.goodput_per_s for point in found.points]
