from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from export.graph.write import IR_VERSION, OPSET_VERSION, GraphBuilder, save_model


def _write_sum(path: Path) -> onnx.ModelProto:
    graph = GraphBuilder("sum")
    given = graph.input("given", "float32", ["N", 2])
    with graph.scope("outer"), graph.scope("inner") as where:
        assert where == "outer.inner"
        total = graph.op("Add", given, graph.constant("weight", np.array([1, 2], dtype=np.float32)))
        total = graph.op("Add", total, graph.constant("weight", np.array([1, 2], dtype=np.float32)))
    left, right = graph.split(total, 2)
    graph.output(graph.op("Sub", right, left), "difference", "float32", ["N", 1])
    save_model(graph.build(), path)
    return onnx.load(path)


def test_a_graph_computes_what_was_put_into_it(tmp_path: Path) -> None:
    _write_sum(tmp_path / "sum.onnx")

    session = onnxruntime.InferenceSession(tmp_path / "sum.onnx", providers=["CPUExecutionProvider"])

    assert session.run(None, {"given": np.array([[3, 5]], dtype=np.float32)})[0].tolist() == [[4.0]]


def test_versions_are_those_the_runtime_reads(tmp_path: Path) -> None:
    model = _write_sum(tmp_path / "sum.onnx")

    assert model.ir_version == IR_VERSION
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": OPSET_VERSION, "com.microsoft": 1}


def test_a_weight_is_stored_once_and_nodes_say_where_they_belong(tmp_path: Path) -> None:
    model = _write_sum(tmp_path / "sum.onnx")

    assert [weight.name for weight in model.graph.initializer] == ["weight"]
    assert [node.name for node in model.graph.node[:2]] == ["outer.inner.Add_0", "outer.inner.Add_1"]
