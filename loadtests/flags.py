"""The flags that the load tests share, the same for Locust and for the commands, and what they mean."""

import argparse
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from loadtests.texts import DATA_VARIABLE, Profile
from loadtests.wire import Method
from loadtests.workload import Mix, Workload, format_mix, parse_mix, parse_priority

_MAX_BEAM_SIZE: Final = 16


def verb_parser(verb: str, description: str, *, output: str) -> argparse.ArgumentParser:
    """Return the parser of a verb with the flags that all verbs have, those of the server apart."""
    parser = argparse.ArgumentParser(
        prog=f"python -m loadtests {verb}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mode", choices=("full", "short"), default="full", help="short: a first impression (full)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of moments and texts (1)")
    parser.add_argument("--output", type=Path, default=Path(output), metavar="DIR", help=f"({output})")
    add_workload_flags(parser.add_argument_group("what calls ask for"))
    return parser


def add_workload_flags(parser: Any, *, profile_flag: str = "--profile") -> None:
    """Declare the flags of a workload; their values are text and numbers, which Locust can send between processes.

    Args:
        parser: an `argparse.ArgumentParser`, or a group of one.
        profile_flag: what the flag of the text profile is called.
    """
    add = parser.add_argument
    profiles = ", ".join(profile.value for profile in Profile)
    methods = ", ".join(method.value for method in Method)
    add(profile_flag, dest="text_profile", default="sentence", metavar="NAME", help=f"texts: {profiles} (sentence)")
    add(
        "--data",
        metavar="DIR",
        help="has tatoeba-en-de/test.tsv.gz or newstest2013-en-de/test.tsv.gz; "
        f"default: the directory that {DATA_VARIABLE} names, else built-in sentences",
    )
    add("--lines", metavar="FILE", help="a text in each line, for the profile lines")
    add("--texts-per-call", type=int, default=1, metavar="N", help="of a request (%(default)s)")
    add(
        "--methods",
        default="",
        metavar="MIX",
        help="drawn for each call, such as Translate=8,TranslateStream=1; of "
        f"{methods} (TranslateDocument for documents, else Translate)",
    )
    add("--beams", default="", metavar="MIX", help="beam sizes, such as 4=3,1=1 (the server's default)")
    add("--priorities", default="", metavar="MIX", help="such as interactive=9,bulk=1 (the server's default)")
    add("--deadline", type=float, default=10.0, metavar="S", help="from when a call should be sent (%(default)s)")
    add("--leaving", type=float, default=0.0, metavar="SHARE", help="of calls that are cancelled, 0 to 1 (0)")
    add("--leave-within", type=float, default=0.5, metavar="S", help="when, at random up to (0.5)")
    add("--source-language", default="en", metavar="TAG", help="(en)")
    add("--target-language", default="de", metavar="TAG", help="(de)")
    add("--model", default="", metavar="NAME", help="as requests name it (the default of the languages)")
    add(
        "--admin-model",
        default="",
        metavar="NAME/VERSION",
        help="what LoadModel and SetModelLabel are about; they are called only if --methods names them",
    )
    add("--options", default="", metavar="JSON", help='DecodingOptions of requests, such as {"maxTargetTokens": 32}')


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


def flags_of(workload: Workload, *, profile_flag: str = "--profile") -> list[str]:
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
