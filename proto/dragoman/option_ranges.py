"""Types, ranges and defaults of request fields, read from the descriptors of the contract.

`dragoman/v1/translation.proto` declares each of them once, as a field option (`dragoman/v1/options.proto`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from dragoman.v1 import options_pb2
from dragoman.v1 import translation_pb2 as pb

_TYPES: Mapping[int, type] = {
    FieldDescriptor.CPPTYPE_INT32: int,
    FieldDescriptor.CPPTYPE_INT64: int,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_BOOL: bool,
    FieldDescriptor.CPPTYPE_STRING: str,
    FieldDescriptor.CPPTYPE_ENUM: str,
}
_TYPE_BOUNDS: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRange:
    """Valid values of one field of a request."""

    name: str
    type: type
    """`int`, `float`, `bool`, `str` (also for enums, by name) or `dict` (a message); for a list, type of its items."""

    is_list: bool
    minimum: float  # smallest number: an `int` if `type` is `int`; -infinity for a number without a lower bound
    maximum: float  # largest number; see `minimum`
    exclusive_minimum: bool  # True if `minimum` itself is invalid
    exclusive_maximum: bool  # True if `maximum` itself is invalid
    min_items: int
    max_items: int | None  # None: the list is unlimited, or the field is not a list
    min_characters: int
    max_characters: int | None
    """None: the string is unlimited or limited by a server setting, or the field is not a string."""

    default: float | str | None
    """Value of an absent field: a number, a bool or the name of an enum value. None: not a constant."""

    if_absent: str  # meaning of absence if `default` is None, or the condition that changes the default; may be empty
    unit: str  # unit of a number, such as `tokens`; empty if it has none

    def contains(self, value: float) -> bool:
        """Return whether a number is in the range. NaN is in no range."""
        is_above = self.minimum < value if self.exclusive_minimum else self.minimum <= value
        return is_above and (value < self.maximum if self.exclusive_maximum else value <= self.maximum)

    @property
    def text(self) -> str:
        """The range of a number for error messages and help texts, such as `1 to 16` or `above 0, at most 1`."""
        low, high = _text(self.minimum), _text(self.maximum)
        if not (self.exclusive_minimum or self.exclusive_maximum):
            return f"{low} to {high}"
        low_word = "above" if self.exclusive_minimum else "at least"
        high_word = "below" if self.exclusive_maximum else "at most"
        return f"{low_word} {low}, {high_word} {high}"

    @property
    def description(self) -> str:
        """Range and default in words, such as `1 to 16; default 4`; empty if nothing is declared."""
        parts = []
        if self.type in (int, float) and self.minimum >= 0:  # no declared range allows negative numbers
            parts.append(self.text)
        if self.max_items is not None:
            parts.append(f"{_least(self.min_items)} {self.max_items} items")
        if self.max_characters is not None:
            parts.append(f"{_least(self.min_characters)} {self.max_characters} characters")
        if self.default is not None:
            default = f"{self.default:g}" if self.type in (int, float) else str(self.default)
            default = default.lower() if self.type is bool else default
            parts.append(f"default {default}" + (f", {self.if_absent}" if self.if_absent else ""))
        elif self.if_absent:
            parts.append(f"default: {self.if_absent}")
        return "; ".join(parts)


def option_ranges(message: type[Message]) -> Mapping[str, OptionRange]:
    """Return the ranges of all fields of a message type by field name."""
    return _ranges(message.DESCRIPTOR)


def option_range(path: str, message: type[Message] = pb.TranslateRequest) -> OptionRange:
    """Return the range of the field at a path, such as `texts` or `options.sampling.top_k`; KeyError if unknown."""
    *parents, name = path.split(".")
    descriptor: Any = message.DESCRIPTOR
    for parent in parents:
        descriptor = descriptor.fields_by_name[parent].message_type
    return _ranges(descriptor)[name]


@cache
def _ranges(message: Any) -> Mapping[str, OptionRange]:
    return MappingProxyType({field.name: field_range(field) for field in message.fields})


def field_range(field: Any) -> OptionRange:
    """Return the range of a field by its descriptor."""
    rules = field.GetOptions().Extensions[options_pb2.rules]
    field_type = _TYPES.get(field.cpp_type, dict)
    number_type = int if field_type is int else float
    low, high = _TYPE_BOUNDS.get(field.cpp_type, (-math.inf, math.inf))
    default_name = rules.WhichOneof("default_value")
    default = getattr(rules, default_name) if default_name else None
    return OptionRange(
        name=field.name,
        type=field_type,
        is_list=field.is_repeated,
        minimum=number_type(rules.minimum) if rules.HasField("minimum") else low,
        maximum=number_type(rules.maximum) if rules.HasField("maximum") else high,
        exclusive_minimum=rules.exclusive_minimum,
        exclusive_maximum=rules.exclusive_maximum,
        min_items=rules.min_items,
        max_items=rules.max_items if rules.HasField("max_items") else None,
        min_characters=rules.min_characters,
        max_characters=rules.max_characters if rules.HasField("max_characters") else None,
        default=default if default is None else field_type(default),
        if_absent=rules.if_absent,
        unit=rules.unit,
    )


def _least(minimum: int) -> str:
    return f"{minimum} to" if minimum else "at most"


def _text(number: float) -> str:
    exponent = math.log2(number + 1) if number > 2**30 else 0.5
    return f"2^{exponent:g} - 1" if exponent.is_integer() else f"{number:g}"
