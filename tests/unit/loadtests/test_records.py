from pathlib import Path

import pytest

from loadtests.records import CallRecord, read_records, write_records
from loadtests.wire import Outcome

RECORD = CallRecord(
    planned_s=1.1,
    sent_s=1.2,
    first_s=1.25,
    ended_s=1.0 / 3 + 2,
    method="TranslateDocument",
    profile="document",
    outcome=Outcome.LATE,
    status="DEADLINE_EXCEEDED decode",
    num_texts=1,
    num_source_tokens=7,
    num_target_tokens=8,
    queue_s=0.1,
    encode_s=0.2,
    decode_s=0.3,
    text_s=0.4,
)


def test_waiting_counts_from_the_planned_moment() -> None:
    assert RECORD.latency_s == pytest.approx(1.2333, abs=1e-4)
    assert RECORD.lag_s == pytest.approx(0.1)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    least = CallRecord(planned_s=0.0, sent_s=0.0, ended_s=1.0, outcome=Outcome.ERROR, status="UNKNOWN")

    write_records(tmp_path / "new" / "calls.jsonl", [RECORD, least])

    assert read_records(tmp_path / "new" / "calls.jsonl") == [RECORD, least]


@pytest.mark.parametrize("line", ["{", "1", "{}", '{"outcome": "lost"}', '{"outcome": "late", "when": 1}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    write_records(tmp_path / "calls.jsonl", [RECORD])
    with (tmp_path / "calls.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(line)

    with pytest.raises(ValueError, match="line 2: no record"):
        read_records(tmp_path / "calls.jsonl")
