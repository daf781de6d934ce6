"""Columns and formats of a dataset, and the error of everything that cannot be used."""

from dataclasses import dataclass
from typing import Any, Final

from dragoman_service.errors import DragomanError

FORMATS: Final = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".txt": "text"}
OUTPUT_FORMATS: Final = ("parquet", "jsonl")


class DatasetError(DragomanError):
    """A flag, an input file or the output directory cannot be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} is {value}: expected {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns and formats of a dataset."""

    text: str
    translation: str
    input_format: str
    output_format: str
    max_characters: int | None  # of a text; None: the server decides
    header: tuple[str, ...] = ()  # of CSV files
    schema: Any = None  # of Parquet output; None: that of each input file

    @property
    def added(self) -> tuple[str, str, str, str]:
        """Columns that the output has in addition to those of the input."""
        return "row_id", self.translation, "score", "warnings"
