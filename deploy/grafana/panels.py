"""Panels: what is asked, how it is drawn, and both as the JSON that Grafana reads."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]

GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression, and what its series are called."""

    expr: str
    legend: str = ""
    has_exemplars: bool = False
    """Whether points of the histogram lead to traces."""

    def to_json(self, ref_id: str, *, form: str, is_instant: bool) -> Json:
        """Return the target of a panel."""
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "exemplar": self.has_exemplars,
            "expr": self.expr,
            "format": form,
            "instant": is_instant,
            "legendFormat": self.legend or "__auto",
            "range": not is_instant,
            "refId": ref_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel(ABC):
    """What every kind of panel has; its subclasses draw."""

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    """Grafana's name of a unit, such as `s`, `bytes`, `reqps`, `percentunit`."""

    thresholds: Sequence[tuple[float, str]] = ()
    """From which value on which colour; green below."""

    width: int = 8
    """Of 24 columns."""

    height: int = 8

    def to_json(self, panel_id: int, *, x: int, y: int) -> Json:
        """Return the panel at a place of the grid."""
        return {
            "datasource": DATASOURCE,
            "description": self.description,
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "id": panel_id,
            "options": self._options(),
            "targets": [
                query.to_json(chr(ord("A") + index), form=self._form(), is_instant=self._is_instant())
                for index, query in enumerate(self.queries)
            ],
            "title": self.title,
            "type": self._type(),
            **self._extras(),
        }

    @abstractmethod
    def _type(self) -> str:
        """Return Grafana's name of the kind."""

    @abstractmethod
    def _options(self) -> Json:
        """Return what is drawn how."""

    def _form(self) -> str:
        return "time_series"

    def _is_instant(self) -> bool:
        return False

    def _extras(self) -> Json:
        return {}

    def _defaults(self) -> Json:
        steps = [{"color": GREEN, "value": None}, *({"color": color, "value": at} for at, color in self.thresholds)]
        return {
            "color": {"mode": "thresholds" if self._is_instant() else "palette-classic"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "unit": self.unit,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries(Panel):
    """Lines over time; thresholds are drawn as dashed lines."""

    is_stacked: bool = False
    least: float | None = 0.0
    """Where the axis begins; None: wherever the values do."""

    most: float | None = None

    def _type(self) -> str:
        return "timeseries"

    def _options(self) -> Json:
        return {
            "legend": {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }

    def _defaults(self) -> Json:
        limits = {name: value for name, value in (("min", self.least), ("max", self.most)) if value is not None}
        custom = {
            "drawStyle": "line",
            "fillOpacity": 30 if self.is_stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if self.is_stacked else "none"},
            "thresholdsStyle": {"mode": "dashed" if self.thresholds else "off"},
        }
        return {**Panel._defaults(self), **limits, "custom": custom}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Panel):
    """One number, coloured by the thresholds."""

    width: int = 4
    height: int = 4
    decimals: int | None = None

    def _type(self) -> str:
        return "stat"

    def _is_instant(self) -> bool:
        return True

    def _options(self) -> Json:
        return {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        }

    def _defaults(self) -> Json:
        decimals = {} if self.decimals is None else {"decimals": self.decimals}
        return {**Panel._defaults(self), **decimals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Panel):
    """A row for each series, made of its labels; the value is shown only under a name."""

    columns: Sequence[str]
    value_name: str = ""

    def _type(self) -> str:
        return "table"

    def _is_instant(self) -> bool:
        return True

    def _form(self) -> str:
        return "table"

    def _options(self) -> Json:
        return {"cellHeight": "sm", "showHeader": True}

    def _extras(self) -> Json:
        names = [*self.columns, *(["Value"] if self.value_name else [])]
        return {
            "transformations": [
                {"id": "filterFieldsByName", "options": {"include": {"names": names}}},
                {
                    "id": "organize",
                    "options": {
                        "indexByName": {name: index for index, name in enumerate(names)},
                        "renameByName": {"Value": self.value_name} if self.value_name else {},
                    },
                },
            ]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap(Panel):
    """How what a histogram observes is distributed, over time."""

    def _type(self) -> str:
        return "heatmap"

    def _form(self) -> str:
        return "heatmap"

    def _options(self) -> Json:
        return {
            "calculate": False,
            "cellGap": 1,
            "color": {"exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "scheme": "Oranges", "steps": 64},
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "tooltip": {"mode": "single", "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": self.unit},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTimeline(Panel):
    """Bars that change their colour with the state."""

    states: Mapping[int, tuple[str, str]]
    """Name and colour of each value."""

    def _type(self) -> str:
        return "state-timeline"

    def _options(self) -> Json:
        return {
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "mergeValues": True,
            "rowHeight": 0.8,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        }

    def _defaults(self) -> Json:
        options = {
            str(value): {"color": color, "index": index, "text": name}
            for index, (value, (name, color)) in enumerate(self.states.items())
        }
        return {
            **Panel._defaults(self),
            "color": {"mode": "thresholds"},
            "custom": {"fillOpacity": 80, "lineWidth": 0},
            "mappings": [{"options": options, "type": "value"}],
        }
