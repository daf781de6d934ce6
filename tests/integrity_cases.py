"""The texts of `tests/data/integrity_cases.jsonl`, with what their translations must preserve."""

import json
from pathlib import Path
from typing import Any, Final

from dragoman_export.evaluation.integrity.checks import GARBAGE, Case
from dragoman_service.request import TextFormat

_PATH = Path(__file__).parent / "data" / "integrity_cases.jsonl"
_FLAGS = ("is_translated", "has_ending", "is_in_capitals", "has_escapes")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_cases(path: Path = _PATH) -> dict[str, Case]:
    """Return the cases by their ids; `tests/data/README.md` describes the fields."""
    return {
        row["id"]: Case(
            kind=row["kind"],
            source=row["text"],
            source_language=row["from"],
            target_language=row["to"],
            format=TextFormat(row.get("format", "plain")),
            keep=tuple(part if isinstance(part, str) else tuple(part) for part in row.get("keep", ())),
            never=(*GARBAGE, *row.get("never", ())),
            has_letters=row.get("has_letters", True),
            **{name: row.get(name, False) for name in _FLAGS},
        )
        for row in _rows(path)
    }


CASES: Final = read_cases()
SPOILED: Final = frozenset(row["id"] for row in _rows(_PATH) if row.get("is_spoiled"))
"""Cases that the bundled models damage in the words, where no rule for texts can help."""
