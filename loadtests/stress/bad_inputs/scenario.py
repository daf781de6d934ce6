"""`python -m loadtests.stress bad-inputs`: thousands of malformed and extreme inputs, and what they did."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import grpc

from loadtests.stress.bad_inputs import kinds, verdict
from loadtests.stress.bad_inputs.inputs import BadInput
from loadtests.stress.bad_inputs.kinds import KINDS, Planned
from loadtests.stress.bad_inputs.run import Record, Watch, run, send_one
from loadtests.stress.bad_inputs.sender import Sender
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.stress.report import conclude
from loadtests.stress.server import SHIPPED_MODELS, log_path, started
from loadtests.target import ServerError, ServerProcess

_DESCRIPTION: Final = """\
Starts the server on free ports of this machine with the model that ships and sends it inputs of every bad kind, drawn
by Hypothesis from a seed: characters of every Unicode block, invisible ones, towers of marks; bombs of tags, entities
and placeholders, megabytes without a space; bytes that are no message, or no UTF-8; sizes and options at each limit and
beyond; names that lead elsewhere. They go through Translate, TranslateDocument, and TranslateStream between ordinary
requests; a few through the services of models. Two bystanders make ordinary calls meanwhile.

What must hold: each input gets a status that is right for it, with the details of the contract, and what is answered
keeps its promises (spans in range, everything between sentences copied exactly, nothing made up); no internal error, no
hang, no lost connection, no error in the server's log; after each thousand the server is healthy, idle, and translates
what it did before; memory is bounded; bystanders are answered; twice the text takes no more than three times as long.

DIR gets bad_inputs.json, bad_inputs.png (time against size) and server.log. `--only KIND --index I` sends one input
again, with the seed that is printed beside it, and shows what was sent and what came back.

exit codes: 0 all of this held, 1 it did not or the server failed, 2 wrong arguments"""

_COUNTS: Final = {"short": 2000, "full": 20_000}
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_MAX_COUNT: Final = 1_000_000
_MAX_SHOWN: Final = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Send them all, or one; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:20} {(kind.__doc__ or '').partition(chr(10))[0]}" for name, kind in KINDS.items()))
        return 0
    if options.index is not None and len(options.only) != 1:
        parser.error("--index needs --only with one kind")
    options.count = options.count or _COUNTS[options.mode]
    if options.count < len(options.only):
        parser.error(f"--count {options.count}: expected at least {len(options.only)}, one input of each kind")
    send = _send_all if options.index is None else _send_one
    try:
        with started(options.output, models=options.models) as server:
            status = send(server, options)
            return 1 if server.stop() else status
    except (ServerError, grpc.RpcError, OSError) as error:
        print(f"bad-inputs: {error}\nthe server's log: {log_path(options.output)}", file=sys.stderr)
        return 1


def _send_all(server: ServerProcess, options: argparse.Namespace) -> int:
    result = run(
        server,
        options.output,
        count=options.count,
        only=options.only,
        seed=options.seed,
        num_senders=options.callers,
        timeout_s=options.timeout,
        grown_shapes=_SHORT_SHAPES if options.mode == "short" else sorted(SHAPES),
    )
    promises = verdict.Promises(max_rss_growth_mb=options.max_rss_growth_mb)
    print("slowest:", *map(_slow_line, verdict.slowest(result.records)), sep="\n  ")
    settings = {name: str(value) for name, value in vars(options).items()}
    return conclude(
        verdict.summarize(result, promises, seed=options.seed),
        options.output,
        details={"settings": settings, **verdict.details(result)},
        figure=verdict.picture(result.records),
    )


def _send_one(server: ServerProcess, options: argparse.Namespace) -> int:
    """Send one input and show it; return 1 if a promise was broken."""
    watch = Watch(server, options.output, seed=options.seed)
    limits = watch.limits()
    bad = kinds.make(Planned(kind=options.only[0], index=options.index), seed=options.seed, limits=limits)
    print(_shown(bad))
    with closing(Sender(server.target, limits, timeout_s=options.timeout)) as sender:
        record = send_one(sender, bad)
    print(f"answered: {record.status} after {1000 * record.seconds:.0f} ms")
    broken = [*record.faults, *watch.faults()]
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def _shown(bad: BadInput) -> str:
    content = bad.content
    rest = f" ... {len(content.message)} bytes" if len(content.message) > _MAX_SHOWN else ""
    expected = " or ".join(sorted(content.expected.statuses))
    message = f"{content.message[:_MAX_SHOWN]!r}{rest}"
    return f"{bad.method.value}\nmetadata: {content.metadata}\nmessage: {message}\nexpected: {expected}"


def _slow_line(record: Record) -> str:
    what = f"{record.method} of {record.num_characters} characters, {record.status}, {record.name}"
    return f"{1000 * record.seconds:.0f} ms: {what}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.stress bad-inputs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count} inputs" for mode, count in _COUNTS.items())
    add("--mode", choices=sorted(_COUNTS), default="full", help=f"{counts}; full also measures growth of all shapes")
    add("--count", type=_count, metavar="N", help="inputs, instead of those of the mode")
    add("--seed", type=int, default=1, metavar="N", help="of everything that is drawn (1)")
    add("--only", type=_kinds, default=list(KINDS), metavar="KIND,...", help="kinds to send (all)")
    add("--index", type=_index, metavar="I", help="send and show this one input of the one kind of --only")
    add("--list", action="store_true", help="print the kinds and end")
    add("--callers", type=_count, default=8, metavar="N", help="inputs in flight at a time (8)")
    add("--timeout", type=_above_zero, default=60.0, metavar="S", help="seconds after which a call hangs (60)")
    add("--max-rss-growth-mb", type=_above_zero, default=256.0, metavar="MB", help="memory promise (256)")
    add("--models", type=Path, default=SHIPPED_MODELS, metavar="DIR", help="models to serve (the one that ships)")
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
