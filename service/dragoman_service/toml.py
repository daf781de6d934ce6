"""Configuration files: base of their sections, and a TOML parser with limits on size, depth and numbers.

`tomllib` alone takes quadratic time for dotted keys, raises RecursionError for nested brackets, and returns numbers and
tables that are too large for an error message.
"""

import tomllib
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

MAX_BYTES: Final = 16 * 1024 * 1024
"""Maximum file size."""

_MAX_DOTS: Final = 1_000  # per line: more than in lists of host names, few enough to parse as a key

_MAX_DEPTH: Final = 32  # of nested tables and lists

_INTEGERS: Final = range(-(2**63), 2**63)  # the limit of the TOML specification


class SettingsSection(BaseModel):
    """Settings of one section; unknown settings are errors, and the docstrings are the reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the tables of a file; ValueError if it is not UTF-8, not TOML, or exceeds a limit.

    A byte order mark, as editors on Windows write it, is skipped.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    if any(line.count(b".") > _MAX_DOTS for line in content.split(b"\n")):
        raise ValueError(f"a line with more than {_MAX_DOTS} dots")
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    _check_values(tables)
    return tables


def _check_values(tables: dict[str, Any]) -> None:
    values: list[Any] = [tables]
    for _ in range(_MAX_DEPTH):
        if any(isinstance(value, int) and value not in _INTEGERS for value in values):
            raise ValueError("an integer of more than 64 bits")
        containers = [value for value in values if isinstance(value, dict | list)]
        inner = [value.values() if isinstance(value, dict) else value for value in containers]
        values = [value for group in inner for value in group]
    if values:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
