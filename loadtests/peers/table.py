"""`table`: the results as Markdown, for the README."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtests.peers.record import RESULTS_NAME

TABLE_NAME: Final = "table.md"


def add_parser(commands: Any) -> None:
    """Declare the command and its flag."""
    parser = commands.add_parser("table", help="print the results of the last comparison as Markdown")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR", help="(build/bench)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print; return the exit code."""
    print(render(json.loads((arguments.output / RESULTS_NAME).read_text(encoding="utf-8"))), end="")
    return 0


def render(record: Mapping[str, Any]) -> str:
    """Return machine, versions and one table row for each duel of a record."""
    duels = [(case, duel) for case in record["cases"] for duel in case["duels"]]
    timed = [_speed_row(case, duel) for case, duel in duels if case["kind"] != "agreement"]
    agreeing = [_agreement_row(case, duel) for case, duel in duels if duel["identical"] is not None]
    parts = [_heading(record)]
    if timed:
        header = ("model", "case", "threads", "against", "ratio", "ours", "theirs", "BLEU difference")
        parts.append(markdown_table(header, timed))
    if agreeing:
        parts.append(markdown_table(("case", "against", "identical translations"), agreeing))
    return "\n".join(parts)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns of figures are aligned to the right."""
    is_figure = [all(row[column][:1] in "+-0123456789" for row in rows) for column in range(len(header))]
    rule = ["---:" if right else "---" for right in is_figure]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def _heading(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    sets = ", ".join(machine["instruction_sets"])
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    facts = f"{machine['cpu']}, {machine['cores']} cores ({sets}); {versions}; {machine['date']}"
    return f"{facts}\n\n    {record['command']}\n"


def _speed_row(case: Mapping[str, Any], duel: Mapping[str, Any]) -> tuple[str, ...]:
    delta = duel["bleu_delta"]
    if case["sources_per_call"] == 1:
        speeds = tuple(f"{1000 * duel[f'{side}_p50_s']:.0f} ms" for side in ("ours", "theirs"))
    else:
        speeds = tuple(f"{duel[f'{side}_tokens_per_s']:,.0f} tokens/s" for side in ("ours", "theirs"))
    return (
        case["model"],
        case["case"],
        str(duel["threads"]),
        duel["vs"],
        f"{duel['ratio']:.2f}",
        *speeds,
        "" if delta is None else f"{delta:+z.2f}",
    )


def _agreement_row(case: Mapping[str, Any], duel: Mapping[str, Any]) -> tuple[str, ...]:
    return case["case"], f"{duel['ours']} / {duel['vs']}", f"{100 * duel['identical']:.1f} %"
