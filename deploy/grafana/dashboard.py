"""Dashboards: rows of panels below each other, the variables to choose by, and the alerts marked in every panel."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.grafana.panels import DATASOURCE, Json, Panel

_COLUMNS: Final = 24
_SCHEMA_VERSION: Final = 39  # of Grafana 10.2; newer ones migrate it when they load it
_TAG: Final = "dragoman"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading, as many beside each other as there is room for."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of Grafana."""

    name: str
    """Of its file, and in its address."""

    title: str
    description: str
    rows: Sequence[Row]

    def to_text(self) -> str:
        """Return the file."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def to_json(self) -> Json:
        """Return what Grafana reads."""
        return {
            "annotations": {"list": [_alerts()]},
            "description": self.description,
            "editable": False,
            "graphTooltip": 1,  # one crosshair in all panels
            "links": [_link_to_the_others()],
            "panels": list(self._panels()),
            "refresh": "30s",
            "schemaVersion": _SCHEMA_VERSION,
            "tags": [_TAG],
            "templating": {"list": [_datasource(), *_CHOICES]},
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "",
            "title": f"Dragoman / {self.title}",
            "uid": f"dragoman-{self.name}",
            "version": 1,
        }

    def _panels(self) -> Iterator[Json]:
        panel_id, y = 0, 0
        for row in self.rows:
            panel_id += 1
            yield _heading(row.title, panel_id, y)
            y += 1
            x = height = 0
            for panel in row.panels:
                if x + panel.width > _COLUMNS:
                    x, y, height = 0, y + height, 0
                panel_id += 1
                yield panel.to_json(panel_id, x=x, y=y)
                x, height = x + panel.width, max(height, panel.height)
            y += height


def _heading(title: str, panel_id: int, y: int) -> Json:
    place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
    return {"collapsed": False, "gridPos": place, "id": panel_id, "panels": [], "title": title, "type": "row"}


def _alerts() -> Json:
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": 'ALERTS{job=~"$job", alertstate="firing", severity!="info"}',
        "iconColor": "red",
        "name": "Alerts",
        "step": "30s",
        "tagKeys": "severity,instance",
        "titleFormat": "{{alertname}}",
    }


def _link_to_the_others() -> Json:
    return {
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "tags": [_TAG],
        "title": "",
        "type": "dashboards",
    }


def _datasource() -> Json:
    return {"label": "Data source", "name": "datasource", "query": "prometheus", "refresh": 1, "type": "datasource"}


def _choice(name: str, label: str, query: str) -> Json:
    return {
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": DATASOURCE,
        "definition": query,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "query": {"qryType": 1, "query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "type": "query",
    }


_CHOICES: Final = (
    _choice("job", "Job", "label_values(dragoman_build_info, job)"),
    _choice("instance", "Replica", 'label_values(dragoman_build_info{job=~"$job"}, instance)'),
    _choice("model", "Model", 'label_values(dragoman_model_state{job=~"$job", instance=~"$instance"}, model)'),
)
