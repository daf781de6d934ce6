"""Builds graphs with readable node names and writes them as files."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_service.bundle.int8_weights import WEIGHTS_ALIGNMENT_BYTES

# first opset whose `Attention` takes 3-D inputs with padded keys, as ONNX Runtime 1.31 implements it
OPSET_VERSION = 24
IR_VERSION = 13  # highest file format that ONNX Runtime 1.31 reads; `onnx` 1.23 would write a later one
MICROSOFT = "com.microsoft"  # domain of the operators of ONNX Runtime
# smaller arrays stay in the graph: scalars and shapes, some of which ONNX Runtime needs there
_SMALLEST_SHARED_BYTES = 1024


class GraphBuilder:
    """Builds one graph; every method that adds a node returns its value."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tape = ir.tape.Tape()
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._constants: dict[str, ir.Value] = {}
        self._shared: dict[str, ir.Value] = {}
        self._scope: tuple[str, ...] = ()

    @contextmanager
    def scope(self, name: str) -> Iterator[str]:
        """Prefix the names of all nodes added inside with `name`; yield the full path, also a prefix of weights."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield ".".join(self._scope)
        finally:
            self._scope = outer

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> ir.Value:
        """Declare an input; strings name dynamic sizes."""
        value = ir.val(name, ir.DataType.from_numpy(np.dtype(dtype)), ir.Shape(shape))
        self._inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Declare a value as an output with a name."""
        value.name = name
        value.dtype = ir.DataType.from_numpy(np.dtype(dtype))
        value.shape = ir.Shape(shape)
        self._outputs.append(value)

    def constant(self, name: str, array: NDArray[Any]) -> ir.Value:
        """Return the stored array of this name; store it on first use."""
        if name not in self._constants:
            self._constants[name] = self._tape.initializer(ir.tensor(np.ascontiguousarray(array), name=name))
        return self._constants[name]

    def scalar(self, value: float | int, dtype: str = "float32") -> ir.Value:
        """Return a stored scalar."""
        return self.constant(f"{dtype}.{value:.9g}", np.array(value, dtype=dtype))

    def shape(self, *sizes: int) -> ir.Value:
        """Return a stored 1-D int64 tensor: a shape, axes or split sizes."""
        return self.constant("shape." + "x".join(map(str, sizes)), np.array(sizes, dtype=np.int64))

    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        """Append a node with one output and return the output; None stands for an omitted optional input."""
        name = self._node_name(op_type)
        value = self._tape.op(op_type, inputs, attributes, domain=domain, name=name)
        value.name = name
        return value

    def once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        """Return the value that `make` returned on the first call with this name."""
        if name not in self._shared:
            self._shared[name] = make()
        return self._shared[name]

    def split(self, value: ir.Value, *sizes: int) -> Sequence[ir.Value]:
        """Split a value into parts of the given sizes along its last axis."""
        if len(set(sizes)) == 1:
            return self._several("Split", [value], {"axis": -1, "num_outputs": len(sizes)}, len(sizes))
        return self._several("Split", [value, self.shape(*sizes)], {"axis": -1}, len(sizes))

    def largest(self, value: ir.Value, count: ir.Value) -> Sequence[ir.Value]:
        """Return the `count` [1] largest elements of the last axis, descending, and their indices."""
        return self._several("TopK", [value, count], {"axis": -1, "sorted": 1}, 2)

    def build(self) -> ir.Model:
        """Return the model."""
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": OPSET_VERSION, MICROSOFT: 1},
            name=self._name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="dragoman")

    def _several(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: dict[str, Any], num_outputs: int
    ) -> Sequence[ir.Value]:
        name = self._node_name(op_type)
        values = self._tape.op_multi_out(op_type, inputs, attributes, num_outputs=num_outputs, name=name)
        for index, value in enumerate(values):
            value.name = f"{name}.{index}"
        return values

    def _node_name(self, op_type: str) -> str:
        return ".".join((*self._scope, f"{op_type}_{len(self._tape.nodes)}"))


class WeightsFile:
    """The weights of several graphs in one file, each distinct array once.

    The service reads the file once, at load time, and passes its content to ONNX Runtime. Nothing stays mapped, so the
    file may change while the service runs. ONNX Runtime copies only the weights that it packs for its products.
    """

    def __init__(self, path: Path) -> None:
        """Open a file in the folder of the graphs; existing content is kept."""
        self._path = path
        self._offsets: dict[bytes, int] = {}
        path.touch()
        self._num_bytes = path.stat().st_size

    @property
    def name(self) -> str:
        """File name, as graphs refer to it."""
        return self._path.name

    def store(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        """Return a tensor that refers to this file, appending its content unless an equal array exists."""
        content = tensor.tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._offsets:
            self._offsets[digest] = self._append(content)
        return ir.ExternalTensor(
            self.name,
            self._offsets[digest],
            len(content),
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=str(tensor.name),
            base_dir=self._path.parent,
        )

    def _append(self, content: bytes) -> int:
        # Writes at the next aligned offset, and returns it.
        padding = -self._num_bytes % WEIGHTS_ALIGNMENT_BYTES
        with self._path.open("ab") as file:
            file.write(bytes(padding) + content)
        offset = self._num_bytes + padding
        self._num_bytes = offset + len(content)
        return offset


def save_model(model: ir.Model, path: Path, weights: WeightsFile | None = None) -> None:
    """Write a model to a file; larger arrays go to `weights`, if given, and the model refers to them."""
    if weights is not None:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= _SMALLEST_SHARED_BYTES:
                value.const_value = weights.store(tensor)
    ir.save(model, path)
