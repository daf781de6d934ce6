"""The dashboards as Grafana reads them: their queries, with the variables replaced as it does it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.ci.watching.shipped import DEPLOY

FOLDER: Final = DEPLOY / "grafana" / "dashboards"

_INSTANT_KINDS: Final = frozenset({"stat", "table"})
_VARIABLE: Final = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")


class EmptyVariableError(Exception):
    """There is nothing to choose a variable among."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardQuery:
    """One expression of a panel."""

    board: str
    """Name of its file."""
    panel: str
    """Title."""
    kind: str
    """Grafana's type of the panel."""
    expr: str
    """With every variable replaced."""
    legend: str
    unit: str
    has_exemplars: bool

    @property
    def is_instant(self) -> bool:
        """Whether one moment is asked for."""
        return self.kind in _INSTANT_KINDS

    @property
    def legend_labels(self) -> set[str]:
        """Labels that the legend shows."""
        return set(re.findall(r"{{(\w+)}}", self.legend))

    def __str__(self) -> str:
        """Return where it is, for messages."""
        return f"{self.board} / {self.panel}: {self.expr}"


def board_files() -> list[Path]:
    """Return the files of all dashboards."""
    return sorted(FOLDER.glob("*.json"))


def chosen(rate_interval: str, find: Callable[[str, str], Sequence[str]]) -> dict[str, str]:
    """Return the value of each variable of the dashboards, with everything chosen.

    Args:
        rate_interval: what rates are taken over.
        find: returns the values that a label of some series has.

    Raises:
        EmptyVariableError: if there is nothing to choose among.
    """
    values = {"__rate_interval": rate_interval}
    for path, board in _boards():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            match = _VARIABLE.fullmatch(variable["definition"])
            found = find(match["label"], replaced(match["series"], values)) if match else ()
            if not found:
                raise EmptyVariableError(f"variable {variable['name']} of {path.name} has no values")
            values[variable["name"]] = "|".join(found)
    return values


def queries(values: Mapping[str, str]) -> list[BoardQuery]:
    """Return what all panels of all dashboards ask."""
    return [
        BoardQuery(
            board=path.stem,
            panel=panel["title"],
            kind=panel["type"],
            expr=replaced(target["expr"], values),
            legend=target["legendFormat"],
            unit=panel["fieldConfig"]["defaults"]["unit"],
            has_exemplars=target["exemplar"],
        )
        for path, board in _boards()
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


def annotations(values: Mapping[str, str]) -> list[str]:
    """Return what is marked in the panels of all dashboards."""
    return [
        replaced(annotation["expr"], values) for _, board in _boards() for annotation in board["annotations"]["list"]
    ]


def replaced(expr: str, values: Mapping[str, str]) -> str:
    """Return an expression with its variables replaced."""
    for name, value in values.items():
        expr = re.sub(rf"\${name}\b", value, expr)
    return expr


def _boards() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in board_files():
        yield path, json.loads(path.read_text(encoding="utf-8"))
