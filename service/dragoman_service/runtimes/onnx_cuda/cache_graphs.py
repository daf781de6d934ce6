"""Small ONNX graphs that modify KV caches on a device.

The graphs depend only on the element type. They are generated when a model is loaded, independent of the bundle version
and without the ONNX package. All operators are from opset 13 and have CUDA kernels; ONNX Runtime would copy the data of
an operator without a CUDA kernel to the host.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.runtimes.onnx.kv_pool import HIDDEN
from dragoman_service.runtimes.onnx.model_pb2 import (
    Attribute,
    Graph,
    Model,
    Node,
    OperatorSet,
    Tensor,
    TensorType,
    Type,
    ValueInfo,
)

_IR_VERSION: Final = 8
_OPSET_VERSION: Final = 13

_ELEMENT_TYPES: Final[Mapping[str, int]] = {"float32": 1, "int32": 6, "int64": 7, "float16": 10}
"""Numbers of `onnx.TensorProto.DataType`."""

_INTEGER: Final = 2  # of `onnx.AttributeProto.AttributeType`
_TENSOR: Final = 4


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


def _model(
    name: str, nodes: Sequence[Node], inputs: Mapping[str, str], outputs: Mapping[str, str], *constants: Tensor
) -> bytes:
    model = Model(
        ir_version=_IR_VERSION,
        producer_name="dragoman",
        opset_import=[OperatorSet(version=_OPSET_VERSION)],
        graph=Graph(
            name=name, node=nodes, initializer=constants, input=_value_infos(inputs), output=_value_infos(outputs)
        ),
    )
    return model.SerializeToString()


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int | Tensor) -> Node:
    described = [
        Attribute(name=name, i=value, type=_INTEGER)
        if isinstance(value, int)
        else Attribute(name=name, t=value, type=_TENSOR)
        for name, value in attributes.items()
    ]
    name = f"{op_type}.{outputs[0]}"
    return Node(op_type=op_type, name=name, input=inputs, output=outputs, attribute=described)


def _value_infos(element_types: Mapping[str, str]) -> list[ValueInfo]:
    # Without a shape, every shape is valid.
    return [
        ValueInfo(name=name, type=Type(tensor_type=TensorType(elem_type=_ELEMENT_TYPES[element_type])))
        for name, element_type in element_types.items()
    ]


def _tensor(name: str, element_type: str, shape: Sequence[int], values: Sequence[float]) -> Tensor:
    content = np.array(values, np.dtype(element_type).newbyteorder("<")).tobytes()
    return Tensor(name=name, data_type=_ELEMENT_TYPES[element_type], dims=shape, raw_data=content)
