"""Makes a command-line flag of every field of a settings dataclass, documented by the string below the field."""

import argparse
import ast
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any


def add_flags(
    parser: argparse.ArgumentParser,
    settings: type,
    *,
    title: str,
    presets: Mapping[str, object],
    leave_out: Collection[str] = (),
    flags: Mapping[str, str] | None = None,
) -> None:
    """Add a flag for every field of a dataclass; one that is not given leaves no trace in the namespace.

    Args:
        parser: to add to.
        settings: the dataclass.
        title: of the group of flags in `--help`.
        presets: instances by name, whose values are told as defaults.
        leave_out: fields that get no flag.
        flags: flags by field where they are not `--field-name`, without the dashes.
    """
    documents = field_documents(settings)
    group = parser.add_argument_group(title)
    for name, hint in typing.get_type_hints(settings).items():
        if name not in leave_out:
            flag = (flags or {}).get(name, name.replace("_", "-"))
            text = f"{documents[name]} {_told_default({key: getattr(preset, name) for key, preset in presets.items()})}"
            group.add_argument(
                f"--{flag}", dest=name, default=argparse.SUPPRESS, help=text.replace("%", "%%"), **_parsing(hint)
            )


def given(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Return the fields of a dataclass whose flags were given."""
    return {name: getattr(args, name) for name in typing.get_type_hints(settings) if hasattr(args, name)}


def field_documents(settings: type) -> dict[str, str]:
    """Return the string below each field in the source of a class, its lines joined."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    documents = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            documents[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return documents


def _told_default(values: Mapping[str, Any]) -> str:
    """Return the default in words: one value, or where presets differ each value and the presets that have it."""
    presets: dict[str, list[str]] = {}
    for preset, value in values.items():
        presets.setdefault(_in_words(value), []).append(preset)
    if len(presets) == 1:
        return f"Default: {next(iter(presets))}."
    told = "; ".join(f"{value} ({', '.join(names)})" for value, names in presets.items())
    return f"Default: {told}."


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _parsing(hint: Any) -> dict[str, Any]:
    """Return the arguments of `add_argument` that parse a type: bool, Literal, or a plain type, maybe optional."""
    if isinstance(hint, types.UnionType):
        hint = next(choice for choice in typing.get_args(hint) if choice is not types.NoneType)
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    return {"type": hint, "metavar": hint.__name__.upper()}
