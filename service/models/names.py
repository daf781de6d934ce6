"""Names of models: `name`, `name/version`, `name@label`; the order of versions; language tags."""

import re
from dataclasses import dataclass

from service.errors import InvalidFieldError

MAX_LABEL_CHARACTERS = 64
"""Longest label."""

MAX_LABELS = 100
"""Most labels of a model."""

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(rf"({_PLAIN})(?:/({_PLAIN})|@({_PLAIN}))?")
_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_SHOWN_CHARACTERS = 40  # of a malformed value, in messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """How a caller names a model."""

    name: str
    version: str | None = None
    label: str | None = None
    """At most one of version and label is given."""


def parse_reference(model: str) -> ModelReference:
    """Parse `name`, `name/version` or `name@label`; InvalidFieldError if it is none of them."""
    match = _REFERENCE.fullmatch(model)
    if match is None:
        raise _invalid("model", model, "`name`, `name/version` or `name@label`")
    return ModelReference(name=match[1], version=match[2], label=match[3])


def parse_version(model: str) -> tuple[str, str]:
    """Parse `name/version`; InvalidFieldError if it is anything else."""
    match = _REFERENCE.fullmatch(model)
    if match is None or match[2] is None:
        raise _invalid("model", model, "`name/version`")
    return match[1], match[2]


def is_plain_name(name: str) -> bool:
    """Say whether a name can be that of a model, a version or a label."""
    return re.fullmatch(_PLAIN, name) is not None


def is_label(label: str) -> bool:
    """Say whether this can be a label."""
    return is_plain_name(label) and len(label) <= MAX_LABEL_CHARACTERS


def check_label(label: str) -> None:
    """Raise InvalidFieldError if this cannot be a label."""
    if not is_label(label):
        raise _invalid("label", label, f"1 to {MAX_LABEL_CHARACTERS} letters, digits, `.`, `_` and `-`")


def full_name(name: str, version: str) -> str:
    """Return `name/version`."""
    return f"{name}/{version}"


def version_key(version: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a key to sort versions by: numbers as numbers, so 10 follows 9 and 2026.10.1 follows 2026.9.30.

    Letters come before numbers, and 1.0-rc1 follows 1.0: this is not semantic versioning.
    """
    pieces = re.findall(r"\d+|[A-Za-z]+", version)
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in pieces], version


def language_lookup(field: str, tag: str) -> list[str]:
    """Return the tags of models that may serve a language tag: itself in lower case, then ever shorter ones.

    Raises:
        InvalidFieldError: if it is no BCP-47 tag.
    """
    if not _LANGUAGE_TAG.fullmatch(tag):
        raise _invalid(field, tag, "a BCP-47 tag, such as `en` or `pt-BR`")
    subtags = tag.lower().split("-")
    shortened = ["-".join(subtags[:length]) for length in range(len(subtags), 0, -1)]
    return [shorter for shorter in shortened if shorter[-2:-1] != "-"]


def _invalid(field: str, value: str, expected: str) -> InvalidFieldError:
    return InvalidFieldError(field, repr(value[:_SHOWN_CHARACTERS]), expected)
