"""HTTP compared with gRPC: the figures, and the limits that flags set."""

from argparse import Namespace
from pathlib import Path

import pytest

from loadtests.__main__ import main
from loadtests.generator.calls import Outcome
from loadtests.generator.records import CallRecord
from loadtests.scenarios.transports import Row, report_of

LATENCIES_MS = {"GET /healthz": 0.5, "POST /v1/translate": 3.0, "gRPC Translate": 2.25}


def rows(status: str = "200") -> list[Row]:
    """20 calls within 2 seconds in each row; of /healthz, the last has this status."""
    found = []
    for name, latency_ms in LATENCIES_MS.items():
        outcome = Outcome.ANSWERED if status == "200" else Outcome.ERROR
        call = CallRecord(planned_s=0, sent_s=0, ended_s=latency_ms / 1000, outcome=Outcome.ANSWERED, status="200")
        last = CallRecord(planned_s=0, sent_s=0, ended_s=latency_ms / 1000, outcome=outcome, status=status)
        calls = [*[call] * 19, last if name == "GET /healthz" else call]
        found += [Row.of(name, num_connections, calls, 2.0) for num_connections in (1, 4)]
    return found


@pytest.mark.parametrize(
    ("flags", "status", "broken"),
    [
        ({}, "200", []),
        ({"max_overhead_ms": 1.0, "min_health_per_s": 10.0}, "200", []),
        ({"max_overhead_ms": 0.5}, "200", ["HTTP takes 0.75 ms more than gRPC, the limit is 0.5"]),
        ({"min_health_per_s": 11.0}, "200", ["/healthz is answered 10 times a second, at least 11"]),
        ({}, "503", ["GET /healthz on 1: 503", "GET /healthz on 4: 503"]),
    ],
)
def test_each_request_must_be_answered_and_limits_must_hold(
    flags: dict[str, float], status: str, broken: list[str]
) -> None:
    report = report_of(rows(status), Namespace(**{"max_overhead_ms": None, "min_health_per_s": None, **flags}))

    assert report.broken == broken
    assert report.figures["overhead_ms_1"] == "0.75"
    assert "| POST /v1/translate | 4 | 10 | 3.00 |" in report.table


@pytest.mark.parametrize("flags", [["--target", "localhost:1"], ["--http-url", "localhost:1"]])
def test_a_server_needs_both_addresses(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["transports", *flags, "--output", str(tmp_path)])

    assert caught.value.code == 2
    assert "--http-url" in capsys.readouterr().err
