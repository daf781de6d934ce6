"""`reference`: the tables of settings and metrics in docs/reference, made from their declarations."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from service.config import setting_fields
from service.telemetry.metrics import Metrics

_CHECKOUT = Path(__file__).resolve().parents[2]


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "reference",
        help="print every setting or metric as a Markdown table",
        description="Prints every setting or every metric of the server as a Markdown table.",
    )
    parser.add_argument("topic", choices=sorted(_TABLES))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; return the exit code."""
    print(_TABLES[arguments.topic]())
    return 0


def settings_table() -> str:
    """Return every setting with its default and meaning."""
    rows = (
        (f"`{name}`", _default(field), " ".join((field.description or "").split()))
        for name, field in setting_fields().items()
    )
    return _table(("Setting", "Default", "Meaning"), rows)


def metrics_table() -> str:
    """Return every metric with its type, labels and meaning."""
    rows = sorted(
        (f"`{row.exposed_name}`", row.kind.__name__.lower(), ", ".join(row.labels), row.documentation)
        for row in Metrics.TABLE.values()
    )
    return _table(("Metric", "Type", "Labels", "Meaning"), rows)


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "computed"
    if isinstance(field.default, Path) and field.default.is_relative_to(_CHECKOUT):
        return f"`{field.default.relative_to(_CHECKOUT)}` of the checkout"
    return "unset" if field.default in (None, "") else f"`{field.default}`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


_TABLES = {"metrics": metrics_table, "settings": settings_table}
