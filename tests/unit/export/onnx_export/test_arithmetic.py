from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from dragoman_export.onnx_export.arithmetic import Float16, Weights
from dragoman_export.onnx_export.network import Network, write_graphs
from dragoman_export.onnx_export.write import GraphBuilder, save_model
from dragoman_service.bundle.architecture import Limits
from tests.tiny_bundle import tiny_model

_TABLE = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)


def _run(
    path: Path, build: Callable[[GraphBuilder, ir.Value], ir.Value], entered: NDArray[np.float16], given: str
) -> NDArray[Any]:
    """Return what a graph of one input gives as the element type `given`."""
    graph = GraphBuilder("half")
    states = graph.input("states", str(entered.dtype), list(entered.shape))
    graph.output(build(graph, states), "result", given, ["rows", "columns"])
    save_model(graph.build(), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"states": entered})
    assert isinstance(result, np.ndarray)
    return result


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_half_precision_norms_and_softmax_use_float32(tmp_path: Path, norm_kind: str) -> None:
    network = Network.of(tiny_model(40, norm_kind=norm_kind))
    files = write_graphs(tmp_path, network, "fp16", Limits(max_source_tokens=8, max_target_tokens=8))

    nodes = [node for name in (files.encoder, files.decoder) for node in ir.load(tmp_path / name).graph]

    norms = [node for node in nodes if node.op_type in {"LayerNormalization", "RMSNormalization"}]
    (softmax,) = [node for node in nodes if node.op_type == "LogSoftmax"]
    (entered,) = [node for node in nodes if softmax.inputs[0] in node.outputs]
    assert len(norms) == 12
    assert all(
        "stash_type" not in node.attributes for node in norms
    )  # the type of mean and variance: by default float32
    assert (entered.op_type, entered.attributes["to"].value) == ("Cast", ir.DataType.FLOAT)


def test_half_precision_logits_are_float32(tmp_path: Path) -> None:
    states = np.array([[0.5, -1.0, 2.0, 0.25]], dtype=np.float16)

    logits = _run(
        tmp_path / "g.onnx",
        lambda graph, value: Float16().project(graph, value, Weights("table", _TABLE)),
        states,
        "float32",
    )

    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, states @ _TABLE.T, atol=0.005)


@pytest.mark.parametrize("rectifies", [False, True])
def test_half_precision_product_is_rounded(tmp_path: Path, rectifies: bool) -> None:
    states, bias = np.array([[0.5, -1.0, 2.0, 0.25]], dtype=np.float16), np.arange(6, dtype=np.float32)

    product = _run(
        tmp_path / "g.onnx",
        lambda graph, value: Float16().linear(graph, value, Weights("layer", _TABLE, bias), rectifies=rectifies),
        states,
        "float16",
    )

    entered = np.maximum(states, 0) if rectifies else states
    assert product.dtype == np.float16
    np.testing.assert_allclose(product, entered.astype(np.float32) @ _TABLE.T + bias, atol=0.01)


def test_half_precision_table_is_stored_once() -> None:
    graph, arithmetic = GraphBuilder("half"), Float16()
    token_ids = graph.input("token_ids", "int64", ["rows"])
    rows = arithmetic.lookup(graph, token_ids, Weights("table", _TABLE), factor=2.0)
    graph.output(arithmetic.project(graph, rows, Weights("table", _TABLE)), "logits", "float32", ["rows", 6])

    stored = graph.build().graph.initializers

    assert {name: value.const_value.numpy().dtype.name for name, value in stored.items() if value.const_value} == {
        "table": "float16",
        "float16.2": "float16",
    }
