"""What became of each call: the ledger of a run, in memory and as JSON lines."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtests.wire import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call; times in seconds on `time.monotonic()`, which all processes of a machine share."""

    planned_s: float
    """When it should have been sent. Waiting is counted from here, or a slow generator would hide it."""

    sent_s: float
    first_s: float | None = None
    """When the first message of a stream of answers came; None: none came, or the method answers once."""

    ended_s: float
    method: str = "Translate"
    """Name of the method without its service, such as `TranslateDocument`."""

    profile: str = ""
    """Of the texts; empty where there are none."""

    outcome: Outcome
    status: str
    """Name of the gRPC status, and behind it what else is known."""

    num_texts: int = 0
    num_source_tokens: int = 0
    num_target_tokens: int = 0
    queue_s: float | None = None
    """As the next three, of the server's own account (`StageTimings`); None: there is none. The longest of a stream."""

    encode_s: float | None = None
    decode_s: float | None = None
    text_s: float | None = None

    @property
    def latency_s(self) -> float:
        """What a caller who came as planned has waited."""
        return self.ended_s - self.planned_s

    @property
    def lag_s(self) -> float:
        """How late the generator was."""
        return self.sent_s - self.planned_s


def write_records(path: Path, records: Iterable[CallRecord]) -> None:
    """Write records, one a line, in place of an older file; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps({**asdict(record), "outcome": record.outcome.value}) + "\n")


def read_records(path: Path) -> list[CallRecord]:
    """Return what `write_records` wrote.

    Raises:
        ValueError: if a line is no record; the message names it.
        OSError: if the file cannot be read.
    """
    records = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            try:
                values = json.loads(line)
                records.append(CallRecord(**{**values, "outcome": Outcome(values["outcome"])}))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: no record of a call: {line[:60]!r}") from error
    return records
