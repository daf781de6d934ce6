"""Files with ONNX models, read and checked without ONNX Runtime."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from google.protobuf.message import DecodeError

from dragoman_service.bundle.architecture import GraphTensors
from dragoman_service.bundle.files import read_file
from dragoman_service.errors import BundleError
from dragoman_service.runtimes.onnx.model_pb2 import Attribute, Graph, Model, SparseTensor, Tensor

_MAX_BYTES = 2 << 30  # a protocol buffer cannot be larger


def read_model(path: Path) -> Model:
    """Parse an ONNX model; raises ValueError if the file is not one, OSError if it cannot be read.

    The weights in the file are copied until the result is freed. Weights in other files are not read.
    """
    content = read_file(path, max_bytes=_MAX_BYTES)
    try:
        return Model.FromString(content)
    except DecodeError as error:
        raise ValueError(f"not an ONNX model: {error}") from error


def external_files(model: Model) -> frozenset[str]:
    """Return the names of the files that a model refers to."""
    tensors = chain(
        _graph_tensors(model.graph),
        *(_attribute_tensors(function.attribute_proto) for function in model.functions),
        *(_attribute_tensors(node.attribute) for function in model.functions for node in function.node),
    )
    entries = chain.from_iterable(tensor.external_data for tensor in tensors)
    return frozenset(entry.value for entry in entries if entry.key == "location")


def checked_model(path: Path, weights: str | None) -> Model:
    """Return a model; raises BundleError if it refers to another file than the weight file that the manifest lists."""
    try:
        model = read_model(path)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if unlisted := sorted(external_files(model) - {weights}):
        raise BundleError(str(path), found=unlisted, expected=weights or "none", what="weight file")
    return model


def damaged(path: Path, error: Exception) -> BundleError:
    """Return the error of a graph that cannot be loaded."""
    return BundleError(str(path), found=str(error), expected="a graph that this service can load", what="graph")


def check_unopened(path: Path, tensors: GraphTensors, *, weights: str | None) -> None:
    """Check a model that is not opened; raises BundleError.

    An ONNX Runtime session would check more, but takes several times as long and copies the weights.
    """
    model = checked_model(path, weights)
    if not (model.HasField("graph") and model.opset_import):  # the exporter writes the operator sets last
        raise damaged(path, ValueError("a model without a graph or without operator sets"))
    inputs, outputs = ({value.name for value in values} for values in (model.graph.input, model.graph.output))
    for what, found, expected in (("inputs", inputs, tensors.inputs), ("outputs", outputs, tensors.outputs)):
        if found != expected.keys():
            raise BundleError(str(path), found=sorted(found), expected=sorted(expected), what=what)


def _graph_tensors(graph: Graph) -> Iterator[Tensor]:
    yield from graph.initializer
    yield from _parts(graph.sparse_initializer)
    for node in graph.node:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[Attribute]) -> Iterator[Tensor]:
    for attribute in attributes:
        yield attribute.t
        yield from attribute.tensors
        yield from _parts((attribute.sparse_tensor, *attribute.sparse_tensors))
        for graph in (attribute.g, *attribute.graphs):
            yield from _graph_tensors(graph)


def _parts(tensors: Iterable[SparseTensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)
