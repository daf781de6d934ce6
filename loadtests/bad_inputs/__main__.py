"""`python -m loadtests.bad_inputs`: tens of thousands of inputs that nobody should send, and what they did."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import grpc

from loadtests.bad_inputs import kinds, report
from loadtests.bad_inputs.callers import Caller
from loadtests.bad_inputs.inputs import BadInput, Limits
from loadtests.bad_inputs.kinds import KINDS, Planned
from loadtests.bad_inputs.run import judged, run
from loadtests.bad_inputs.texts import SHAPES
from loadtests.bad_inputs.verdict import Promises, Record, broken_promises, line, slowest, summarize
from loadtests.bad_inputs.watch import Watch
from loadtests.target import ServerError, ServerProcess

_DESCRIPTION: Final = """\
Starts the server on free ports of this machine with the model that ships and sends it inputs of every bad kind, made
from a seed: characters of every Unicode block, invisible ones, towers of marks; bombs of tags, entities and
placeholders, megabytes without a space; bytes that are no message, or no UTF-8; sizes and options at each limit and
beyond; names that lead elsewhere. They go through Translate, TranslateDocument, and TranslateStream between ordinary
requests; a few through the services of models. Two bystanders make ordinary calls meanwhile.

What must hold: each input gets a status that is right for it, with the details of the contract, and what is answered
keeps its promises (spans in range, everything between sentences copied exactly, nothing made up); no internal error, no
hang, no lost connection, no error in the server's log; after each thousand the server is healthy, at rest, and
translates what it did before; memory is bounded; bystanders are answered; twice the text takes no more than three times
as long.

DIR gets bad_inputs.json, bad_inputs.png (time against size) and server.log. `--only KIND --index I` sends one input
again, with the seed that is printed beside it, and shows what was sent and what came back.

exit codes: 0 all of this held, 1 it did not or the server failed, 2 called wrongly"""

_COUNTS: Final = {"short": 2000, "full": 20_000}
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_START_TIMEOUT_S: Final = 120.0
_MAX_COUNT: Final = 1_000_000
_MAX_SHOWN: Final = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Send them all, or one; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:20} {_first_line(KINDS[name].make.__doc__)}" for name in KINDS))
        return 0
    if options.index is not None and len(options.only) != 1:
        parser.error("--index needs --only with one kind")
    count = options.count or _COUNTS[options.mode]
    if count < len(options.only):
        parser.error(f"--count {count}: expected at least {len(options.only)}, one input of each kind")
    log = options.output / "server.log"
    flags = [] if options.models is None else ["--models", str(options.models.resolve())]
    try:
        with ServerProcess(log, *flags) as server:
            server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
            broken = (
                _sent_all(server, options, count)
                if options.index is None
                else _sent_one(server, options, options.index)
            )
            exit_code = server.stop()
    except (ServerError, grpc.RpcError, OSError) as error:
        print(f"loadtests.bad_inputs: {error}\nthe server's log: {log}", file=sys.stderr)
        return 1
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken or exit_code else 0


def _sent_all(server: ServerProcess, options: argparse.Namespace, count: int) -> list[str]:
    """Send everything, write the report and the line; return what was broken."""
    result = run(
        server,
        options.output / "server.log",
        count=count,
        only=options.only,
        seed=options.seed,
        num_callers=options.callers,
        timeout_s=options.timeout,
        grown_shapes=_SHORT_SHAPES if options.mode == "short" else sorted(SHAPES),
    )
    promises = Promises(max_rss_growth_mb=options.max_rss_growth_mb)
    summary = summarize(result, promises)
    broken = broken_promises(result, summary, promises, seed=options.seed)
    settings = {name: str(value) for name, value in vars(options).items()}
    report.write(options.output, result, summary, settings=settings, broken=broken)
    print("slowest:", *map(_slow_line, slowest(result.records)), sep="\n  ")
    print(line(summary, is_held=not broken))
    return broken


def _sent_one(server: ServerProcess, options: argparse.Namespace, index: int) -> list[str]:
    """Send one input and show it; return what was broken."""
    with closing(Watch(server, options.output / "server.log", seed=options.seed)) as watch:
        limits = Limits.told_by(watch.models())
        bad = kinds.make(Planned(kind=options.only[0], index=index), seed=options.seed, limits=limits)
        print(_shown(bad))
        with closing(Caller(server.target, limits, timeout_s=options.timeout)) as caller:
            record = judged(caller, bad)
        print(f"answered: {record.status} after {1000 * record.seconds:.0f} ms")
        return [*record.faults, *watch.faults()]


def _shown(bad: BadInput) -> str:
    content = bad.content
    message = repr(content.message[:_MAX_SHOWN])
    rest = f" ... {len(content.message)} bytes" if len(content.message) > _MAX_SHOWN else ""
    expected = " or ".join(sorted(content.expected.statuses))
    return f"{bad.method.value}\nmetadata: {content.metadata}\nmessage: {message}{rest}\nexpected: {expected}"


def _slow_line(record: Record) -> str:
    return (
        f"{1000 * record.seconds:.0f} ms: {record.method} of {record.num_characters} characters, {record.status}, "
        f"{record.name}"
    )


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bad_inputs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count} inputs" for mode, count in _COUNTS.items())
    add(
        "--mode", choices=sorted(_COUNTS), default="full", help=f"{counts}; full also measures the growth of all shapes"
    )
    add("--count", type=_count, metavar="N", help="inputs, in place of those of the mode")
    add("--seed", type=int, default=1, metavar="N", help="what everything is made from (1)")
    add("--only", type=_kinds, default=list(KINDS), metavar="KIND,...", help="kinds to send (all)")
    add("--index", type=_index, metavar="I", help="send and show this one input of the one kind of --only")
    add("--list", action="store_true", help="print the kinds and end")
    add("--callers", type=_count, default=8, metavar="N", help="inputs under way at a time (8)")
    add("--timeout", type=_above_zero, default=60.0, metavar="S", help="seconds after which a call hangs (60)")
    add("--max-rss-growth-mb", type=_above_zero, default=256.0, metavar="MB", help="memory promise (256)")
    add("--models", type=Path, metavar="DIR", help="models to serve; default: the one that ships")
    add("--output", type=Path, default=Path("build/bad-inputs"), metavar="DIR", help="(build/bad-inputs)")
    return parser


def _kinds(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: no such kind; --list names them")
    return names


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {_MAX_COUNT}")
    return value


def _index(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 or more")
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
