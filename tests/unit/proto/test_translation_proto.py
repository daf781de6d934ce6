import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

PROTO_ROOT = Path(__file__).parents[3] / "proto"
PROTO_FILE = "dragoman/v1/translation.proto"

# Field numbers of descriptor.proto, which make up the path of an element.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
FIELDS, NESTED_MESSAGES, NESTED_ENUMS = 2, 3, 4
VALUES = METHODS = 2

Element = tuple[str, tuple[int, ...]]
"""Name of an element and its path in the file."""


@pytest.fixture(scope="module")
def proto_file(tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("descriptors") / "translation.binpb"
    roots = [PROTO_ROOT, PROTO_ROOT / "third_party", resources.files("grpc_tools") / "_proto"]
    options = [*(f"--proto_path={root}" for root in roots), f"--descriptor_set_out={output}", "--include_source_info"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, PROTO_FILE], check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file[0]


def _elements(proto_file: Any) -> Iterator[Element]:
    for i, message in enumerate(proto_file.message_type):
        yield from _message_elements(message, (MESSAGES, i))
    for i, enum in enumerate(proto_file.enum_type):
        yield from _parent_and_children(enum, (ENUMS, i), enum.value, VALUES)
    for i, service in enumerate(proto_file.service):
        yield from _parent_and_children(service, (SERVICES, i), service.method, METHODS)


def _message_elements(message: Any, path: tuple[int, ...]) -> Iterator[Element]:
    yield from _parent_and_children(message, path, message.field, FIELDS)
    for i, nested in enumerate(message.nested_type):
        yield from _message_elements(nested, (*path, NESTED_MESSAGES, i))
    for i, enum in enumerate(message.enum_type):
        yield from _parent_and_children(enum, (*path, NESTED_ENUMS, i), enum.value, VALUES)


def _parent_and_children(parent: Any, path: tuple[int, ...], children: Any, kind: int) -> Iterator[Element]:
    yield parent.name, path
    for i, child in enumerate(children):
        yield f"{parent.name}.{child.name}", (*path, kind, i)


def test_every_message_field_enum_value_service_and_method_is_documented(proto_file: Any) -> None:
    locations = proto_file.source_code_info.location
    documented = {tuple(at.path) for at in locations if (at.leading_comments or at.trailing_comments).strip()}

    undocumented = [name for name, path in _elements(proto_file) if path not in documented]

    assert undocumented == []


def test_the_walk_meets_every_kind_of_element(proto_file: Any) -> None:
    names = {name for name, _ in _elements(proto_file)}

    assert {
        "TranslateRequest",
        "DecodingOptions.beam_size",
        "WarningKind",
        "WarningKind.WARNING_KIND_TRUNCATED",
        "ModelService",
        "TranslationService.TranslateStream",
    } <= names


def test_every_numeric_option_can_be_absent(proto_file: Any) -> None:
    numeric = {descriptor_pb2.FieldDescriptorProto.TYPE_INT32, descriptor_pb2.FieldDescriptorProto.TYPE_INT64}
    numeric.add(descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE)
    messages = [m for m in proto_file.message_type if m.name in {"DecodingOptions", "SamplingOptions"}]

    always_present = [f.name for m in messages for f in m.field if f.type in numeric and not f.proto3_optional]

    assert len(messages) == 2
    assert always_present == []
