"""The JSON mapping of protobuf, strict, with errors that name the field."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.http_api.bodies import converted, json_content, shown_name

_Message = TypeVar("_Message", bound=Message)

_MAX_SHOWN_CHARACTERS = 64
_INTEGER = re.compile("-?[0-9]{1,19}")
_NUMBERS = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_INT32}
_MAX_SEARCHED_ITEMS = 1000  # of a list with an invalid item

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
    """Parse the body of a request.

    Raises:
        RequestError: names the unknown or duplicate field or the field with an invalid value; `request` if the body is
            not a JSON object.
    """
    return await converted(lambda: _message(raw_request, kind), len(raw_request))


async def serialized_json(message: Message) -> bytes:
    """Return a message as one line of JSON, including fields with default values."""
    return await converted(lambda: to_json(as_dict(message)), message.ByteSize())


def as_dict(message: Message) -> dict[str, Any]:
    """Return the JSON object of a message."""
    return MessageToDict(message, always_print_fields_with_no_presence=True)


def to_json(value: object) -> bytes:
    """Return one line of JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _message(raw_request: bytes, kind: type[_Message]) -> _Message:
    message = kind()
    _fill(message, json_content(raw_request), path="request", prefix="")
    return message


def _fill(message: Message, content: Any, *, path: str, prefix: str) -> None:
    if not isinstance(content, dict):
        raise InvalidFieldError(path, _described(content), "an object")
    known = message.DESCRIPTOR.fields
    fields = {name: field for field in known for name in (field.name, field.json_name)}
    seen = set()
    for name, value in content.items():
        field = fields.get(name)
        if field is None:
            names = ", ".join(field.json_name for field in known)
            raise RequestError(f"{prefix}{shown_name(name)}", f"unknown field; expected one of {names}")
        field_path = f"{prefix}{field.name}"
        if field.number in seen:
            raise RequestError(field_path, "duplicate field")
        seen.add(field.number)
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
            raise InvalidFieldError(field_path, _described(value), "a list of objects")


def _set(message: Message, field: Any, value: Any, *, path: str) -> None:
    if _is_set(message, field, value):
        return
    expected = _expected(field)
    if field.is_repeated and isinstance(value, list):
        for index, item in enumerate(value[:_MAX_SEARCHED_ITEMS]):
            if not _is_set(type(message)(), field, [item]):
                raise InvalidFieldError(f"{path}[{index}]", _described(item), expected)
    raise InvalidFieldError(path, _described(value), f"a list, each item {expected}" if field.is_repeated else expected)


def _is_set(message: Message, field: Any, value: Any) -> bool:
    """Set a field if the value has its type; return whether it has.

    The mapping allows numbers as strings. Here only 64-bit integers can be strings, which JavaScript cannot represent
    as numbers.
    """
    if not all(_is_allowed(field, item) for item in (value if isinstance(value, list) else [value])):
        return False
    if field.type == FieldDescriptor.TYPE_STRING and value is not None:
        return _is_text_set(message, field, value)
    try:
        ParseDict({field.name: value}, message)
    except (ParseError, RecursionError):
        return False
    return True


def _is_text_set(message: Message, field: Any, value: Any) -> bool:
    # Without ParseDict, which searches each text with a regular expression.
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


def _is_allowed(field: Any, value: object) -> bool:
    """Return False for values that only ParseDict accepts."""
    if field.enum_type is not None:
        is_number = isinstance(value, int) and not isinstance(value, bool)  # also an unknown one
        return value is None or is_number or (isinstance(value, str) and value in field.enum_type.values_by_name)
    if isinstance(value, str) and field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return bool(_INTEGER.fullmatch(value))
    return not (isinstance(value, str) and field.cpp_type in _NUMBERS)


def _expected(field: Any) -> str:
    if field.enum_type is not None:
        return f"one of {', '.join(value.name for value in field.enum_type.values)}"
    return _EXPECTED.get(field.cpp_type, "a value of the type of the field")


def _described(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the string {_shown(value)}"
    return "null" if value is None else _shown(json.dumps(value))


def _shown(text: str) -> str:
    shown = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
    return shown if shown.isprintable() else ascii(shown)
