import json
from pathlib import Path
from typing import Any

import pytest

from deploy.grafana.__main__ import DASHBOARDS, file_of, main
from tests.unit.deploy.promql import DEPLOY, catalogue, faults

FILES = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
WIDTH = 24
KNOWN = catalogue()


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["panels"]
    return found


def expressions(path: Path) -> list[str]:
    board = json.loads(path.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [expr.replace("$__rate_interval", "1m") for expr in (*asked, board["annotations"]["list"][0]["expr"])]


def places(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return {(column, row) for column in columns for row in rows}


def test_the_files_are_as_generated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err
    assert sorted(map(file_of, DASHBOARDS)) == FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_asks_for_metrics_and_labels_that_exist(path: Path) -> None:
    found = {expr: faults(expr, KNOWN) for expr in expressions(path)}

    assert found
    assert {expr: missing for expr, missing in found.items() if missing} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_are_described_and_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(path):
        own = places(panel)
        assert not own & taken, panel["title"]
        assert max(column for column, _ in own) < WIDTH
        taken |= own
        assert panel["type"] == "row" or (panel["description"] and panel["targets"]), panel["title"]
    assert len({panel["id"] for panel in panels(path)}) == len(panels(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_asks_the_data_source_that_is_chosen(path: Path) -> None:
    sources = {json.dumps(target["datasource"]) for panel in panels(path) for target in panel.get("targets", ())}

    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}


def test_dashboards_have_names_of_their_own() -> None:
    uids = [json.loads(path.read_text(encoding="utf-8"))["uid"] for path in FILES]

    assert len(set(uids)) == len(FILES)
    assert all(uid == f"dragoman-{path.stem}" for uid, path in zip(uids, FILES, strict=True))


@pytest.mark.parametrize(
    "expr",
    ["rate(dragoman_nothing_total[1m])", 'dragoman_ready{color="red"}', "sum by (stage) (dragoman_ready)", "sum(up{)"],
)
def test_a_query_that_is_wrong_is_found(expr: str) -> None:
    try:
        found = faults(expr, KNOWN)
    except ValueError as error:
        found = [str(error)]

    assert found
