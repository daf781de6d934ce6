"""JSON bodies: any input is a message of the contract or an error that names the invalid field."""

import asyncio
import json
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import RequestError
from dragoman_service.http_api.json_mapping import as_dict, parsed_json, serialized_json, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just("NaN"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [name for field in pb.TranslateRequest.DESCRIPTOR.fields for name in (field.name, field.json_name)]
    + [name for field in pb.DecodingOptions.DESCRIPTOR.fields for name in (field.name, field.json_name)]
)
BODIES = st.dictionaries(
    NAMES | st.text(max_size=8), VALUES | st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=6), max_size=6
)


def parsed(body: bytes) -> pb.TranslateRequest | RequestError:
    try:
        return asyncio.run(parsed_json(body, pb.TranslateRequest))
    except RequestError as error:
        return error


@given(body=st.binary())
@example(body=b"\xed\xa0\x80")
@example(body=b'{"texts": ["\\ud800"]}')
@example(body=b"[" * 100_000)
@example(body=b'{"a":' * 100_000)
@example(body=b"1" * 10_000)
def test_any_bytes_are_a_request_or_rejected(body: bytes) -> None:
    parsed(body)


@given(body=BODIES)
def test_any_json_is_a_request_or_rejected_with_a_short_message(body: dict[str, Any]) -> None:
    answer = parsed(json.dumps(body).encode())

    if isinstance(answer, RequestError):
        assert len(str(answer).encode()) < 2000
        assert answer.field.isascii()
        assert answer.field.isprintable()
    else:
        assert answer.IsInitialized()


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Return messages of a kind with any values in any of their fields."""
    fields = {field.name: values(field) for field in kind.DESCRIPTOR.fields}
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: kind(**given))


def values(field: Any) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        one = messages(field.message_type._concrete_class)
    elif field.enum_type is not None:
        one = st.sampled_from([value.number for value in field.enum_type.values])
    else:
        one = {
            FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
            FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
            FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
            FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
            FieldDescriptor.CPPTYPE_STRING: st.text(st.characters(exclude_categories=["Cs"])),
        }[field.cpp_type]
    return st.lists(one, max_size=3) if field.is_repeated else one


@given(request=messages(pb.TranslateRequest))
def test_json_of_protobuf_round_trips(request: pb.TranslateRequest) -> None:
    assert parsed(asyncio.run(serialized_json(request))) == request
    assert parsed(to_json(as_dict(request))) == request
