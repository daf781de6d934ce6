"""The panels drawn with matplotlib from Prometheus' answers: Grafana's panels, queries and data, not its drawing."""

import math
import re
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter
from PIL import Image

from deploy.ci.prometheus import Prometheus, Series
from deploy.ci.shipped import DEPLOY, PanelQuery

FOLDER: Final = DEPLOY.parent / "docs" / "operations" / "pictures"

_COLUMNS: Final = 4
_WIDTH_IN, _HEIGHT_IN, _DPI = 4.2, 2.3, 88
_NUM_COLORS: Final = 128
"""Lines and letters need few, and the files are small."""
_MAX_LEGEND: Final = 6
_DAY_S: Final = 86400.0
_STATES: Final = ("loading", "ready", "draining", "failed")
"""As the dashboard numbers them, from 1."""
_FORMATTERS: Final = {
    "short": FuncFormatter(lambda value, _: f"{value:g}" if value < 1000 else EngFormatter()(value)),
    "percentunit": PercentFormatter(xmax=1),
    "s": FuncFormatter(lambda value, _: f"{value / _DAY_S:.3g} d" if value >= _DAY_S else EngFormatter("s")(value)),
    "bytes": EngFormatter("B"),
    "reqps": EngFormatter("/s"),
}


def draw(prometheus: Prometheus, queries: Sequence[PanelQuery], began_s: float, ended_s: float) -> None:
    """Write one picture a dashboard, of all panels with lines."""
    mpl.use("Agg")
    FOLDER.mkdir(exist_ok=True)
    drawn = [query for query in queries if not query.is_instant]
    for board, asked in groupby(drawn, key=lambda query: query.board):
        panels = [list(panel) for _, panel in groupby(asked, key=lambda query: (query.panel, query.kind))]
        num_rows = math.ceil(len(panels) / _COLUMNS)
        size_in = (_COLUMNS * _WIDTH_IN, num_rows * _HEIGHT_IN)
        figure, grid = plt.subplots(num_rows, _COLUMNS, figsize=size_in, squeeze=False, layout="tight")
        for axes, panel in zip_longest(grid.flat, panels):
            if panel:
                _draw_panel(axes, prometheus, panel, began_s, ended_s)
            else:
                axes.axis("off")
        path = FOLDER / f"{board}.png"
        figure.savefig(path, dpi=_DPI)
        plt.close(figure)
        Image.open(path).convert("RGB").quantize(_NUM_COLORS).save(path, optimize=True)


def _draw_panel(
    axes: Axes, prometheus: Prometheus, panel: Sequence[PanelQuery], began_s: float, ended_s: float
) -> None:
    lines = [(query.legend, series) for query in panel for series in prometheus.over(query.expr, began_s, ended_s)]
    axes.set_title(panel[0].panel, fontsize=9, loc="left", fontweight="bold")
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, linewidth=0.3)
    axes.set_xlim(0, ended_s - began_s)
    if panel[0].kind == "heatmap":
        _draw_heatmap(axes, [series for _, series in lines], began_s, ended_s)
        return
    for legend, series in lines:
        times_s, values = np.transpose(series.points)
        axes.plot(times_s - began_s, values, linewidth=1, label=_label(legend, series))
    if panel[0].kind == "state-timeline":
        axes.set_yticks(range(1, len(_STATES) + 1), _STATES)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(_FORMATTERS.get(panel[0].unit, _FORMATTERS["short"]))
    axes.legend(handles=axes.lines[:_MAX_LEGEND], fontsize=6, loc="upper left", framealpha=0.6, handlelength=1)


def _label(legend: str, series: Series) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: series.labels.get(match[1], ""), legend)


def _draw_heatmap(axes: Axes, buckets: Sequence[Series], began_s: float, ended_s: float) -> None:
    """Draw cumulative buckets as the share of each class, second by second."""
    ordered = sorted(buckets, key=lambda series: float(series.labels["le"]))
    cumulative = np.zeros((len(ordered), int(ended_s - began_s) + 1))
    for row, series in zip(cumulative, ordered, strict=True):
        for time_s, value in series.points:
            row[round(time_s - began_s)] = value
    shares = np.diff(cumulative, axis=0, prepend=0).clip(min=0)
    axes.imshow(shares, aspect="auto", origin="lower", cmap="Oranges", interpolation="nearest")
    axes.set_yticks(range(0, len(ordered), 3), [f"{float(series.labels['le']):g} s" for series in ordered[::3]])
