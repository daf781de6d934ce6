from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from dragoman_export.onnx_export.write import IR_VERSION, OPSET_VERSION, GraphBuilder, WeightsFile, save_model


def _run(path: Path, given: list[list[float]]) -> NDArray[Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    result: NDArray[Any] = session.run(None, {"given": np.array(given, dtype=np.float32)})[0]
    return result


def test_graph_computes_its_nodes(tmp_path: Path) -> None:
    graph = GraphBuilder("sum")
    total = graph.input("given", "float32", ["N", 2])
    with graph.scope("outer"), graph.scope("inner") as where:
        assert where == "outer.inner"
        for _ in range(2):
            total = graph.op("Add", total, graph.constant("weight", np.array([1, 2], dtype=np.float32)))
    left, right = graph.split(total, 3, 3)
    graph.output(graph.op("Sub", right, left), "difference", "float32", ["N", 1])
    save_model(graph.build(), tmp_path / "sum.onnx")

    model = onnx.load(tmp_path / "sum.onnx")
    assert _run(tmp_path / "sum.onnx", [[3, 5]]).tolist() == [[4.0]]
    assert model.ir_version == IR_VERSION
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": OPSET_VERSION, "com.microsoft": 1}
    assert [weight.name for weight in model.graph.initializer] == ["weight"]
    assert [node.name for node in model.graph.node[:2]] == ["outer.inner.Add_0", "outer.inner.Add_1"]


_LARGE = np.arange(1001, dtype=np.float32)


def _save(path: Path, weights: WeightsFile, **arrays: NDArray[Any]) -> Path:
    graph = GraphBuilder("sum")
    total = graph.input("given", "float32", ["N", 1])
    for name, array in arrays.items():
        total = graph.op("Add", total, graph.constant(name, array))
    graph.output(total, "total", "float32", ["N", "M"])
    save_model(graph.build(), path, weights)
    return path


def _places(path: Path) -> dict[str, dict[str, str]]:
    initializers = onnx.load(path, load_external_data=False).graph.initializer
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in initializers
        if tensor.external_data
    }


def test_equal_arrays_are_stored_once(tmp_path: Path) -> None:
    weights = WeightsFile(tmp_path / "weights.bin")

    first = _places(_save(tmp_path / "first.onnx", weights, a=_LARGE, b=_LARGE.copy()))
    second = _places(_save(tmp_path / "second.onnx", weights, c=_LARGE, d=_LARGE + 1))

    assert first["a"] == first["b"] == second["c"] != second["d"]
    assert first["a"]["location"] == "weights.bin"
    assert int(second["d"]["offset"]) % 64 == 0
    assert (tmp_path / "weights.bin").stat().st_size == int(second["d"]["offset"]) + _LARGE.nbytes


def test_small_arrays_stay_in_the_graph(tmp_path: Path) -> None:
    path = _save(tmp_path / "sum.onnx", WeightsFile(tmp_path / "weights.bin"), small=_LARGE[:1], large=_LARGE)

    assert set(_places(path)) == {"large"}


def test_runtime_uses_stored_weights(tmp_path: Path) -> None:
    weights = WeightsFile(tmp_path / "weights.bin")
    _save(tmp_path / "first.onnx", weights, a=_LARGE)

    path = _save(tmp_path / "second.onnx", weights, b=_LARGE * 2, a=_LARGE)

    assert np.array_equal(_run(path, [[1]])[0], _LARGE * 3 + 1)
