"""Conversion between dataclasses and protobuf messages, by the names of their fields."""

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

T = TypeVar("T")


def from_message(cls: type[T], message: Message) -> T:
    """Return a dataclass with the fields of a message.

    An absent field becomes None if the dataclass allows None. A field `x_s` is read from the duration `x`.
    """
    key: Any = cls  # mypy: not every type is known to be hashable
    return cls(**{name: read(message) for name, read in _readers(key)})


def to_fields(value: Any, path: str) -> dict[str, Any]:
    """Return the fields of a dataclass that are not None, as arguments for the constructor of a message.

    Raises:
        TypeError: if a field holds neither the string, the dataclass nor the list of them that it is declared to hold.
            The message starts with `path`.
    """
    fields = {}
    key: Any = type(value)
    for name, shape in _shapes(key):
        item, item_path = getattr(value, name), f"{path}.{name}"
        if item is None:
            continue
        if shape.is_list and (shape.is_dataclass or shape.type is str):
            check_items(item_path, item, shape.type)
        if shape.is_dataclass and shape.is_list:
            item = [to_fields(part, f"{item_path}[{index}]") for index, part in enumerate(item)]
        elif shape.is_dataclass:
            check_type(item_path, item, shape.type)
            item = to_fields(item, item_path)
        fields[name] = item
    return fields


def check_items(path: str, values: object, expected: type) -> None:
    """Raise a TypeError unless `values` is an iterable of `expected`; a single string is not a list of strings."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        actual = "one string" if isinstance(values, str) else f"of type {type(values).__name__}"
        items = "strings" if expected is str else expected.__name__
        raise TypeError(f"{path} is {actual}, must be a sequence of {items}")
    if isinstance(values, Collection):  # an iterator can be read only once: protobuf checks its items
        for index, value in enumerate(values):
            check_type(f"{path}[{index}]", value, expected)


def check_type(path: str, value: object, expected: type) -> None:
    """Raise a TypeError unless `value` is an instance of `expected`."""
    if not isinstance(value, expected):
        raise TypeError(f"{path} is of type {type(value).__name__}, must be {expected.__name__}")


class _Shape(NamedTuple):
    type: Any  # of each item, for a list
    is_list: bool
    is_optional: bool

    @property
    def is_dataclass(self) -> bool:
        return dataclasses.is_dataclass(self.type)


@cache
def _shapes(cls: Any) -> tuple[tuple[str, _Shape], ...]:
    hints = get_type_hints(cls)
    return tuple((field.name, _shape(hints[field.name])) for field in dataclasses.fields(cls))


def _shape(hint: Any) -> _Shape:
    options = [option for option in get_args(hint) or (hint,) if option is not NoneType]
    is_list = get_origin(hint) is tuple
    return _Shape(options[0], is_list, is_optional=not is_list and NoneType in get_args(hint))


@cache
def _readers(cls: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple((name, _reader(name, shape)) for name, shape in _shapes(cls))


def _reader(name: str, shape: _Shape) -> Callable[[Any], Any]:
    if name.endswith("_s"):
        duration = attrgetter(name.removesuffix("_s"))
        return lambda message: duration(message).ToTimedelta().total_seconds()
    convert: Callable[[Any], Any] | None = None
    if shape.is_dataclass:
        convert = partial(from_message, shape.type)
    elif issubclass(shape.type, enum.Enum):
        convert = shape.type

    def read(message: Any) -> Any:
        if shape.is_optional and not message.HasField(name):
            return None
        value = getattr(message, name)
        if shape.is_list:
            return tuple(value if convert is None else map(convert, value))
        return value if convert is None else convert(value)

    return read
