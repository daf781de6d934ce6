"""`python -m loadtests capacity`: the capacity of a server, and latency at every load up to beyond it."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tqdm import tqdm

from loadtests.capacity import report
from loadtests.capacity.report import CapacityRun
from loadtests.capacity.search import DEFAULT_SLO, PLANS, SHARES, find_capacity, measure_curve
from loadtests.flags import verb_parser, within, workload_of
from loadtests.generator import Generator
from loadtests.machine import describe_machine
from loadtests.report import command_line, write_json, write_picture
from loadtests.slo import GRAMMAR, Slo, parse_slo
from loadtests.target import ServerError, add_server_flags, open_target

_DESCRIPTION: Final = """\
Finds the capacity of a server: the highest rate of calls at which an objective holds. Then offers shares of it, from a
tenth to 120 %, and draws latency and throughput against load. Without --target it starts a server on free ports of
this machine, with the model that ships.

Callers who wait for each answer tell where to begin. From there the rate is raised until the objective breaks, and
what is between is halved until it is known to 5 %; a rate counts as too high if the objective breaks twice there
(--mode short: to 20 %, and once).

Calls arrive at random moments (Poisson), whatever became of those before; times count from the moment at which a call
should have been sent. They are sent by gRPC's own threads, which takes less of the machine than Locust does: the
generator shares the cores with a server on the same machine.

OUTPUT gets capacity.json and capacity.png.

exit codes: 0 measured; 1 the objective held at no rate, or the server failed; 2 called wrongly"""

_POINT_S: Final = {"full": 20.0, "short": 3.0}
"""Seconds at each rate of the curve, by mode."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        workload, slo = workload_of(options), parse_slo(options.slo)
        workload.calls(options.seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    try:
        with open_target(options) as target:
            found = _measure(Generator(target=target, workload=workload), slo, options)
            exit_code = target.stop()
    except (ServerError, TimeoutError, RuntimeError, OSError) as error:
        print(f"loadtests capacity: {error}", file=sys.stderr)
        return 1
    write_json(options.output / "capacity.json", report.as_json(found))
    write_picture(options.output / "capacity.png", report.picture(found))
    print(report.table(found.points))
    print(report.line(found))
    return 1 if exit_code else 0


def _measure(generator: Generator, slo: Slo, options: argparse.Namespace) -> CapacityRun:
    """Search the capacity and measure the curve.

    Raises:
        RuntimeError: if the objective holds at no rate.
        TimeoutError: if the server stops answering.
    """
    with tqdm(desc="capacity", unit="run", disable=None, leave=False) as bar:

        def advance(_: object) -> None:
            bar.update()

        capacity = find_capacity(generator, slo, PLANS[options.mode], note=advance)
        point_s = options.point or _POINT_S[options.mode]
        points = measure_curve(generator, capacity.per_s, duration_s=point_s, seed=options.seed, note=advance)
    return CapacityRun(
        title=options.title,
        workload=generator.workload,
        texts=generator.workload.calls(options.seed).origin,
        objective=str(slo),
        capacity=capacity,
        points=points,
        machine=describe_machine(),
        server=generator.target.facts(),
        command=command_line("capacity"),
    )


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("capacity", _DESCRIPTION, output="build/capacity")
    add_server_flags(parser.add_argument_group("the server"))
    add = parser.add_argument_group("what is measured").add_argument
    add("--slo", default=DEFAULT_SLO, metavar="BOUNDS", help=f"{GRAMMAR} ({DEFAULT_SLO})".replace("%", "%%"))
    add("--point", type=within(0.001, 3600), metavar="S", help=f"seconds at each of {len(SHARES)} rates (20; short: 3)")
    add("--title", default="The model that ships", metavar="TEXT", help="of the picture")
    return parser


if __name__ == "__main__":
    sys.exit(main())
