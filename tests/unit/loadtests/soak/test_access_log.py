import json
from pathlib import Path

from loadtests.soak.access_log import parse_access_log, read_access_log
from loadtests.soak.ledger import Logged


def line(**fields: object) -> str:
    return json.dumps({"level": "info", "method": "Translate", "status": "OK", "request_id": "a", **fields}) + "\n"


def test_requests_are_counted_and_a_stream_only_if_it_failed() -> None:
    found = parse_access_log(
        [
            line(event="request"),
            line(event="stream", request_id="b", method="TranslateStream"),
            line(
                event="stream", request_id="c", method="TranslateStream", status="NOT_FOUND", reason="MODEL_NOT_FOUND"
            ),
            line(event="ready"),
        ]
    )

    assert found.logged == (
        Logged(request_id="a", method="Translate", status="OK"),
        Logged(request_id="c", method="TranslateStream", status="NOT_FOUND"),
    )
    assert found.complaints == ()


def test_errors_and_what_is_no_record_are_complaints() -> None:
    failed, traceback, number = (
        line(event="request failed", level="error"),
        "Traceback (most recent call last):\n",
        "7\n",
    )

    found = parse_access_log([failed, "\n", traceback, number])

    assert found.complaints == (failed.strip(), traceback.strip(), "7")


def test_a_file_is_read_even_where_it_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(line(event="request").encode() + b"\xff\n")

    found = read_access_log(tmp_path / "server.log")

    assert len(found.logged) == len(found.complaints) == 1
