"""A comparison on paper: a line for each pair, everything as JSON, a table in Markdown, plots."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.peers.comparison import CaseResult, Measurement, PairResult
from loadtests.report import figures_line, markdown, write_json, write_picture

RESULTS_NAME: Final = "results.json"
TABLE_NAME: Final = "table.md"


def pair_line(pair: PairResult) -> str:
    """Return what a pair came to."""
    ours, theirs, case = pair.ours, pair.theirs, pair.case
    is_lone, is_timed = case.call_size == 1, case.kind != "agreement"

    def both_ms(share: float) -> str | None:
        return f"{1000 * ours.latency_s(share):.0f}/{1000 * theirs.latency_s(share):.0f}" if is_lone else None

    growth = f"{1000 / ours.tokens_per_s:.2f}/{1000 / theirs.tokens_per_s:.2f}"
    return figures_line(
        "bench",
        {
            "model": case.model,
            "case": case.name,
            "threads": pair.num_threads,
            "vs": theirs.settings.name,
            "ratio": f"{pair.ratio:.2f}" if is_timed else None,
            "ours": ours.settings.setup,
            "best": theirs.settings.setup,
            "tokens_per_s": f"{ours.tokens_per_s:.0f}" if is_timed else None,
            "theirs": f"{theirs.tokens_per_s:.0f}" if is_timed else None,
            "p50_ms": both_ms(0.5),
            "p95_ms": both_ms(0.95),
            "ms_per_token": growth if case.kind == "growth" else None,
            "bleu": None if ours.bleu is None else f"{ours.bleu:.2f}",
            "bleu_delta": None if pair.bleu_delta is None else f"{pair.bleu_delta:z.2f}",
            "identical": f"{pair.identical:.2f}" if case.has_meaning else None,
        },
    )


def write_bench(directory: Path, record: Mapping[str, Any]) -> None:
    """Write what is to be kept of a comparison, in place of an older one."""
    write_json(directory / RESULTS_NAME, record)
    (directory / TABLE_NAME).write_text(table(record), encoding="utf-8")
    pairs = [(case, pair) for case in record["cases"] for pair in case["pairs"] if case["kind"] == "speed"]
    if pairs:
        write_picture(directory / "ratios.png", ratios_picture(pairs))
    swept = [case for case in record["cases"] if case["kind"] == "growth"]
    if swept:
        write_picture(directory / "growth.png", growth_picture(swept))


def record_of(results: Sequence[CaseResult], machine: dict[str, Any], command: str) -> dict[str, Any]:
    """Return everything measured as JSON-ready values."""
    return {"machine": machine, "command": command, "cases": [_case(result) for result in results]}


def _case(result: CaseResult) -> dict[str, Any]:
    return {
        "model": result.case.model,
        "case": result.case.name,
        "kind": result.case.kind,
        "search": asdict(result.case.search),
        "num_sources": len(result.case.sources),
        "sources_per_call": result.case.call_size,
        "trials": [{**asdict(trial.settings), "elapsed_s": trial.elapsed_s} for trial in result.trials],
        "measurements": [_measurement(measurement) for measurement in result.measurements],
        "pairs": [_pair(pair) for pair in result.pairs],
    }


def _measurement(measurement: Measurement) -> dict[str, Any]:
    return {
        **asdict(measurement.settings),
        "elapsed_s": measurement.elapsed_s,
        "latencies_s": measurement.latencies_s,
        "num_target_tokens": measurement.num_target_tokens,
        "bleu": measurement.bleu,
    }


def _pair(pair: PairResult) -> dict[str, Any]:
    sides = {"ours": pair.ours, "theirs": pair.theirs}
    return {
        "threads": pair.num_threads,
        "vs": pair.theirs.settings.name,
        "ratio": pair.ratio,
        "bleu_delta": pair.bleu_delta,
        "identical": pair.identical if pair.case.has_meaning else None,
        **{name: side.settings.setup for name, side in sides.items()},
        **{f"{name}_tokens_per_s": side.tokens_per_s for name, side in sides.items()},
        **{f"{name}_p50_s": side.latency_s(0.5) for name, side in sides.items()},
        **{f"{name}_p95_s": side.latency_s(0.95) for name, side in sides.items()},
    }


def table(record: Mapping[str, Any]) -> str:
    """Return machine, versions and one table row for each pair of a record."""
    machine = record["machine"]
    sets = ", ".join(machine["instruction_sets"])
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    facts = f"{machine['cpu']}, {machine['cores']} cores ({sets}); {versions}; {machine['date']}"
    parts = [f"{facts}\n\n    {record['command']}\n"]
    pairs = [(case, pair) for case in record["cases"] for pair in case["pairs"]]
    if timed := [_speed_row(case, pair) for case, pair in pairs if case["kind"] != "agreement"]:
        header = ("model", "case", "threads", "against", "ratio", "ours", "theirs", "BLEU difference")
        parts.append(markdown(header, timed))
    agreeing = [
        (case["case"], f"{pair['ours']} / {pair['vs']}", f"{100 * pair['identical']:.1f} %")
        for case, pair in pairs
        if pair["identical"] is not None
    ]
    if agreeing:
        parts.append(markdown(("case", "against", "identical translations"), agreeing))
    return "\n".join(parts)


def _speed_row(case: Mapping[str, Any], pair: Mapping[str, Any]) -> tuple[str, ...]:
    delta, sides = pair["bleu_delta"], ("ours", "theirs")
    if case["sources_per_call"] == 1:
        speeds = [f"{1000 * pair[f'{side}_p50_s']:.0f} ms" for side in sides]
    else:
        speeds = [f"{pair[f'{side}_tokens_per_s']:,.0f} tokens/s" for side in sides]
    named = (case["model"], case["case"], str(pair["threads"]), pair["vs"], f"{pair['ratio']:.2f}")
    return (*named, *speeds, "" if delta is None else f"{delta:+z.2f}")


def ratios_picture(pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Figure:
    """Draw a bar for each pair; beyond the line ours is faster."""
    names = [f"{case['model']} {case['case']} @{pair['threads']} vs {pair['vs']}" for case, pair in pairs]
    figure = Figure(figsize=(9, 1 + 0.25 * len(names)), layout="constrained")
    axes = figure.add_subplot(xlabel="speed of ours, theirs = 1")
    axes.barh(names, [pair["ratio"] for _, pair in pairs])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    return figure


def growth_picture(cases: list[Mapping[str, Any]]) -> Figure:
    """Draw the time of a batch over the length of its targets."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(
        xlabel="target tokens of each sentence", ylabel=f"seconds for a batch of {cases[0]['num_sources']}"
    )
    lengths = [case["search"]["max_target_tokens"] for case in cases]
    counts = [case["num_sources"] * length for case, length in zip(cases, lengths, strict=True)]
    for side, name in (("ours", "dragoman-int8"), ("theirs", cases[0]["pairs"][0]["vs"])):
        speeds = [case["pairs"][0][f"{side}_tokens_per_s"] for case in cases]
        axes.plot(lengths, [count / speed for count, speed in zip(counts, speeds, strict=True)], marker="o", label=name)
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.legend()
    return figure
