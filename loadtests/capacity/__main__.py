"""`python -m loadtests.capacity`: how much a server bears, and what callers wait at every load up to beyond it."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from tqdm import tqdm

from loadtests.capacity import record
from loadtests.capacity.contender import Capacity, SearchPlan, find_capacities
from loadtests.capacity.curve import SHARES, measure_curve
from loadtests.capacity.picture import PICTURE_NAME, write_picture
from loadtests.capacity.record import CapacityRun
from loadtests.flags import add_workload_flags, workload_of
from loadtests.loadtest.run import command_line, server_facts
from loadtests.machine import describe_machine
from loadtests.sampler import scrape
from loadtests.sending import Sender
from loadtests.slo import GRAMMAR, Slo, parse_slo
from loadtests.target import ServerError, Target, add_server_flags, open_target

_DESCRIPTION: Final = """\
Finds the highest rate of calls at which an objective holds, then offers shares of it, from a tenth to 120 %, and draws
latency and throughput against load. Without --target it starts a server on free ports of this machine, with the model
that ships.

Callers who wait for each answer tell where to begin. From there the rate is raised until the objective breaks, and
what is between is halved until it is known to 5 %; a rate counts as too high if the objective breaks twice there.

Calls arrive at random moments (Poisson), whatever became of those before; times count from the moment at which a call
should have been sent. They are Translate calls, sent by gRPC's own threads, which takes less of the machine than
Locust does: whoever sends shares the cores with a server on the same machine.

OUTPUT gets capacity.json and capacity.png.

exit codes: 0 measured, 1 the objective held at no rate, or the server failed; 2 called wrongly"""

_PLANS: Final = {
    "full": (SearchPlan(closed_loop_s=10.0, probe_s=15.0, tries=2), 20.0),
    "short": (SearchPlan(closed_loop_s=3.0, probe_s=3.0, resolution=0.2), 3.0),
}
"""By mode: how to search, and the seconds at each rate of the curve."""
_DEFAULT_SLO: Final = "p95<1s,goodput>99%"
_UNARY: Final = "Translate"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        sender, slo = _sender(options), parse_slo(options.slo)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, _leave)  # or a server that was started would outlive it
    try:
        with open_target(options) as target:
            found = _measure(target, sender, slo, options)
            exit_code = target.stop()
    except (ServerError, TimeoutError, RuntimeError) as error:
        print(f"loadtests.capacity: {error}", file=sys.stderr)
        return 1
    _write(options.output, found)
    print(record.table(found.points))
    print(record.line(found))
    return 1 if exit_code else 0


def _measure(target: Target, sender: Sender, slo: Slo, options: argparse.Namespace) -> CapacityRun:
    """Search the capacity and measure the curve.

    Raises:
        RuntimeError: if the objective holds at no rate.
        TimeoutError: if the server stops answering.
    """
    plan, point_s = _PLANS[options.mode]
    with tqdm(desc="capacity", unit="run", disable=None, leave=False) as bar:
        contender = sender.to(target.address)

        def advance(*_: object) -> None:
            bar.update()

        capacity: Capacity = find_capacities({"it": contender}, slo, plan, note=advance)["it"]
        if not capacity.per_s:
            raise RuntimeError(f"{slo} holds at no rate that was tried; give another --slo")
        points = measure_curve(
            contender, capacity.per_s, duration_s=options.point or point_s, seed=options.seed, note=advance
        )
    return CapacityRun(
        title=options.title,
        workload=sender.workload,
        objective=str(slo),
        capacity=capacity,
        points=points,
        machine=describe_machine(),
        server=server_facts(scrape(target.metrics_url)) if target.metrics_url else (),
        command=command_line("loadtests.capacity"),
    )


def _sender(options: argparse.Namespace) -> Sender:
    """Return what sends.

    Raises:
        ValueError: naming the flag and what it takes.
    """
    workload = workload_of(options)
    return Sender(workload=workload)


def _write(directory: Path, found: CapacityRun) -> None:
    text = json.dumps(record.as_json(found), indent=1, allow_nan=False)
    (directory / record.RESULTS_NAME).write_text(text + "\n", encoding="utf-8")
    write_picture(directory / PICTURE_NAME, found)


def _leave(*_: Any) -> NoReturn:
    raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.capacity",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_flags(parser.add_argument_group("the server"))
    how = parser.add_argument_group("how much is measured")
    how.add_argument("--mode", choices=_PLANS, default="full", help="short: 2 minutes, a first impression (full)")
    how.add_argument("--slo", default=_DEFAULT_SLO, metavar="BOUNDS", help=GRAMMAR.replace("%", "%%"))
    how.add_argument("--point", type=float, metavar="S", help=f"seconds at each of {len(SHARES)} rates (20; short: 3)")
    how.add_argument("--seed", type=int, default=1, metavar="N", help="of moments and texts (1)")
    how.add_argument("--title", default="The model that ships", metavar="TEXT", help="of the picture")
    add_workload_flags(parser.add_argument_group(f"what calls of {_UNARY} ask for"), profile_flag="--profile")
    parser.add_argument("--output", type=Path, default=Path("build/capacity"), metavar="DIR", help="(build/capacity)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
