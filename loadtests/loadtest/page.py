"""The run as one page that needs nothing else: no script, no link, the pictures within."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

import jinja2

from loadtests.loadtest.baseline import Change, row
from loadtests.loadtest.plots import pictures
from loadtests.loadtest.run import Run
from loadtests.records import Percentiles

_TEMPLATE: Final = Path(__file__).with_name("page.html.jinja")

_STAGES: Final = {
    "client": "all of it, from when the call should have been sent to the end of its answer",
    "queue": "the server: from admission until the encoder began",
    "encode": "the server: the encoder run",
    "decode": "the server: the search",
    "text": "the server: splitting, tokenizing, joining",
    "beyond": "what is left: network, gRPC, and waiting on either side of it",
}


def render(run: Run, changes: Sequence[Change] = ()) -> str:
    """Return the page of a run; `changes` are from its baseline, if it has one."""
    # What a user may have written, such as a name of a model, is escaped.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page: str = template.render(
        title=_title(run),
        broken=run.broken,
        verdicts=[f"the objective {run.slo} was held"] if run.slo else [],
        facts=_facts(run).items(),
        command=run.command,
        stages=[(name, _cells(run.summary.stages[name]), what) for name, what in _STAGES.items()],
        figures=[(name, "not known" if value is None else f"{value:.4g}") for name, value in run.figures.items()],
        changes=[row(change) for change in changes],
        statuses=run.summary.statuses.items(),
        pictures=pictures(run).items(),
    )
    return page


def _title(run: Run) -> str:
    load = run.load
    rate = f"{load.num_users} users" if load.arrivals is None else f"{load.arrivals.rate_per_s:g} calls/s"
    return f"Load test: {load.workload.profile.value}, {rate}"


def _facts(run: Run) -> Mapping[str, Any]:
    load, machine = run.load, run.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    closed = f"closed loop of {load.num_users} users"
    return {
        "date": machine["date"],
        "generator's machine": f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['instruction_sets'])})",
        "generator's versions": f"Python {machine['python']}, {versions}",
        "server": "; ".join(run.server) or "does not say",
        "arrivals": closed if load.arrivals is None else load.arrivals.text,
        "measured": f"{load.duration_s:g} s, after {load.warm_up_s:g} s to warm up; seed {load.seed}",
        "calls": f"{run.summary.offered} offered, {run.summary.answered} answered before their deadline of "
        f"{load.workload.deadline_s:g} s",
        "objective": run.slo or "none",
    }


def _cells(percentiles: Percentiles | None) -> list[str]:
    return ["none"] * 5 if percentiles is None else [f"{value:.1f}" for value in astuple(percentiles)]
