import itertools
import math
from collections import Counter
from pathlib import Path

import pytest

from loadtests.generator.arrivals import parse_arrivals, poisson


def times(text: str, duration_s: float, *, rate_per_s: float) -> list[float]:
    return parse_arrivals(text, rate_per_s=rate_per_s).times(duration_s, seed=1)


def test_poisson_gaps_are_exponential_and_constant_gaps_equal() -> None:
    arrivals = times("poisson", 60.0, rate_per_s=100.0)

    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert sum(gap < 0.0025 for gap in gaps) / len(gaps) == pytest.approx(0.22, abs=0.03)  # 1 - exp(-1/4)
    assert arrivals != poisson(100.0).times(60.0, seed=2)
    assert times("constant", 1.0, rate_per_s=4.0) == [0.0, 0.25, 0.5, 0.75]


def test_calls_of_a_burst_arrive_at_once() -> None:
    counts = Counter(times("burst:every=5,size=20", 20.0, rate_per_s=10.0))
    assert {at_s: count for at_s, count in counts.items() if count > 1} == dict.fromkeys([2.5, 7.5, 12.5, 17.5], 20)
    assert counts.total() == pytest.approx(200, abs=50)  # the rest of the rate arrives in between
    assert Counter(times("burst", 10.0, rate_per_s=2.0)) == {2.5: 10, 7.5: 10}


def test_ramp_is_linear_and_keeps_the_mean_rate() -> None:
    quarters = Counter(int(at_s // 50) for at_s in times("ramp:from=1,to=19", 200.0, rate_per_s=1.0))
    given = {"ramp": (0.0, 20.0), "ramp:to=15": (5.0, 15.0), "ramp:from=20,to=1": (20.0, 1.0)}

    assert [quarters[index] for index in range(4)] == pytest.approx([162, 388, 612, 838], rel=0.2)
    for text, (start, end) in given.items():
        assert parse_arrivals(text, rate_per_s=10.0).text == f"ramp:from={start},to={end}"


def test_trace_starts_with_its_first_call(tmp_path: Path) -> None:
    trace = tmp_path / "trace, of Monday.jsonl"
    trace.write_text('{"offset_s": 102.0, "method": "ListModels"}\n100.5\n\n{"offset_s": 101}\n200\n', encoding="utf-8")

    arrivals = parse_arrivals(f"trace:{trace},speed=2", rate_per_s=1.0)

    assert arrivals.methods == (None, None, "ListModels", None)
    assert arrivals.times(10.0, seed=1) == times(arrivals.text, 10.0, rate_per_s=1.0) == [0.0, 0.25, 0.75]


@pytest.mark.parametrize("line", ["soon", "[1]", '{"at": 1}', "NaN", '{"offset_s": 1, "method": 2}'])
def test_invalid_line_of_a_trace_is_named(tmp_path: Path, line: str) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text(f"1\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"trace\.txt, line 2"):
        parse_arrivals(f"trace:{trace}", rate_per_s=1.0)


@pytest.mark.parametrize("duration_s", [0.0, -1.0, math.nan, math.inf])
def test_invalid_duration_is_rejected(duration_s: float) -> None:
    with pytest.raises(ValueError, match="duration"):
        poisson(1.0).times(duration_s, seed=1)
