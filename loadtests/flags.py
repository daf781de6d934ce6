"""The flags that the load tests share, the same for Locust and for the commands, and what they mean."""

import argparse
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.texts import DATA_VARIABLE, Profile
from loadtests.wire import Method
from loadtests.workload import Workload, format_mix, parse_mix, parse_priority

_MAX_BEAM_SIZE: Final = 16
_PREFIX: Final = "workload_"
"""Of the fields of a workload among parsed flags: Locust has flags of the same names."""


@dataclass(frozen=True, slots=True)
class _Flag:
    """How a field of a workload is written on a command line."""

    field: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str
    """Raises ValueError for a text that is no value."""

    show: Callable[[Any], object] = str


def _member(kind: type[enum.Enum]) -> Callable[[str], enum.Enum]:
    """Return what finds a member of an enumeration by its text."""
    values: dict[str, enum.Enum] = {member.value: member for member in kind}

    def find(text: str) -> enum.Enum:
        if text not in values:
            raise ValueError(f"expected {', '.join(values)}")
        return values[text]

    return find


def _beam(text: str) -> int:
    size = int(text)
    if not 1 <= size <= _MAX_BEAM_SIZE:
        raise ValueError(f"{text}: expected a beam size from 1 to {_MAX_BEAM_SIZE}")
    return size


def _mix(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: parse_mix(text, parse)


_TEST_SETS: Final = "tatoeba-en-de/test.tsv.gz or newstest2013-en-de/test.tsv.gz"
_FLAGS: Final[Mapping[str, _Flag]] = {
    "--profile": _Flag(
        "profile",
        "NAME",
        f"texts: {', '.join(profile.value for profile in Profile)} (%(default)s)",
        _member(Profile),
        lambda profile: profile.value,
    ),
    "--data": _Flag(
        "data", "DIR", f"has {_TEST_SETS} (what {DATA_VARIABLE} names, else built-in sentences)", Path, Path.absolute
    ),
    "--lines": _Flag("lines", "FILE", "a text in each line, for the profile lines", Path, Path.absolute),
    "--texts-per-call": _Flag("texts_per_call", "N", "of a request (%(default)s)", int),
    "--methods": _Flag(
        "methods",
        "MIX",
        "drawn for each call, such as Translate=8,TranslateStream=1; of "
        f"{', '.join(method.value for method in Method)} (TranslateDocument for documents, else Translate)",
        _mix(_member(Method)),
        format_mix,
    ),
    "--beams": _Flag("beams", "MIX", "sizes, such as 4=3,1=1 (the server's default)", _mix(_beam), format_mix),
    "--priorities": _Flag(
        "priorities", "MIX", "such as interactive=9,bulk=1 (the server's default)", _mix(parse_priority), format_mix
    ),
    "--deadline": _Flag("deadline_s", "S", "from when a call should be sent (%(default)s)", float, repr),
    "--leaving": _Flag("leaving", "SHARE", "of calls that are cancelled, 0 to 1 (%(default)s)", float, repr),
    "--leave-within": _Flag("leave_within_s", "S", "when they are, at random up to (%(default)s)", float, repr),
    "--source-language": _Flag("source_language", "TAG", "(%(default)s)"),
    "--target-language": _Flag("target_language", "TAG", "(%(default)s)"),
    "--model": _Flag("model", "NAME", "as requests name it (the default of the languages)"),
    "--admin-model": _Flag("admin_model", "NAME/VERSION", "for methods of ModelAdminService, if --methods names them"),
    "--options": _Flag("options", "JSON", 'DecodingOptions of requests, such as {"maxTargetTokens": 32}'),
}


def add_workload_flags(parser: Any, default: Workload, *, profile_flag: str = "--profile") -> None:
    """Declare the flags of a workload; their values are text, which Locust can send between processes.

    Args:
        parser: an `argparse.ArgumentParser`, or a group of one.
        default: the workload without flags.
        profile_flag: what the flag of the text profile is called.
    """
    for name, flag in _FLAGS.items():
        value = getattr(default, flag.field)
        parser.add_argument(
            profile_flag if flag.field == "profile" else name,
            dest=f"{_PREFIX}{flag.field}",
            default="" if value is None else str(flag.show(value)),
            metavar=flag.metavar,
            help=flag.help,
        )


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the workload that parsed flags describe.

    Raises:
        ValueError: naming the flag and what it takes.
    """
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
    values = {name: (flag, getattr(workload, flag.field)) for name, flag in _FLAGS.items()}
    shown = {name: str(flag.show(value)) for name, (flag, value) in values.items() if value is not None}
    return [f"{name}={text}" for name, text in shown.items() if text]


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

    def read(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"{text}: expected {low:g} to {high:g}")
        return value

    return parsed_by(read)
