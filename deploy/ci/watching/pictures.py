"""The panels drawn from what Prometheus answers: not Grafana's own drawing, but its panels, queries and data."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from PIL import Image

from deploy.ci.watching.boards import BoardQuery
from deploy.ci.watching.prometheus import Prometheus, Series
from deploy.ci.watching.shipped import DEPLOY

FOLDER: Final = DEPLOY.parent / "docs" / "operations" / "pictures"

_COLUMNS: Final = 4
_WIDTH_IN, _HEIGHT_IN, _DPI = 4.2, 2.3, 88
_NUM_COLORS: Final = 128
_MAX_LEGEND: Final = 6
_STEP_S: Final = 1.0
_DAY_S: Final = 86400.0
_STATES: Final = ("loading", "ready", "draining", "failed")
"""As the dashboard numbers them, from 1."""
_PREFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))

Panel = tuple[str, str, str, list[BoardQuery]]


def draw(prometheus: Prometheus, queries: Sequence[BoardQuery], began_s: float, ended_s: float) -> None:
    """Write one picture a dashboard, of all panels with lines."""
    mpl.use("Agg")
    FOLDER.mkdir(exist_ok=True)
    for board, asked in groupby(queries, key=lambda query: query.board):
        panels = list(_panels(asked))
        num_rows = math.ceil(len(panels) / _COLUMNS)
        figure, grid = plt.subplots(
            num_rows, _COLUMNS, figsize=(_COLUMNS * _WIDTH_IN, num_rows * _HEIGHT_IN), squeeze=False
        )
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, prometheus, panel, began_s, ended_s)
        for axes in list(grid.flat)[len(panels) :]:
            axes.axis("off")
        figure.tight_layout()
        figure.savefig(FOLDER / f"{board}.png", dpi=_DPI, pil_kwargs={"optimize": True})
        plt.close(figure)
        _reduce_colors(board)


def _panels(asked: Iterator[BoardQuery]) -> Iterator[Panel]:
    for (panel, kind, unit), queries in groupby(asked, key=lambda query: (query.panel, query.kind, query.unit)):
        if kind in {"timeseries", "state-timeline", "heatmap"}:
            yield panel, kind, unit, list(queries)


def _draw_panel(axes: Axes, prometheus: Prometheus, panel: Panel, began_s: float, ended_s: float) -> None:
    title, kind, unit, queries = panel
    found = [
        (_legend(query.legend, series), series)
        for query in queries
        for series in prometheus.over(query.expr, start_s=began_s, end_s=ended_s, step_s=_STEP_S)
    ]
    axes.set_title(title, fontsize=9, loc="left", fontweight="bold")
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.3)
    axes.set_xlim(0, ended_s - began_s)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _formatted(value, unit)))
    if kind == "heatmap":
        _draw_heatmap(axes, found, began_s, ended_s)
        return
    for label, series in found:
        times, values = zip(*series.points, strict=True)
        axes.plot([at_s - began_s for at_s in times], values, linewidth=1, label=label)
    if kind == "timeseries":
        axes.set_ylim(bottom=0)
    else:
        axes.set_yticks(range(1, len(_STATES) + 1), _STATES)
    axes.legend(fontsize=6, loc="upper left", framealpha=0.6, handlelength=1)
    _shorten_legend(axes, len(found))


def _draw_heatmap(axes: Axes, found: Sequence[tuple[str, Series]], began_s: float, ended_s: float) -> None:
    """Draw cumulative buckets as the share of each class."""
    ordered = sorted((float(series.labels["le"]), dict(series.points)) for _, series in found)
    times = [began_s + second for second in range(int(ended_s - began_s) + 1)]
    below = [[_at(points, at_s) for at_s in times] for _, points in ordered]
    classes = [[max(0.0, high - low) for high, low in zip(row, less, strict=True)] for row, less in _pairs(below)]
    axes.imshow(classes, aspect="auto", origin="lower", cmap="Oranges", interpolation="nearest")
    axes.set_yticks(range(0, len(ordered), 3), [f"{bound:g} s" for bound, _ in ordered][::3])


def _pairs(rows: Sequence[list[float]]) -> Iterator[tuple[list[float], list[float]]]:
    return zip(rows, [[0.0] * len(rows[0]), *rows], strict=False)


def _at(points: dict[float, float], at_s: float) -> float:
    return next((value for time_s, value in points.items() if abs(time_s - at_s) <= _STEP_S / 2), 0.0)


def _legend(form: str, series: Series) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: series.labels.get(match[1], ""), form)


def _shorten_legend(axes: Axes, num_lines: int) -> None:
    legend = axes.get_legend()
    if legend is not None and num_lines > _MAX_LEGEND:
        for text in legend.get_texts()[_MAX_LEGEND:]:
            text.set_visible(False)


def _formatted(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    if unit == "s" and abs(value) >= _DAY_S:
        return f"{value / _DAY_S:.3g} d"
    suffix = {"s": " s", "bytes": "B", "reqps": "/s"}.get(unit, "")
    for size, prefix in _PREFIXES:
        if abs(value) >= size and unit != "s":
            return f"{value / size:g} {prefix}{suffix}"
    return f"{value:g}{suffix}"


def _reduce_colors(board: str) -> None:
    """Make a picture small: lines and letters need few colours."""
    path = FOLDER / f"{board}.png"
    picture: Any = Image.open(path).convert("RGB")
    picture.quantize(_NUM_COLORS).save(path, optimize=True)
