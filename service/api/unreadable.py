"""What can be told of a request that is no valid message: its id, if at least that can be read."""

from dragoman.v1 import translation_pb2 as pb
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

_NAME = "dragoman.unreadable.Named"


def readable_id(raw_request: bytes) -> str:
    """Return the id of a TranslateRequest whose other fields may hold anything; empty if none can be read."""
    try:
        named = _NAMED.FromString(raw_request)
    except DecodeError:
        return ""
    raw_id: bytes = getattr(named, "request_id")  # noqa: B009 - a type that no checker knows
    return raw_id.decode("utf-8", "replace")


def _named_type() -> type[Message]:
    """Return a message with the id as its only field: all others are skipped, whatever is in them."""
    package, _, name = _NAME.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(name=f"{_NAME}.proto", package=package, syntax="proto3")
    file.message_type.add(name=name).field.add(
        name="request_id",
        number=pb.TranslateRequest.REQUEST_ID_FIELD_NUMBER,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))


_NAMED = _named_type()
