import pytest

from loadtests.slo import parse_slo
from tests.unit.loadtests.fake_calls import summary_of

GOOD = summary_of(latencies_s=[0.1] * 94 + [0.5] * 6)


def test_an_objective_that_was_held_says_nothing() -> None:
    assert parse_slo("p50<=100ms, p95 <= 0.5s, errors<0.1%, late<=0%, goodput>=10/s, goodput>99.9%").broken(GOOD) == []


def test_each_broken_bound_is_told_with_its_figure_and_limit() -> None:
    summary = summary_of(latencies_s=[0.1] * 90 + [0.5] * 10, num_errors=1, num_rejected=4)

    assert parse_slo("p95<400ms,max<.4s,errors<0.1%,rejected<1%,goodput>=10/s").broken(summary) == [
        "p95 is 500ms, the limit is < 400ms",
        "max is 0.5s, the limit is < 0.4s",
        "errors is 0.9524%, the limit is < 0.1%",
        "rejected is 3.81%, the limit is < 1%",
    ]


def test_where_no_call_was_taken_no_latency_was_held() -> None:
    assert parse_slo("p95<1s").broken(summary_of(num_errors=1)) == [
        "p95 is not known, as the server took no call; the limit is < 1s"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no bound; expected bounds with commas"),
        ("p95<400", "'p95<400' is no bound"),
        ("p95<400ms,", "'' is no bound"),
        ("p96<400ms", "'p96<400ms' is no bound"),
        ("p95=400ms", "is no bound"),
        ("p95<-1ms", "is no bound"),
        ("p95<nanms", "is no bound"),
        ("p95<1%", "p95 is measured in ms or s, not %"),
        ("errors<1ms", "errors is measured in %, not ms"),
        ("goodput>1s", "goodput is measured in % or /s, not s"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_slo(text)
