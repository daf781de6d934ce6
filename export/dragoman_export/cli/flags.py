"""Command-line flags: those shared by commands, and one per field of a settings dataclass."""

import argparse
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

_SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "bundle": {"type": Path, "required": True, "metavar": "DIR", "help": "bundle to read; it is not changed"},
    "output": {"type": Path, "required": True, "metavar": "DIR", "help": "directory to create"},
    "data": {
        "type": Path,
        "nargs": "+",
        "required": True,
        "metavar": "FILE",
        "help": "pairs, in a format of `train --train`",
    },
    "limit": {"type": int, "metavar": "N", "help": "use the first N lines only"},
    "checkpoint": {"type": Path, "required": True, "metavar": "PATH", "help": "checkpoint, run folder or import"},
    "precision": {"help": "precision of the graphs (default of the bundle)"},
    "beam": {"type": int, "default": 4, "metavar": "K", "help": "live hypotheses; 1: greedy search (%(default)s)"},
    "batch-size": {"type": int, "default": 16, "metavar": "B", "help": "texts translated together (%(default)s)"},
    "threads": {"type": int, "default": 1, "metavar": "T", "help": "CPU threads (%(default)s)"},
}


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser, for which argparse has no public function."""
    return parser._actions


def add_shared(parser: argparse._ActionsContainer, *flags: str, **changes: Any) -> None:
    """Add shared flags by name; `changes` override arguments of `add_argument`."""
    for flag in flags:
        parser.add_argument(f"--{flag}", **{**_SHARED[flag], **changes})


def add_flags(
    parser: argparse.ArgumentParser,
    settings: type,
    *,
    title: str,
    presets: Mapping[str, object],
    leave_out: Collection[str] = (),
    flags: Mapping[str, str] | None = None,
) -> None:
    """Add a flag per field of a dataclass with `use_attribute_docstrings`, in a group of `--help`.

    Flags that are not given are absent from the namespace. The help shows the defaults of the presets; `flags` are
    names that differ from the field.
    """
    documents = field_documents(settings)
    group = parser.add_argument_group(title)
    for name, hint in typing.get_type_hints(settings).items():
        if name in leave_out:
            continue
        by_value: dict[str, list[str]] = {}
        for preset, values in presets.items():
            by_value.setdefault(_in_words(getattr(values, name)), []).append(preset)
        defaults = [value if len(by_value) == 1 else f"{value} ({', '.join(by_value[value])})" for value in by_value]
        text = f"{documents[name]} Default: {'; '.join(defaults)}."
        group.add_argument(
            f"--{(flags or {}).get(name, name.replace('_', '-'))}",
            dest=name,
            default=argparse.SUPPRESS,
            help=text.replace("%", "%%"),
            **_parsing(hint),
        )


def given(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the fields of a dataclass whose flags were given."""
    return {name: getattr(args, name) for name in typing.get_type_hints(settings) if hasattr(args, name)}


def field_documents(settings: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass in one line."""
    fields = TypeAdapter(settings).json_schema()["properties"]
    return {name: " ".join(field.get("description", "").split()) for name, field in fields.items()}


def _in_words(value: object) -> str:
    return {True: "yes", False: "no", None: "none"}[value] if isinstance(value, bool | None) else str(value)


def _parsing(hint: Any) -> dict[str, Any]:
    # arguments of `add_argument` for bool, Literal, or a plain type, optional or not
    if isinstance(hint, types.UnionType):
        hint = next(choice for choice in typing.get_args(hint) if choice is not types.NoneType)
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    return {"type": hint, "metavar": hint.__name__.upper()}
