"""Messages of the contract as JSON and back (the JSON mapping of protobuf), strict, with errors that name the field."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from dragoman_service.errors import InvalidFieldError
from dragoman_service.http_api.bodies import converted, json_content, shown_name

_Message = TypeVar("_Message", bound=Message)

_MAX_SHOWN_CHARACTERS = 64
_INTEGER = re.compile("-?[0-9]{1,19}")
_NUMBERS = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_INT32}
_MAX_SEARCHED_ITEMS = 1000  # of a list, for the one that is wrong

_EXPECTED: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_INT32: "an integer of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "an integer of 64 bits",
    FieldDescriptor.CPPTYPE_MESSAGE: "an object",
    FieldDescriptor.CPPTYPE_STRING: "a string of Unicode characters",
}


async def parsed_json(raw_request: bytes, kind: type[_Message]) -> _Message:
    """Return the message that the body of a request stands for.

    Raises:
        InvalidFieldError: names the field that the contract does not have, that is there twice or is of another type;
            `request` if the body is no JSON object.
    """
    return await converted(lambda: _message(raw_request, kind), len(raw_request))


async def serialized_json(message: Message) -> bytes:
    """Return a message as JSON in one line of UTF-8, with the fields that have their default value."""
    return await converted(lambda: to_json(as_dict(message)), message.ByteSize())


def as_dict(message: Message) -> dict[str, Any]:
    """Return what stands for a message in JSON."""
    return MessageToDict(message, always_print_fields_with_no_presence=True)


def to_json(value: object) -> bytes:
    """Return JSON in one line of UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _message(raw_request: bytes, kind: type[_Message]) -> _Message:
    message = kind()
    _fill(message, json_content(raw_request), path="request", prefix="")
    return message


def _fill(message: Message, content: Any, *, path: str, prefix: str) -> None:
    """Set the fields of a message."""
    if not isinstance(content, dict):
        raise InvalidFieldError(path, _kind_of(content), "an object")
    known = message.DESCRIPTOR.fields
    fields = {name: field for field in known for name in (field.name, field.json_name)}
    taken = set()
    for name, value in content.items():
        field = fields.get(name)
        if field is None:
            names = ", ".join(one.json_name for one in known)
            raise InvalidFieldError(f"{prefix}{shown_name(name)}", "no field of the contract", f"one of {names}")
        field_path = f"{prefix}{field.name}"
        if field.number in taken:
            raise InvalidFieldError(field_path, "there under both of its names", "there once")
        taken.add(field.number)
        part = getattr(message, field.name)
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE or value is None:
            _set(message, field, value, path=field_path)
        elif not field.is_repeated:
            part.SetInParent()
            _fill(part, value, path=field_path, prefix=f"{field_path}.")
        elif field.message_type and field.message_type.GetOptions().map_entry:
            _set(message, field, value, path=field_path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                _fill(part.add(), item, path=f"{field_path}[{index}]", prefix=f"{field_path}[{index}].")
        else:
            raise InvalidFieldError(field_path, _kind_of(value), "a list of objects")


def _set(message: Message, field: Any, value: Any, *, path: str) -> None:
    if _is_set(message, field, value):
        return
    expected = _expected(field)
    if field.is_repeated and isinstance(value, list):
        for index, item in enumerate(value[:_MAX_SEARCHED_ITEMS]):
            if not _is_set(type(message)(), field, [item]):
                raise InvalidFieldError(f"{path}[{index}]", _kind_of(item), expected)
    raise InvalidFieldError(path, _kind_of(value), f"a list, each item {expected}" if field.is_repeated else expected)


def _is_set(message: Message, field: Any, value: Any) -> bool:
    """Set a field if its value is of its type; return whether it is.

    The mapping lets numbers be strings, and their parser more than that. Here only integers of 64 bits may be, which
    JavaScript cannot write otherwise.
    """
    if not all(_may_be(field, item) for item in (value if isinstance(value, list) else [value])):
        return False
    if field.type == FieldDescriptor.TYPE_STRING and value is not None:
        return _is_text_set(message, field, value)
    try:
        ParseDict({field.name: value}, message)
    except (ParseError, RecursionError):
        return False
    return True


def _is_text_set(message: Message, field: Any, value: Any) -> bool:
    """Set a field of texts as `_is_set`; the parser would search each text with one regular expression."""
    texts = value if isinstance(value, list) else [value]
    if isinstance(value, list) != field.is_repeated or not all(isinstance(text, str) for text in texts):
        return False
    try:
        if field.is_repeated:
            getattr(message, field.name).extend(texts)
        else:
            setattr(message, field.name, value)
    except ValueError:  # a lone surrogate
        return False
    return True


def _may_be(field: Any, value: object) -> bool:
    """Return False for what the parser would take and the field may not have."""
    if field.enum_type is not None:
        is_number = isinstance(value, int) and not isinstance(value, bool)  # known or not
        return value is None or is_number or (isinstance(value, str) and value in field.enum_type.values_by_name)
    if isinstance(value, str) and field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return bool(_INTEGER.fullmatch(value))
    return not (isinstance(value, str) and field.cpp_type in _NUMBERS)


def _expected(field: Any) -> str:
    if field.enum_type is not None:
        return f"one of {', '.join(value.name for value in field.enum_type.values)}"
    return _EXPECTED.get(field.cpp_type, "of the contract's type")


def _kind_of(value: object) -> str:
    """Return a few words for a value of JSON."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the string {_shown(value)}"
    return "null" if value is None else _shown(json.dumps(value))


def _shown(text: str) -> str:
    """Return a text of the caller, shortened, without what cannot be printed."""
    shown = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return shown if shown.isprintable() else ascii(shown)
