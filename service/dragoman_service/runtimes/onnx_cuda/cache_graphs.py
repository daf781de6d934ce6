"""The small graphs that change caches on a device, as ONNX models in bytes.

They depend on nothing but an element type, so they are made here when a model is loaded, for bundles of any version; a
bundle need not hold them, and the service needs no ONNX library to write them. All operators are those of opset 13, for
which ONNX Runtime has had CUDA kernels for long: what it has no kernel for it would copy to the host.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from dragoman_service.bundle.architecture import FloatType

HIDDEN: Final = -3e4
"""Added to the attention score of a slot that a row does not see: its weight becomes exactly 0, where -inf could give
NaN. Half precision reaches to -65,504. What a row sees has 0."""

_IR_VERSION: Final = 8
_OPSET_VERSION: Final = 13

_ELEMENT_TYPES: Final[Mapping[str, int]] = {"float32": 1, "int32": 6, "int64": 7, "float16": 10}
"""Numbers of `onnx.TensorProto.DataType`."""

_FORMATS: Final[Mapping[str, str]] = {"float32": "f", "int64": "q", "float16": "e"}
"""As `struct` spells them."""

_Attribute = int | bytes
"""An integer, or a tensor as `_tensor` writes it."""


def zeros_graph(float_type: FloatType) -> bytes:
    """Return a graph that makes zeros [...] of a `shape` [rank]."""
    value = _tensor("value", float_type, [1], [0.0])
    nodes = [_node("ConstantOfShape", ["shape"], ["zeros"], value=value)]
    return _model("zeros", nodes, {"shape": "int64"}, {"zeros": float_type})


def write_graph(float_type: FloatType) -> bytes:
    """Return a graph that writes parts of one array into another, in place if that is bound as `written`, too.

    Both hold N names of any number of segments, [N, B, ...]. Of `source` the segments `taken` [n] are cut off at
    `ends` [1] of the axes `axes` [1], padded with zeros by `pads` [2 * rank], and written to `target` at `places`
    [N, n, 2]: name and segment. All is read before anything is written, so both may be the same array.
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
    """Return a graph that makes the small inputs of a decoder step of what goes up, and of the mask before.

    `update` int32 [B, W] has for each segment, side by side, as `widths` [6] divides it: source length, position, the
    K token ids, for each of Q rows the row of the mask before that it continues (-1: none), for each of Q rows the slot
    of its new token, and for each of K rows segment and slot. `previous` [R, L'] is the mask before, in rows of all
    segments; it is cut at `ends` [1] and padded by `pads` [4], which adds an empty row at the end. `slots` [L] counts
    from 0.
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


# Messages of onnx.proto, by the numbers of their fields.


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
    """Field 20 says the type: 2 is an integer, 4 a tensor."""
    number, kind = (3, 2) if isinstance(value, int) else (5, 4)
    return _field(1, name.encode()) + _field(number, value) + _field(20, kind)


def _value_info(name: str, element_type: str) -> bytes:
    """Give no shape: it may be any."""
    tensor_type = _field(1, _ELEMENT_TYPES[element_type])
    return _field(1, name.encode()) + _field(2, _field(1, tensor_type))


def _tensor(name: str, element_type: str, shape: Sequence[int], values: Sequence[float]) -> bytes:
    content = struct.pack(f"<{len(values)}{_FORMATS[element_type]}", *values)
    dims = b"".join(_field(1, size) for size in shape)
    return dims + _field(2, _ELEMENT_TYPES[element_type]) + _field(8, name.encode()) + _field(9, content)


def _field(number: int, value: int | bytes) -> bytes:
    """Write a field: an integer that is not negative, or a string or message, its length before it."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Write 7 bits a byte, lowest first; the highest bit says that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
