"""Small ONNX graphs that modify KV caches on a device.

The graphs depend only on the element type. They are generated when a model is loaded, independent of the bundle version
and without the ONNX package. All operators are from opset 13 and have CUDA kernels; ONNX Runtime would copy the data of
an operator without a CUDA kernel to the host.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from dragoman_service.bundle.architecture import FloatType

HIDDEN: Final = -3e4
"""Added to the attention score of a hidden slot, so that its weight is exactly 0; visible slots have 0. The value -inf
could give NaN, and the minimum in half precision is -65,504."""

_IR_VERSION: Final = 8
_OPSET_VERSION: Final = 13

_ELEMENT_TYPES: Final[Mapping[str, int]] = {"float32": 1, "int32": 6, "int64": 7, "float16": 10}
"""Numbers of `onnx.TensorProto.DataType`."""

_FORMATS: Final[Mapping[str, str]] = {"float32": "f", "int64": "q", "float16": "e"}
"""Format characters of `struct`."""

_Attribute = int | bytes  # an integer, or a tensor from `_tensor`


def zeros_graph(float_type: FloatType) -> bytes:
    """Return a graph that creates `zeros` [...] of a `shape` [rank]."""
    value = _tensor("value", float_type, [1], [0.0])
    nodes = [_node("ConstantOfShape", ["shape"], ["zeros"], value=value)]
    return _model("zeros", nodes, {"shape": "int64"}, {"zeros": float_type})


def write_graph(float_type: FloatType) -> bytes:
    """Return a graph that copies segments of one array into another; in place if `written` is bound to `target`.

    Both arrays contain N names and any number of segments, [N, B, ...]. The graph gathers the segments `taken` [n] of
    `source`, cuts them at `ends` [1] of the axes `axes` [1], pads them with zeros by `pads` [2 * rank], and writes them
    to `target` at `places` [N, n, 2], pairs of name and segment. It reads all values before it writes the first one, so
    `source` and `target` can be the same array.
    """
    nodes = [
        _node("Gather", ["source", "taken"], ["picked"], axis=1),
        _node("Slice", ["picked", "begin", "ends", "axes"], ["cut"]),
        _node("Pad", ["cut", "pads"], ["padded"]),
        _node("ScatterND", ["target", "places", "padded"], ["written"]),
    ]
    integers = dict.fromkeys(("taken", "places", "ends", "axes", "pads"), "int64")
    inputs = {"source": float_type, "target": float_type, **integers}
    return _model("write", nodes, inputs, {"written": float_type}, _tensor("begin", "int64", [1], [0]))


def advance_graph(float_type: FloatType) -> bytes:
    """Return a graph that computes the small inputs of a decoder step from an uploaded array and the previous mask.

    `update` int32 [B, W] contains for each segment these columns, with their `widths` [6]: the source length; the
    position; K token ids; for each of Q queries the row of the previous mask that it continues, or -1 for a new
    segment; for each query the slot of its new token; for each of K rows its segment and slot. `previous` [R, L'] is
    the previous mask of the rows of all segments. The graph cuts it at `ends` [1] and pads it by `pads` [4], which adds
    an empty row at the end. `slots` [L] is 0, 1, 2, ...
    """
    nodes = [
        _node("Cast", ["update"], ["wide"], to=_ELEMENT_TYPES["int64"]),
        _node("Split", ["wide", "widths"], ["lengths", "positions", "token_ids", "rows", "own", "row_slots"], axis=1),
        _node("Cast", ["lengths"], ["source_lengths"], to=_ELEMENT_TYPES["int32"]),
        _node("Slice", ["previous", "begin", "ends", "last_axis"], ["cut"]),
        _node("Pad", ["cut", "pads", "hidden"], ["padded"]),
        _node("Gather", ["padded", "rows"], ["inherited"], axis=0),  # [B, Q, L]; -1 is the empty row
        _node("Unsqueeze", ["own", "two"], ["own_slots"]),  # [B, Q, 1]
        _node("Equal", ["own_slots", "slots"], ["is_own"]),
        _node("Where", ["is_own", "seen", "inherited"], ["ancestor_mask"]),
    ]
    integers = dict.fromkeys(("widths", "ends", "pads", "slots"), "int64")
    inputs = {"update": "int32", "previous": float_type, **integers}
    outputs = {
        **dict.fromkeys(("token_ids", "positions", "row_slots"), "int64"),
        "source_lengths": "int32",
        "ancestor_mask": float_type,
    }
    constants = (
        _tensor("begin", "int64", [1], [0]),
        _tensor("last_axis", "int64", [1], [1]),
        _tensor("two", "int64", [1], [2]),
        _tensor("hidden", float_type, [], [HIDDEN]),
        _tensor("seen", float_type, [], [0.0]),
    )
    return _model("advance", nodes, inputs, outputs, *constants)


# Writers of the messages of onnx.proto; numbers are field numbers.


def _model(
    name: str, nodes: Sequence[bytes], inputs: Mapping[str, str], outputs: Mapping[str, str], *constants: bytes
) -> bytes:
    graph = b"".join(
        [
            *(_field(1, node) for node in nodes),
            _field(2, name.encode()),
            *(_field(5, constant) for constant in constants),
            *(_field(11, _value_info(*value)) for value in inputs.items()),
            *(_field(12, _value_info(*value)) for value in outputs.items()),
        ]
    )
    opset = _field(1, b"") + _field(2, _OPSET_VERSION)
    return _field(1, _IR_VERSION) + _field(2, b"dragoman") + _field(7, graph) + _field(8, opset)


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: _Attribute) -> bytes:
    names = [_field(1, name.encode()) for name in inputs] + [_field(2, name.encode()) for name in outputs]
    described = [_field(5, _attribute(*attribute)) for attribute in attributes.items()]
    return b"".join([*names, _field(3, f"{op_type}.{outputs[0]}".encode()), _field(4, op_type.encode()), *described])


def _attribute(name: str, value: _Attribute) -> bytes:
    # Field 20 is the type: 2 for an integer, 4 for a tensor.
    number, kind = (3, 2) if isinstance(value, int) else (5, 4)
    return _field(1, name.encode()) + _field(number, value) + _field(20, kind)


def _value_info(name: str, element_type: str) -> bytes:
    # Without a shape, every shape is valid.
    tensor_type = _field(1, _ELEMENT_TYPES[element_type])
    return _field(1, name.encode()) + _field(2, _field(1, tensor_type))


def _tensor(name: str, element_type: str, shape: Sequence[int], values: Sequence[float]) -> bytes:
    content = struct.pack(f"<{len(values)}{_FORMATS[element_type]}", *values)
    dims = b"".join(_field(1, size) for size in shape)
    return dims + _field(2, _ELEMENT_TYPES[element_type]) + _field(8, name.encode()) + _field(9, content)


def _field(number: int, value: int | bytes) -> bytes:
    # Encodes a non-negative integer, or a length-delimited string or message.
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    # Encodes in little-endian base 128; the high bit of a byte marks that another byte follows.
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
