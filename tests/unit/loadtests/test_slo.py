import pytest

from loadtests.slo import parse_slo
from tests.unit.loadtests.fake_calls import summary_of


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ("p50<=100ms, p90 <= 0.5s, late<=0%, goodput>=9/s, goodput>90%", []),
        ("p95<400ms", ["p95 is 500ms, the limit is < 400ms"]),
        ("p50<1ms,max<.4s", ["p50 is 100ms, the limit is < 1ms", "max is 0.5s, the limit is < 0.4s"]),
        ("errors<0.1%,rejected<1%", ["errors is 0.9524%, the limit is < 0.1%", "rejected is 3.81%, the limit is < 1%"]),
    ],
)
def test_each_broken_bound_is_told_with_its_figure_and_limit(bounds: str, told: list[str]) -> None:
    summary = summary_of(latencies_s=[0.1] * 90 + [0.5] * 10, num_errors=1, num_rejected=4)

    assert parse_slo(bounds).broken(summary) == told


def test_where_no_call_was_taken_no_latency_was_held() -> None:
    told = ["p95 is not known, as the server took no call; the limit is < 1s"]
    assert parse_slo("p95<1s").broken(summary_of(num_errors=1)) == told
