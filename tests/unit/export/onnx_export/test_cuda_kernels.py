"""Every operator on floats in fp16 graphs has a CUDA kernel in the locked version of ONNX Runtime.

`tests/data/cuda_kernels.json` lists the kernels that the graphs need. Its source is `get_all_opkernel_def` of the
distribution onnxruntime-gpu, which also generates the table `docs/OperatorKernels.md` of ONNX Runtime. After an update
of ONNX Runtime, compare the file with the kernels of the new version and change the version in the file.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from dragoman_export.onnx_export.network import Network, write_graphs
from dragoman_export.onnx_export.write import MICROSOFT
from dragoman_service.bundle.architecture import Limits
from dragoman_service.runtimes.onnx_cuda.cache_graphs import advance_graph, write_graph, zeros_graph
from tests.tiny_bundle import tiny_model

_TESTS: Final = Path(__file__).parents[3]
_TABLE: Final = json.loads((_TESTS / "data" / "cuda_kernels.json").read_text(encoding="utf-8"))
_FLOATS: Final = ("float", "float16")
_TYPES: Final = {
    getattr(onnx.TensorProto, name.upper()): name for name in ("float", "float16", "int32", "int64", "bool")
}
_VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "paper": {"norm": "post"},
    "vocabulary with padding": {"vocabulary_size": 331},
    "marian": {"activation": "swish", "projection_bias": True, "decoder_start_id": 0, "tied_embeddings": "decoder"},
    "bart": {"activation": "gelu", "embedding_norm": True, "positions": "learned", "max_positions": 64},
    "modern": {
        "norm_kind": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "num_kv_heads": 1,
        "tied_embeddings": "none",
    },
}

_Kernel = Mapping[str, Any]


def test_table_is_that_of_the_locked_version() -> None:
    lock = (_TESTS.parent / "deploy" / "image" / "gpu.lock").read_text(encoding="utf-8")

    assert re.findall(r"^onnxruntime-gpu==(\S+)", lock, re.MULTILINE) == [_TABLE["onnxruntime-gpu"]]


@pytest.mark.parametrize("variant", _VARIANTS.values(), ids=_VARIANTS)
def test_operators_on_floats_in_fp16_graphs_have_cuda_kernels(tmp_path: Path, variant: Mapping[str, Any]) -> None:
    network = Network.of(tiny_model(**{"vocabulary_size": 320, **variant}))
    files = write_graphs(tmp_path, network, "fp16", Limits(max_source_tokens=64, max_target_tokens=64))

    for name in (files.encoder, files.decoder, files.attention):
        assert _without_kernel(onnx.load(tmp_path / str(name), load_external_data=False)) == []


@pytest.mark.parametrize("make_graph", [zeros_graph, write_graph, advance_graph])
def test_operators_on_floats_in_cache_graphs_have_cuda_kernels(make_graph: Any) -> None:
    assert _without_kernel(onnx.load_from_string(make_graph("float16"))) == []


def test_operator_type_and_opset_without_a_kernel_are_found() -> None:
    inputs = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [2])]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [2])]

    for operator, opset, has_kernel in (("Relu", 24, True), ("Relu", 6, False), ("Swish", 24, False)):
        node = onnx.helper.make_node(operator, ["x"], ["y"], name=operator)
        model = onnx.helper.make_model(
            onnx.helper.make_graph([node], "graph", inputs, outputs),
            opset_imports=[onnx.helper.make_opsetid("", opset)],
        )
        assert (_without_kernel(model) == []) is has_kernel


def _without_kernel(model: onnx.ModelProto) -> list[str]:
    # Nodes with a float among their inputs and outputs for which the table has no kernel.
    return [
        f"{node.name}: {node.op_type} of opset {opset}, {types}"
        for node, opset, types in _typed_nodes(model)
        if not set(types.values()).isdisjoint(_FLOATS)
        if not any(_matches(kernel, node, opset, types) for kernel in _TABLE["kernels"])
    ]


def _matches(kernel: _Kernel, node: onnx.NodeProto, opset: int, types: Mapping[str, str]) -> bool:
    # Without a last opset, ONNX Runtime uses a kernel for exactly one version of the operator.
    first, last = kernel["first_opset"], kernel["last_opset"] or kernel["first_opset"]
    return (
        (kernel["domain"], kernel["operator"]) == (node.domain, node.op_type)
        and first <= opset <= last
        and all(types[name] in allowed for name, allowed in kernel["types"].items() if name in types)
    )


def _typed_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, int, Mapping[str, str]]]:
    # Yields each node, the version of its operator, and its types by type parameter and by name of input or output.
    for node in model.graph.node:
        if node.domain == MICROSOFT:  # unknown to `onnx`; attention returns the type of its states
            for output in node.output:
                model.graph.value_info.append(
                    onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT16, None)
                )
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    versions = {imported.domain: imported.version for imported in model.opset_import}
    for node in graph.node:
        schema = _schema(node.domain, node.op_type, versions[node.domain])
        named: dict[str, str] = {}
        for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
            for index, name in enumerate(names):
                if name:
                    formal = formals[min(index, len(formals) - 1)]  # the last one may be variadic
                    named[formal.typeStr] = named[formal.name] = _TYPES[types[name]]
        yield node, schema.since_version, named


@cache
def _schema(domain: str, operator: str, opset: int) -> Any:
    # The newest version of an operator in an opset.
    named = [schema for schema in get_all_operator_schema() if (schema.domain, schema.name) == (domain, operator)]
    return max(
        (schema for schema in named if schema.since_version <= opset), key=lambda schema: int(schema.since_version)
    )
