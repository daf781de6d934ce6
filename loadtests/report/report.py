"""Reports: one line of figures, checks, JSON, a table, a plot; and the machine of a measurement."""

import datetime as dt
import json
import math
import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_CPU_INFO = Path("/proc/cpuinfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")
_OTHER_SYSTEMS = ("ctranslate2", "transformers", "torch", "sacrebleu")
_PACKAGES = ("dragoman", "onnxruntime", "onnxruntime-gpu", "numpy", "grpcio", "locust", *_OTHER_SYSTEMS)
_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")

_DPI: Final = 120
_MAX_SHOWN: Final = 5  # failures of a check


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition that must hold in a scenario, and how it failed."""

    name: str
    failures: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The name and the first failures."""
        more = len(self.failures) - _MAX_SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return f"{self.name}: {'; '.join(self.failures[:_MAX_SHOWN])}{rest}"


def at_most(name: str, value: float, limit: float, *, unit: str = "") -> Check:
    """Check that a figure does not exceed its limit."""
    failures = [] if value <= limit else [f"{value:.4g}{unit and ' '}{unit} exceeds {limit:g}"]
    return Check(name=name, failures=failures, figures={"value": value, "limit": limit})


def require(name: str, holds: bool, otherwise: str) -> Check:
    """Check a condition; `otherwise` describes the failure."""
    return Check(name=name, failures=() if holds else (otherwise,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a load test or scenario."""

    name: str
    figures: Mapping[str, object]  # of the result line
    values: Mapping[str, Any] = field(default_factory=dict)  # further JSON
    violations: Sequence[str] = ()  # a sentence for each violated objective
    checks: Sequence[Check] = ()  # with checks, the line has a verdict
    table: str = ""
    picture: Callable[[], Figure] | None = None  # draws the plot

    @property
    def failed(self) -> list[Check]:
        """The checks that did not hold."""
        return [check for check in self.checks if check.failures]

    @property
    def failures(self) -> list[str]:
        """A sentence for each violated objective and failed check."""
        return [*self.violations, *(check.sentence for check in self.failed)]

    @property
    def verdict(self) -> str:
        """`passed` or `failed`."""
        return "failed" if self.failures else "passed"

    @property
    def line(self) -> str:
        """`NAME figure=value ...`, with `verdict=` if there are checks."""
        return figures_line(self.name, {**self.figures, "verdict": self.verdict if self.checks else None})

    def as_json(self) -> dict[str, Any]:
        """Return all values, JSON-ready; with checks, also these, the figures and the verdict."""
        if not self.checks:
            return dict(self.values)
        checks = [{"passed": not check.failures, **asdict(check)} for check in self.checks]
        judged = {"name": self.name, "figures": dict(self.figures), "verdict": self.verdict, "checks": checks}
        return {"machine": describe_machine(), **judged, **self.values}

    def print_failures(self) -> None:
        """Print each violated objective and failed check."""
        for sentence in self.failures:
            print(f"failed: {sentence}", file=sys.stderr, flush=True)

    def conclude(self, output: Path) -> int:
        """Write `NAME.json`, and `NAME.png` if there is a plot, print the rest, return the exit code."""
        write_json(output / f"{self.name}.json", self.as_json())
        if self.picture is not None:
            write_picture(output / f"{self.name}.png", self.picture())
        print(self.table, end="")
        self.print_failures()
        print(self.line)
        return 1 if self.failures else 0


def environment(verb: str) -> dict[str, Any]:
    """Return machine and command line of `python -m loadtests VERB`, for JSON; its flags are in `sys.argv`."""
    command = shlex.join(["python", "-m", "loadtests", verb, *sys.argv[1:]])
    return {"machine": describe_machine(), "command": command}


def figures_line(name: str, figures: Mapping[str, object]) -> str:
    """Return `name figure=value ...` without the figures that are None."""
    return " ".join([name, *(f"{key}={value}" for key, value in figures.items() if value is not None)])


def rounded(value: float | None, digits: int = 1) -> str:
    """Return a figure as text; `none` if it is unknown."""
    return "none" if value is None else f"{value:.{digits}f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with numbers aligned to the right."""
    is_figure = [all(row[column][:1] in "+-0123456789" for row in rows) for column in range(len(header))]
    rule = ["---:" if right else "---" for right in is_figure]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def write_json(path: Path, values: Any) -> None:
    """Write JSON, creating missing directories; raises ValueError for a number that is not finite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_picture(path: Path, figure: Figure) -> None:
    """Write a plot, creating missing directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def new_figure(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float], **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of a size in inches, and its axes row by row."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def describe_machine() -> dict[str, Any]:
    """Return processor, package versions and date, JSON-ready."""
    first = _CPU_INFO.read_text(encoding="ascii", errors="replace").partition("\n\n")[0] if _CPU_INFO.exists() else ""
    info = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = set(info.get("flags", "").split())
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "cores": num_cores(),
        "instruction_sets": [name for name in _INSTRUCTION_SETS if name in flags],
        "python": platform.python_version(),
        "python_has_pgo": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "versions": {name: next((one.version for one in distributions(name=name)), None) for name in _PACKAGES},
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def num_cores(*, control_group: Path = _CONTROL_GROUP) -> int:
    """Return the number of usable cores: the affinity mask, or the CPU quota of the container if it is lower."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((control_group / name).read_text() for name in names).split()
            if quota not in {"max", "-1"}:
                cores = min(cores, int(quota) / int(period))
                break
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return max(1, math.ceil(cores))
