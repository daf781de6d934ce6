"""Which files a graph keeps its arrays in, read from the graph's file without loading it.

ONNX Runtime opens whatever file a graph names. So that it reads nothing but what the manifest vouches for, the names
are taken from the protocol buffer first. Only the fields that lead to them are followed, as numbered in onnx.proto
(github.com/onnx/onnx); everything else is skipped by its length.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

_FIELDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
}
"""By kind of message, which of its fields hold what that may lead to a file name."""

_KEY, _VALUE = 1, 2
"""Fields of an entry of external data."""


def external_files(path: Path) -> frozenset[str]:
    """Return the names of the files that a graph refers to, as written in it.

    Raises:
        ValueError: if the file is no protocol buffer.
    """
    return frozenset(_locations(memoryview(path.read_bytes()), "model"))


def _locations(message: memoryview, kind: str) -> Iterator[str]:
    for number, value in _fields(message):
        inner = _FIELDS[kind].get(number)
        if inner == "external data":
            entry = {field: bytes(part) for field, part in _fields(value)}
            if entry.get(_KEY) == b"location":
                yield entry.get(_VALUE, b"").decode()
        elif inner is not None:
            yield from _locations(value, inner)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of every field that is a string or a message, in order."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        match key & 7:  # the wire type
            case 0:
                _, position = _varint(message, position)
            case 1:
                position += 8
            case 2:
                length, position = _varint(message, position)
                if position + length > len(message):
                    raise ValueError("a field is longer than the message it is in")
                yield key >> 3, message[position : position + length]
                position += length
            case 5:
                position += 4
            case other:
                raise ValueError(f"a field has wire type {other}")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, 7 bits a byte, lowest first, and the position behind it."""
    number = shift = 0
    while position < len(message):
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number, position
        shift += 7
    raise ValueError("a number goes on behind the end of its message")
