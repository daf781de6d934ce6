from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from service.runtime.session import external_files


def _external(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "64", "length": "8"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _graph(nodes: list[onnx.NodeProto], *initializers: TensorProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, "graph", [], [], initializer=initializers)


def _save(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_a_graph_with_all_of_its_arrays_inside_refers_to_no_file(tmp_path: Path) -> None:
    inside = onnx.numpy_helper.from_array(np.arange(1000, dtype=np.float32), "inside")

    assert external_files(_save(tmp_path / "a.onnx", helper.make_model(_graph([], inside)))) == frozenset()


def test_files_are_told_as_the_graph_names_them(tmp_path: Path) -> None:
    graph = _graph([], _external("a", "weights.bin"), _external("b", "weights.bin"), _external("c", "../other.bin"))

    assert external_files(_save(tmp_path / "a.onnx", helper.make_model(graph))) == {"weights.bin", "../other.bin"}


def test_arrays_of_attributes_inner_graphs_and_functions_are_found(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["value"], value=_external("constant", "constant.bin"))
    branch = helper.make_node("If", ["so"], ["out"], then_branch=_graph([], _external("branch", "branch.bin")))
    inner = helper.make_node("Constant", [], ["value"], value=_external("inner", "function.bin"))
    function = helper.make_function("local", "F", [], ["value"], [inner], [helper.make_opsetid("", 24)])
    model = helper.make_model(_graph([constant, branch]), functions=[function])

    assert external_files(_save(tmp_path / "a.onnx", model)) == {"constant.bin", "branch.bin", "function.bin"}


def test_sparse_arrays_are_found(tmp_path: Path) -> None:
    sparse = onnx.SparseTensorProto(
        values=_external("values", "values.bin"), indices=_external("indices", "indices.bin")
    )
    graph = _graph([])
    graph.sparse_initializer.append(sparse)

    assert external_files(_save(tmp_path / "a.onnx", helper.make_model(graph))) == {"values.bin", "indices.bin"}


@pytest.mark.parametrize("content", [b"no graph", b"\x3a\x05ab", b"\x3a", b"\x3a\xff", b"\x08\xff\xff"])
def test_a_file_that_is_no_protocol_buffer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(content)

    with pytest.raises(ValueError, match=r"a (field|number)"):
        external_files(tmp_path / "a.onnx")
