"""Results of comparisons: lines, JSON, plots.

A record is JSON-ready: a case of `bench`, or a comparison of `load` with one other system on one model.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.report.report import figures_line, new_figure, write_json, write_picture

BENCH_NAME: Final = "results.json"
LOAD_NAME: Final = "load.json"
PICTURE_NAME: Final = "load.png"
MAX_LATENCY_RATIO: Final = 0.6  # target for our latency divided by theirs, p50 and p95
MIN_CAPACITY_RATIO: Final = 1.5  # target for our capacity divided by theirs
SIDES: Final = ("ours", "theirs")
Record = Mapping[str, Any]
_DIGITS: Final = {  # decimal places if not 2, or 1 for milliseconds
    "tokens_ratio": 3,
    **dict.fromkeys(("ours_per_s", "theirs_per_s", "rate", "lone_gb_per_s", "read_gb_per_s"), 1),
    **dict.fromkeys(("peak_gmacs_per_s", "products_gmacs_per_s", "lone_step_us"), 0),
}


def _line(name: str, **figures: object) -> str:
    def shown(key: str, value: object) -> object:
        digits = _DIGITS.get(key, 1 if key.endswith("_ms") else 2)
        return f"{value:z.{digits}f}" if isinstance(value, float) else value

    return figures_line(name, {key: shown(key, value) for key, value in figures.items()})


def pair_lines(case: Record) -> Iterator[str]:
    """Yield a line for each pair of a case of `bench`."""
    for pair in case["pairs"]:
        ours, theirs = sides = [pair[side] for side in SIDES]
        named = {"model": case["model"], "case": case["case"], "threads": pair["threads"], "vs": theirs["name"]}
        setups = {"ratio": pair["ratio"], "ours": ours["setup"], "best": theirs["setup"]}
        speeds: dict[str, object] = {
            "tokens_per_s": round(ours["tokens_per_s"]),
            "theirs": round(theirs["tokens_per_s"]),
        }
        if case["sources_per_call"] == 1:
            for name in ("p50", "p95"):
                speeds[f"{name}_ms"] = "/".join(f"{1000 * side[f'{name}_s']:.0f}" for side in sides)
        quality = {"bleu": ours["bleu"], "bleu_delta": pair["bleu_delta"], "identical": pair["identical"]}
        yield _line("bench", **named, **setups, **speeds, **quality)


def engine_line(model: str, speed: Record) -> str:
    """Return the line of a record of `engine_speed`."""
    sets = f'"{speed["ctranslate2"]}"' if speed["ctranslate2"] else None
    return _line("bench", engine="native", model=model, **{**speed, "ctranslate2": sets})


def load_lines(comparison: Record) -> Iterator[str]:
    """Yield lines for the agreement of both servers, their capacities, and each load."""
    names, ratio = {"vs": comparison["system"], "model": comparison["model"]}, comparison["capacity_ratio"]
    agreement, capacities = comparison["agreement"], (comparison["our_capacity"], comparison["their_capacity"])
    shares = {name: agreement[name] for name in ("identical", "bleu", "tokens_ratio")}
    yield _line(
        "benchmarks", agreement="yes" if agreement["holds"] else "NO", **names, **shares, texts=agreement["num_texts"]
    )
    runs = [probe for capacity in capacities for probe in capacity["probes"]]
    runs += [run for point in comparison["points"] for side in SIDES for run in point[side]]
    speeds = {f"{side}_per_s": capacity["per_s"] for side, capacity in zip(SIDES, capacities, strict=True)}
    counts = {"runs": len(runs), "lagged_runs": sum(run["summary"]["generator_lagged"] for run in runs)}
    objective = {"slo": comparison["objective"], **speeds, "settings": comparison["settings"]}
    yield _line("benchmarks", capacity_ratio=ratio, **names, **objective, **counts)
    for point in comparison["points"]:
        names_of_times = ("p50_ms", "p95_ms", "cpu_ms")
        times = {f"{side}_{name}": point[f"{side}_{name}"] for name in names_of_times for side in SIDES}
        ratios = {name: point[name] for name in ("p50_ratio", "p95_ratio")} | {"capacity_ratio": ratio}
        asked = {"rate": point["rate_per_s"], "repetitions": len(point["ours"])}
        states = {name: "reached" if is_reached else "missed" for name, is_reached in point["reached"].items()}
        targets = ",".join(f"{name}:{state}" for name, state in states.items())
        yield _line("benchmarks", load=f"{point['load']:.0%}", **names, **ratios, **times, **asked, targets=targets)


def write_load(directory: Path, record: Record) -> None:
    """Write the results of `load`, at least one comparison."""
    targets = {"max_latency_ratio": MAX_LATENCY_RATIO, "min_capacity_ratio": MIN_CAPACITY_RATIO}
    write_json(directory / LOAD_NAME, {**record, "targets": targets})
    write_picture(directory / PICTURE_NAME, load_picture(record["comparisons"]))


def load_picture(comparisons: Sequence[Record]) -> Figure:
    """Plot p50 (top) and p95 (bottom), one column for each comparison."""
    figure, axes = new_figure(2, len(comparisons), size=(1 + 4.5 * len(comparisons), 7), sharex="col")
    for one, upper, lower in zip(comparisons, axes, axes[len(comparisons) :], strict=False):
        _draw(upper, one, "p50_ms")
        _draw(lower, one, "p95_ms")
        upper.set_title(f"{one['model']} model, against {one['system']} {one['settings']}", fontsize="medium")
        capacity = f"{one['system']}'s capacity ({one['their_capacity']['per_s']:.1f} calls/s)"
        lower.set_xlabel(f"load, % of {capacity}")
    axes[0].legend(fontsize="small")
    return figure


def _draw(axes: Axes, comparison: Record, name: str) -> None:
    """Plot a latency of both systems by load: medians, all repetitions, and probes of the searches."""
    points, unit_per_s = comparison["points"], comparison["their_capacity"]["per_s"] / 100
    loads = [100 * point["load"] for point in points]
    for side, label, colour, capacity in (
        ("ours", "ours", "tab:blue", comparison["our_capacity"]),
        ("theirs", comparison["system"], "tab:orange", comparison["their_capacity"]),
    ):
        axes.plot(loads, [point[f"{side}_{name}"] for point in points], marker="o", color=colour, label=label)
        held = [probe for probe in capacity["probes"] if not probe["broken"]]
        measured = [run for point in points for run in point[side]]
        for shown, alpha, marker in ((measured, 1.0, "o"), (held, 0.4, "x")):
            taken = [run for run in shown if run["summary"]["latency"]]
            rates = [run["rate_per_s"] / unit_per_s for run in taken]
            times = [run["summary"]["latency"][name] for run in taken]
            axes.scatter(rates, times, s=8, color=colour, alpha=alpha, marker=marker)
        axes.axvline(capacity["per_s"] / unit_per_s, color=colour, linestyle="--", linewidth=1)
    targets = [MAX_LATENCY_RATIO * point[f"theirs_{name}"] for point in points]
    axes.axvline(100 * MIN_CAPACITY_RATIO, color="black", linestyle=":", linewidth=1, label="target for ours")
    axes.plot(loads, targets, marker="_", markersize=14, color="black", linestyle=":", linewidth=1)
    axes.set(yscale="log", xlim=(0, None), ylabel=f"{name.removesuffix('_ms')}, ms")
