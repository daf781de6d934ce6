"""Command-line flags of a workload, shared by the load tests and Locust, and argument types."""

import argparse
import difflib
import enum
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from loadtests.generator.calls import Method
from loadtests.generator.texts import DATA_VARIABLE, Profile
from loadtests.generator.workload import Mix, Workload, format_mix, parse_mix, parse_priority

_Named = TypeVar("_Named")
_PREFIX: Final = "workload_"  # of parsed flags, because Locust has flags of the same names


class _Flag(NamedTuple):
    field: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str  # raises ValueError


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


def _text(value: Any) -> str:
    """Return the argument that `_Flag.parse` reads as the value; empty for None."""
    if isinstance(value, Mix):
        return format_mix(value)
    if isinstance(value, Path):
        value = value.absolute()
    return "" if value is None else str(getattr(value, "value", value))


_beams: Final = partial(parse_mix, parse=partial(_number, 1, 16, int))
_priorities: Final = partial(parse_mix, parse=parse_priority)
_TEST_SETS: Final = "tatoeba-en-de/test.tsv.gz or newstest2013-en-de/test.tsv.gz"
_FLAGS: Final[Mapping[str, _Flag]] = {
    "--profile": _Flag("profile", "NAME", f"texts: {_values(Profile)} (%(default)s)", partial(_member, Profile)),
    "--data": _Flag("data", "DIR", f"contains {_TEST_SETS} ({DATA_VARIABLE}, or else built-in sentences)", Path),
    "--lines": _Flag("lines", "FILE", "one text per line, for --profile lines", Path),
    "--texts-per-call": _Flag("texts_per_call", "N", "texts of a request (%(default)s)", int),
    "--methods": _Flag(
        "methods",
        "MIX",
        f"drawn for each call, such as Translate=8,TranslateStream=1; {_values(Method)} "
        "(TranslateDocument for documents, else Translate)",
        partial(parse_mix, parse=partial(_member, Method)),
    ),
    "--beams": _Flag("beams", "MIX", "beam sizes, such as 4=3,1=1 (default of the server)", _beams),
    "--priorities": _Flag("priorities", "MIX", "such as interactive=9,bulk=1 (default of the server)", _priorities),
    "--deadline": _Flag("deadline_s", "S", "seconds from the scheduled time (%(default)s)", float),
    "--leaving": _Flag("leaving", "SHARE", "share of calls that the client cancels, 0 to 1 (%(default)s)", float),
    "--leave-within": _Flag("leave_within_s", "S", "cancel within S seconds, at random (%(default)s)", float),
    "--source-language": _Flag("source_language", "TAG", "(%(default)s)"),
    "--target-language": _Flag("target_language", "TAG", "(%(default)s)"),
    "--model": _Flag("model", "NAME", "model name of requests (default of the language pair)"),
    "--admin-model": _Flag("admin_model", "NAME/VERSION", "for methods of ModelAdminService in --methods"),
    "--options": _Flag("options", "JSON", 'DecodingOptions of requests, such as {"maxTargetTokens": 32}'),
}


def add_workload_flags(parser: Any, default: Workload, *, without: str = "") -> None:
    """Add the flags of a workload to a parser or group; parsed values are text, which Locust sends to its workers."""
    for name, (field, metavar, text, _) in _FLAGS.items():
        if name != without:
            given = _text(getattr(default, field))
            parser.add_argument(name, dest=f"{_PREFIX}{field}", default=given, metavar=metavar, help=text)


def workload_of(options: argparse.Namespace, **fixed: Any) -> Workload:
    """Return the workload of parsed flags with fixed fields; raises ValueError with the invalid flag."""
    fields = {}
    for name, flag in _FLAGS.items():
        text = getattr(options, f"{_PREFIX}{flag.field}", "")
        try:
            if text:
                fields[flag.field] = flag.parse(text)
        except ValueError as error:
            raise ValueError(f"{name} {text}: {error}") from error
    return Workload(**{**fields, **fixed})


def flags_of(workload: Workload) -> list[str]:
    """Return the flags that `workload_of` reads as the workload."""
    texts = {name: _text(getattr(workload, flag.field)) for name, flag in _FLAGS.items()}
    return [f"{name}={text}" for name, text in texts.items() if text]


def parsed_by(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse type that shows the message of a ValueError."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def within(low: float, high: float, kind: Callable[[str], Any] = float) -> Callable[[str], Any]:
    """Return an argparse type for a number in a range."""
    return parsed_by(partial(_number, low, high, kind))


def several(table: Mapping[str, _Named]) -> Callable[[str], list[_Named]]:
    """Return an argparse type for comma-separated names; the values have the order of the table."""

    def read(text: str) -> list[_Named]:
        names = text.split(",")
        for name in names:
            if name not in table:
                similar = difflib.get_close_matches(name, table, n=1)
                hint = f"; did you mean {similar[0]}?" if similar else f"; expected some of {', '.join(table)}"
                raise argparse.ArgumentTypeError(f"unknown name {name!r}{hint}")
        return [value for name, value in table.items() if name in names]

    return read
