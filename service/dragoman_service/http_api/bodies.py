"""Parsers of request bodies: JSON and urlencoded forms.

The limits bound the time for which one body holds Python's global lock: a parser in C releases the lock only when it
returns. Bodies above 16 KiB are parsed in another thread.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.translation.settings import MAX_FORM_FIELDS

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"

MAX_JSON_VALUES = 20_000
"""Maximum commas and opening brackets outside strings. 4 MiB of empty lists would hold the lock for 0.3 s."""

MAX_NUMBER_CHARACTERS = 64
"""Maximum length of a number in JSON. 1,000 numbers of 4,000 digits would hold the lock for 80 ms."""

_MAX_QUICK_BYTES = 16 * 1024
_SLICE_BYTES = 64 * 1024  # processed at once
_PLUS_TO_SPACE = bytes.maketrans(b"+", b" ")  # replace() would hold the lock for 20 ms on 4 MiB of `+`
_ESCAPES = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")
_Result = TypeVar("_Result")


async def converted(convert: Callable[[], _Result], num_bytes: int) -> _Result:
    """Return the result of a conversion of `num_bytes`, which runs in another thread if the input is large."""
    return convert() if num_bytes <= _MAX_QUICK_BYTES else await asyncio.to_thread(convert)


def json_content(body: bytes) -> Any:
    """Parse JSON.

    Raises:
        RequestError: if the body is not JSON in UTF-8, exceeds a limit, or has a duplicate member.
    """
    _check_num_values(body)
    try:
        return json.loads(
            body.decode(),
            object_pairs_hook=_unique_members,
            parse_constant=_no_constant,
            parse_int=lambda digits: int(_checked_number(digits)),
            parse_float=lambda digits: float(_checked_number(digits)),
        )
    except RecursionError:
        raise RequestError("request", "JSON is nested too deeply") from None
    except ValueError as error:
        raise RequestError("request", f"body is not valid JSON in UTF-8: {error}") from None


def form_fields(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and value of each field of an urlencoded form; RequestError if it is not valid UTF-8."""
    num_fields = body.count(b"&") + 1
    if num_fields > MAX_FORM_FIELDS:
        raise InvalidFieldError("request", f"{num_fields} fields", f"at most {MAX_FORM_FIELDS} fields")
    for pair in body.split(b"&"):
        name, _, value = pair.partition(b"=")
        if pair:
            yield _unquoted(name), _unquoted(value)


def check_unicode(value: object, path: str = "") -> None:
    """Raise RequestError if a string of a JSON value has a lone surrogate, which protobuf cannot represent."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise RequestError(path or "request", "not valid Unicode (lone surrogate)") from None
    elif isinstance(value, Mapping):
        for name, member in value.items():
            check_unicode(name, path)
            check_unicode(member, f"{path}.{shown_name(name)}".removeprefix("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_unicode(item, f"{path}[{index}]")


def shown_name(name: str) -> str:
    """Return the name of an unknown field for an error message; `request` if the name could be confidential text."""
    return name if name.isascii() and name.isidentifier() and len(name) < 64 else "request"


def _check_num_values(body: bytes) -> None:
    # Counts separators outside strings, slice by slice.
    num_values, is_in_string, start = 0, False, 0
    if _num_separators(body) <= MAX_JSON_VALUES:
        return
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2 and len(piece) > 1:
            piece = piece[:-1]  # do not split an escape
        start += len(piece)
        parts = piece.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        num_values += _num_separators(b"".join(parts[is_in_string::2]))
        is_in_string ^= len(parts) % 2 == 0
        if num_values > MAX_JSON_VALUES:
            raise RequestError("request", f"more than {MAX_JSON_VALUES} JSON values")


def _num_separators(content: bytes) -> int:
    return sum(map(content.count, (b",", b"[", b"{")))


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise RequestError(shown_name(name), "duplicate field")
        members[name] = value
    return members


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _checked_number(digits: str) -> str:
    if len(digits) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"number of {len(digits)} characters; at most {MAX_NUMBER_CHARACTERS} are allowed")
    return digits


def _unquoted(quoted: bytes) -> str:
    quoted = quoted.translate(_PLUS_TO_SPACE)
    slices, start = [], 0
    while start < len(quoted):
        end = start + _SLICE_BYTES
        if end < len(quoted) and (cut := quoted.rfind(b"%", end - 2, end)) >= 0:
            end = cut  # do not split an escape
        slices.append(
            _ESCAPES.sub(lambda escapes: bytes.fromhex(escapes[0].replace(b"%", b"").decode()), quoted[start:end])
        )
        start = end
    try:
        return b"".join(slices).decode()
    except UnicodeDecodeError:
        raise RequestError("request", "body is not valid UTF-8 form data") from None
