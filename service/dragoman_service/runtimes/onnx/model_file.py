"""Names in an ONNX model, read without ONNX Runtime."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from google.protobuf.message import DecodeError

from dragoman_service.bundle.files import read_file
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
