"""The flags that the load tests share, the same for Locust and for the commands, and what they mean."""

import argparse
import difflib
import enum
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from loadtests.generator.texts import DATA_VARIABLE, Profile
from loadtests.generator.calls import Method
from loadtests.generator.workload import Mix, Workload, format_mix, parse_mix, parse_priority

_Named = TypeVar("_Named")
_PREFIX: Final = "workload_"  # of the fields of a workload among parsed flags: Locust has flags of the same names


class _Flag(NamedTuple):
    """How a field of a workload is written on a command line; `parse` raises ValueError for what is no value."""

    field: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str


def _values(kind: type[enum.Enum]) -> str:
    return ", ".join(member.value for member in kind)


def _member(kind: type[enum.Enum], text: str) -> enum.Enum:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"expected {_values(kind)}") from error


def _number(low: float, high: float, kind: Callable[[str], Any], text: str) -> Any:
    value = kind(text)
    if not low <= value <= high:
        raise ValueError(f"{text}: expected {low:g} to {high:g}")
    return value


_beams: Final = partial(parse_mix, parse=partial(_number, 1, 16, int))
_priorities: Final = partial(parse_mix, parse=parse_priority)


def _text(value: Any) -> str:
    """Return a value as it is written behind its flag; empty for none."""
    if isinstance(value, Mix):
        return format_mix(value)
    if isinstance(value, Path):
        value = value.absolute()
    return "" if value is None else str(getattr(value, "value", value))


_TEST_SETS: Final = "tatoeba-en-de/test.tsv.gz or newstest2013-en-de/test.tsv.gz"
_FLAGS: Final[Mapping[str, _Flag]] = {
    "--profile": _Flag("profile", "NAME", f"texts: {_values(Profile)} (%(default)s)", partial(_member, Profile)),
    "--data": _Flag("data", "DIR", f"has {_TEST_SETS} (what {DATA_VARIABLE} names, else built-in sentences)", Path),
    "--lines": _Flag("lines", "FILE", "a text in each line, for the profile lines", Path),
    "--texts-per-call": _Flag("texts_per_call", "N", "of a request (%(default)s)", int),
    "--methods": _Flag(
        "methods",
        "MIX",
        f"drawn for each call, such as Translate=8,TranslateStream=1; of {_values(Method)} "
        "(TranslateDocument for documents, else Translate)",
        partial(parse_mix, parse=partial(_member, Method)),
    ),
    "--beams": _Flag("beams", "MIX", "sizes, such as 4=3,1=1 (the server's default)", _beams),
    "--priorities": _Flag("priorities", "MIX", "such as interactive=9,bulk=1 (the server's default)", _priorities),
    "--deadline": _Flag("deadline_s", "S", "from when a call should be sent (%(default)s)", float),
    "--leaving": _Flag("leaving", "SHARE", "of calls that are cancelled, 0 to 1 (%(default)s)", float),
    "--leave-within": _Flag("leave_within_s", "S", "when they are, at random up to (%(default)s)", float),
    "--source-language": _Flag("source_language", "TAG", "(%(default)s)"),
    "--target-language": _Flag("target_language", "TAG", "(%(default)s)"),
    "--model": _Flag("model", "NAME", "as requests name it (the default of the languages)"),
    "--admin-model": _Flag("admin_model", "NAME/VERSION", "for methods of ModelAdminService, if --methods names them"),
    "--options": _Flag("options", "JSON", 'DecodingOptions of requests, such as {"maxTargetTokens": 32}'),
}


def add_workload_flags(parser: Any, default: Workload, *, profile_flag: str = "--profile") -> None:
    """Declare the flags of a workload on a parser or a group; their values are text, which Locust sends on."""
    for name, (field, metavar, what, _) in _FLAGS.items():
        shown = profile_flag if field == "profile" else name
        given = _text(getattr(default, field))
        parser.add_argument(shown, dest=f"{_PREFIX}{field}", default=given, metavar=metavar, help=what)


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the workload that parsed flags describe; ValueError names a wrong flag and what it takes."""
    fields = {}
    for name, flag in _FLAGS.items():
        text = getattr(options, f"{_PREFIX}{flag.field}")
        try:
            if text:
                fields[flag.field] = flag.parse(text)
        except ValueError as error:
            raise ValueError(f"{name} {text}: {error}") from error
    return Workload(**fields)


def flags_of(workload: Workload) -> list[str]:
    """Return flags that describe a workload, as `workload_of` reads them."""
    texts = {name: _text(getattr(workload, flag.field)) for name, flag in _FLAGS.items()}
    return [f"{name}={text}" for name, text in texts.items() if text]


def parsed_by(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a `type` for `argparse` that tells what a ValueError says, and not only that the value is wrong."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def within(low: float, high: float, kind: Callable[[str], Any] = float) -> Callable[[str], Any]:
    """Return what reads a number of a range, for `argparse`."""
    return parsed_by(partial(_number, low, high, kind))


def several(table: Mapping[str, _Named]) -> Callable[[str], list[_Named]]:
    """Return what reads names, parted by commas, as what a table has of them, in its order, for `argparse`."""

    def read(text: str) -> list[_Named]:
        names = text.split(",")
        for name in names:
            if name not in table:
                similar = difflib.get_close_matches(name, table, n=1)
                hint = f"; did you mean {similar[0]}?" if similar else ""
                raise argparse.ArgumentTypeError(f"there is no {name!r}{hint}")
        return [value for name, value in table.items() if name in names]

    return read
