"""The flags of a workload, the same for Locust and for the commands that start it, and what they mean."""

import argparse
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from loadtests.texts import DATA_VARIABLE, Profile
from loadtests.wire import Method
from loadtests.workload import Mix, Workload, format_mix, parse_mix, parse_priority

_DEFAULT: Final = Workload()


def add_workload_flags(parser: Any, *, profile_flag: str) -> None:
    """Declare the flags; their values are text and numbers, which Locust can send from one process to another.

    Args:
        parser: an `argparse.ArgumentParser`, or a group of one.
        profile_flag: what the flag of the text profile is called: Locust has a `--profile` of its own.
    """
    add = parser.add_argument
    profiles = ", ".join(profile.value for profile in Profile)
    add(
        profile_flag,
        dest="text_profile",
        default=_DEFAULT.profile.value,
        metavar="NAME",
        help=f"texts: {profiles} (sentence)",
    )
    add(
        "--data",
        metavar="DIR",
        help="has tatoeba-en-de/test.tsv.gz or newstest2013-en-de/test.tsv.gz; "
        f"default: the directory that {DATA_VARIABLE} names, else the texts are those of this repository's documents",
    )
    add("--lines", metavar="FILE", help="a text in each line, for the profile lines")
    add("--texts-per-call", type=int, default=1, metavar="N", help="of a request (1)")
    add(
        "--methods",
        default="",
        metavar="MIX",
        help="drawn for each call, such as Translate=8,TranslateStream=1; of "
        f"{', '.join(method.value for method in Method)} (TranslateDocument for documents, else Translate)",
    )
    add("--beams", default="", metavar="MIX", help="beam sizes, such as 4=3,1=1 (the server's default)")
    add("--priorities", default="", metavar="MIX", help="such as interactive=9,bulk=1 (the server's default)")
    add(
        "--deadline",
        type=float,
        default=_DEFAULT.deadline_s,
        metavar="S",
        help="of each call, from when it should be sent (10)",
    )
    add(
        "--leaving", type=float, default=0.0, metavar="SHARE", help="of callers who leave before the answer, 0 to 1 (0)"
    )
    add(
        "--leave-within",
        type=float,
        default=_DEFAULT.leave_within_s,
        metavar="S",
        help="when they leave, at random up to (0.5)",
    )
    add("--source-language", default="en", metavar="TAG", help="(en)")
    add("--target-language", default="de", metavar="TAG", help="(de)")
    add("--model", default="", metavar="NAME", help="as requests name it (the default of the languages)")
    add(
        "--admin-model",
        default="",
        metavar="NAME/VERSION",
        help="what LoadModel and SetModelLabel are about; they are called only if --methods names them",
    )
    add(
        "--options", default="", metavar="JSON", help='DecodingOptions of each request, such as {"maxTargetTokens": 32}'
    )


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the workload that parsed flags describe.

    Raises:
        ValueError: naming the flag and what it takes.
    """
    return Workload(
        profile=_parsed("text profile", _member(Profile), options.text_profile),
        data=Path(options.data) if options.data else None,
        lines=Path(options.lines) if options.lines else None,
        texts_per_call=options.texts_per_call,
        methods=_mix("--methods", options.methods, _member(Method)),
        beams=_mix("--beams", options.beams, _beam),
        priorities=_mix("--priorities", options.priorities, parse_priority),
        deadline_s=options.deadline,
        leaving=options.leaving,
        leave_within_s=options.leave_within,
        source_language=options.source_language,
        target_language=options.target_language,
        model=options.model,
        admin_model=options.admin_model,
        options=options.options,
    )


def flags_of(workload: Workload, *, profile_flag: str) -> list[str]:
    """Return flags that describe a workload, as `workload_of` reads them."""
    flags: dict[str, Any] = {
        profile_flag: workload.profile.value,
        "--data": workload.data and workload.data.absolute(),
        "--lines": workload.lines and workload.lines.absolute(),
        "--texts-per-call": workload.texts_per_call,
        "--methods": format_mix(workload.methods),
        "--beams": format_mix(workload.beams),
        "--priorities": format_mix(workload.priorities),
        "--deadline": repr(workload.deadline_s),
        "--leaving": repr(workload.leaving),
        "--leave-within": repr(workload.leave_within_s),
        "--source-language": workload.source_language,
        "--target-language": workload.target_language,
        "--model": workload.model,
        "--admin-model": workload.admin_model,
        "--options": workload.options,
    }
    return [f"{name}={value}" for name, value in flags.items() if value not in {None, ""}]


def within(low: float, high: float, kind: Callable[[str], Any] = float) -> Callable[[str], Any]:
    """Return what reads a number of a range, for `argparse`."""

    def read(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text}: expected {low:g} to {high:g}")
        return value

    read.__name__ = kind.__name__  # argparse names it where the text is no number
    return read


def _mix(flag: str, text: str, parse: Any) -> Any:
    return _parsed(flag, lambda mix: parse_mix(mix, parse), text) if text else Mix()


def _parsed(flag: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{flag} {text}: {error}") from error


def _member(kind: type[enum.Enum]) -> Callable[[str], enum.Enum]:
    """Return what finds a member of an enumeration by its text."""
    values = {member.value: member for member in kind}

    def find(text: str) -> enum.Enum:
        if text not in values:
            raise ValueError(f"expected {', '.join(values)}")
        return values[text]

    return find


def _beam(text: str) -> int:
    size = int(text)
    if not 1 <= size <= 16:
        raise ValueError(f"{text}: expected a beam size from 1 to 16")
    return size
