"""Scenario `bad-inputs`: thousands of malformed and extreme inputs, and what they did."""

import argparse
import sys
from contextlib import closing
from typing import Final

from loadtests.flags import within
from loadtests.stress.bad_inputs import kinds, verdict
from loadtests.stress.bad_inputs.inputs import BadInput
from loadtests.stress.bad_inputs.kinds import KINDS, Planned
from loadtests.stress.bad_inputs.run import Record, Watch, send_all, send_one
from loadtests.stress.bad_inputs.sender import Sender
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.stress.report import conclude
from loadtests.stress.server import started
from loadtests.target import ServerProcess

SUMMARY: Final = "20,000 malformed and extreme inputs: does each get the right status?"

DESCRIPTION: Final = """\
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
again, with the seed that is printed beside it, and shows what was sent and what came back."""

_COUNTS: Final = {"short": 2000, "full": 20_000}
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_MAX_COUNT: Final = 1_000_000
_MAX_CALLERS: Final = 1000
_MAX_SHOWN: Final = 2000


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add = parser.add_argument
    counts = ", ".join(f"{mode}: {count}" for mode, count in _COUNTS.items())
    add("--count", type=within(1, _MAX_COUNT, int), metavar="N", help=f"inputs ({counts}, and growth of all shapes)")
    add("--only", type=_kinds, default=list(KINDS), metavar="KIND,...", help="kinds to send (all)")
    add("--index", type=within(0, _MAX_COUNT, int), metavar="I", help="send and show this one input of one kind")
    add("--list", action="store_true", help="print the kinds and end")
    add("--callers", type=within(1, _MAX_CALLERS, int), default=8, metavar="N", help="inputs in flight at a time (8)")
    add("--timeout", type=within(0.1, 3600), default=60.0, metavar="S", help="after which a call hangs (60)")
    add("--max-rss-growth-mb", type=within(1, 1e6), default=256.0, metavar="MB", help="memory promise (256)")


def run(options: argparse.Namespace) -> int:
    """Send them all, or one; return the exit code.

    Raises:
        argparse.ArgumentTypeError: if flags do not go together.
        ServerError: if the server does not start or answer.
    """
    if options.list:
        print("\n".join(f"{name:20} {(kind.__doc__ or '').partition(chr(10))[0]}" for name, kind in KINDS.items()))
        return 0
    if options.index is not None and len(options.only) != 1:
        raise argparse.ArgumentTypeError("--index needs --only with one kind")
    options.count = options.count or _COUNTS[options.mode]
    if options.count < len(options.only):
        least = f"expected at least {len(options.only)}, one input of each kind"
        raise argparse.ArgumentTypeError(f"--count {options.count}: {least}")
    with started(options.output, models=options.model_dir) as server:
        status = (_send_all if options.index is None else _send_one)(server, options)
        return 1 if server.stop() else status


def _send_all(server: ServerProcess, options: argparse.Namespace) -> int:
    result = send_all(
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


def _kinds(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: no such kind; --list names them")
    return names
