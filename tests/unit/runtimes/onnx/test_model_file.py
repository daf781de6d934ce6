from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from dragoman_service.runtimes.onnx.model_file import external_files, read_model


def _external(location: str) -> TensorProto:
    tensor = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "64", "length": "8"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _sparse(name: str) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=_external(f"{name}.values"), indices=_external(f"{name}.indices"))


def _graph(*initializers: TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "graph", [], [], initializer=initializers)


def _with_attributes() -> onnx.NodeProto:
    return helper.make_node(
        "Any",
        [],
        ["out"],
        tensor=_external("tensor"),
        tensors=[_external("tensors")],
        graph=_graph(_external("graph"), nodes=(helper.make_node("Any", [], ["out"], value=_external("nested")),)),
        graphs=[_graph(_external("graphs"))],
        sparse=_sparse("sparse"),
        all_sparse=[_sparse("all_sparse")],
    )


def _with_sparse_initializer() -> onnx.GraphProto:
    graph = _graph()
    graph.sparse_initializer.append(_sparse("initializer"))
    return graph


def _with_function() -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["value"], value=_external("node"))
    function = helper.make_function("local", "F", [], ["value"], [node], [helper.make_opsetid("", 24)])
    function.attribute_proto.append(helper.make_attribute("value", _external("default")))
    return helper.make_model(_graph(), functions=[function])


@pytest.mark.parametrize(
    ("model", "files"),
    [
        (helper.make_model(_graph(onnx.numpy_helper.from_array(np.arange(9, dtype=np.float32), "inside"))), ""),
        (helper.make_model(_graph(_external("weights"), _external("weights"), _external("../x"))), "weights ../x"),
        (helper.make_model(_with_sparse_initializer()), "initializer.values initializer.indices"),
        (
            helper.make_model(_graph(nodes=(_with_attributes(),))),
            "tensor tensors graph nested graphs sparse.values sparse.indices all_sparse.values all_sparse.indices",
        ),
        (_with_function(), "node default"),
    ],
    ids=["embedded", "initializers", "sparse", "attributes", "functions"],
)
def test_external_files_of_all_messages_are_found(tmp_path: Path, model: onnx.ModelProto, files: str) -> None:
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())

    assert external_files(read_model(tmp_path / "a.onnx")) == set(files.split())


def _hidden(field: int, content: bytes) -> bytes:
    """Return a field whose key has a bit that ONNX Runtime ignores."""
    key, length = field << 3 | 2 | 1 << 33, len(content)
    groups = [key >> shift & 0x7F for shift in range(0, 35, 7)] + [length & 0x7F, length >> 7 & 0x7F]
    return bytes(group | 0x80 * (index not in {4, 6}) for index, group in enumerate(groups)) + content


def test_field_key_above_32_bits_is_rejected(tmp_path: Path) -> None:
    graph = _graph(_external("other.bin"), nodes=(helper.make_node("Identity", ["a"], ["b"]),))
    graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [2]))
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    content = _hidden(7, model.graph.SerializeToString())
    model.ClearField("graph")
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString() + content)

    with pytest.raises(ValueError, match="not an ONNX model"):
        read_model(tmp_path / "a.onnx")
    with pytest.raises(Exception, match=r"other\.bin"):
        onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])


def _nested(depth: int) -> bytes:
    model = helper.make_model(_graph())
    graph = model.graph
    for _ in range(depth):
        graph = graph.node.add(op_type="If").attribute.add(name="then_branch").g
    return model.SerializeToString()


@pytest.mark.parametrize(
    "content",
    [b"no graph", b"\x3a\x05ab", b"\x3a", b"\x3a\xff", b"\x08\xff\xff", b"\xff" * 400_000 + b"\1", _nested(40)],
)
def test_invalid_protocol_buffer_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)

    with pytest.raises(ValueError, match="not an ONNX model"):
        read_model(tmp_path / "a.onnx")
