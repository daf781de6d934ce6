"""The raw results as JSON: every repetition, every set-up tried, the machine, the command."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadtests.peers.comparison import CaseResult, Duel, Measurement

RESULTS_NAME: Final = "results.json"


def record_of(results: Sequence[CaseResult], machine: dict[str, Any], command: str) -> dict[str, Any]:
    """Return everything measured as JSON-ready values."""
    return {"machine": machine, "command": command, "cases": [_case(result) for result in results]}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record, in place of an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _case(result: CaseResult) -> dict[str, Any]:
    return {
        "model": result.case.model,
        "case": result.case.name,
        "kind": result.case.kind,
        "search": dataclasses.asdict(result.case.search),
        "num_sources": len(result.case.sources),
        "sources_per_call": result.case.call_size,
        "trials": [{**_setup(trial), "elapsed_s": trial.elapsed_s} for trial in result.trials],
        "measurements": [_measurement(measurement) for measurement in result.measurements],
        "duels": [_duel(duel) for duel in result.duels],
    }


def _setup(holder: Any) -> dict[str, Any]:
    return dataclasses.asdict(holder.settings)


def _measurement(measurement: Measurement) -> dict[str, Any]:
    return {
        **_setup(measurement),
        "elapsed_s": measurement.elapsed_s,
        "latencies_s": measurement.latencies_s,
        "num_target_tokens": measurement.num_target_tokens,
        "bleu": measurement.bleu,
    }


def _duel(duel: Duel) -> dict[str, Any]:
    return {
        "threads": duel.num_threads,
        "vs": duel.theirs.settings.name,
        "ours": duel.ours.settings.setup,
        "theirs": duel.theirs.settings.setup,
        "ratio": duel.ratio,
        "ours_tokens_per_s": duel.ours.tokens_per_s,
        "theirs_tokens_per_s": duel.theirs.tokens_per_s,
        "bleu_delta": duel.bleu_delta,
        "identical": duel.identical if duel.case.has_meaning else None,
        "ours_p50_s": duel.ours.latency_p50_s,
        "theirs_p50_s": duel.theirs.latency_p50_s,
        "ours_p95_s": duel.ours.latency_p95_s,
        "theirs_p95_s": duel.theirs.latency_p95_s,
    }
