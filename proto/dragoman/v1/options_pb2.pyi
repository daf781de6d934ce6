# Generated from options.proto by proto/generate.py; do not edit.
# mypy: ignore-errors
from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor
RULES_FIELD_NUMBER: _ClassVar[int]
rules: _descriptor.FieldDescriptor

class FieldRules(_message.Message):
    __slots__ = ("minimum", "maximum", "exclusive_minimum", "exclusive_maximum", "min_items", "max_items", "min_characters", "max_characters", "default_number", "default_flag", "default_enum", "if_absent", "unit")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_MINIMUM_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    MIN_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MIN_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FLAG_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_ENUM_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    minimum: float
    maximum: float
    exclusive_minimum: bool
    exclusive_maximum: bool
    min_items: int
    max_items: int
    min_characters: int
    max_characters: int
    default_number: float
    default_flag: bool
    default_enum: str
    if_absent: str
    unit: str
    def __init__(self, minimum: _Optional[float] = ..., maximum: _Optional[float] = ..., exclusive_minimum: bool = ..., exclusive_maximum: bool = ..., min_items: _Optional[int] = ..., max_items: _Optional[int] = ..., min_characters: _Optional[int] = ..., max_characters: _Optional[int] = ..., default_number: _Optional[float] = ..., default_flag: bool = ..., default_enum: _Optional[str] = ..., if_absent: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...
