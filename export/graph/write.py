"""Collects the nodes of a graph under readable names and writes it as a file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

OPSET_VERSION = 24
"""First opset whose `Attention` takes 3-D inputs with padded keys, as ONNX Runtime 1.31 implements it."""

IR_VERSION = 13
"""Highest file format ONNX Runtime 1.31 reads; `onnx` 1.23 would write a later one."""

MICROSOFT = "com.microsoft"
"""Domain of the operators that only ONNX Runtime has."""


class GraphBuilder:
    """One graph while it is being built.

    Every method that makes a node returns its value; names say which part of the network a value belongs to.
    """

    def __init__(self, name: str) -> None:
        """Begin an empty graph."""
        self._name = name
        self._tape = ir.tape.Tape()
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._constants: dict[str, ir.Value] = {}
        self._scope: tuple[str, ...] = ()

    @contextmanager
    def scope(self, name: str) -> Iterator[str]:
        """Put `name` before the names of all nodes made inside; yields the full path, which prefixes weight names."""
        outer = self._scope
        self._scope = (*outer, name)
        try:
            yield ".".join(self._scope)
        finally:
            self._scope = outer

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> ir.Value:
        """Declare an input; strings are names of dynamic sizes."""
        value = ir.val(name, ir.DataType.from_numpy(np.dtype(dtype)), ir.Shape(shape))
        self._inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Declare a value to be an output under a name."""
        value.name = name
        value.dtype = ir.DataType.from_numpy(np.dtype(dtype))
        value.shape = ir.Shape(shape)
        self._outputs.append(value)

    def constant(self, name: str, array: NDArray[Any]) -> ir.Value:
        """Return the stored array of this name, storing it the first time it is asked for."""
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
        """Append a node with one output and return that; None stands for an optional input left out."""
        name = self._node_name(op_type)
        value = self._tape.op(op_type, inputs, attributes, domain=domain, name=name)
        value.name = name
        return value

    def split(self, value: ir.Value, parts: int) -> Sequence[ir.Value]:
        """Cut a value into equal parts along its last axis."""
        return self._several("Split", [value], {"axis": -1, "num_outputs": parts}, parts)

    def largest(self, value: ir.Value, count: ir.Value) -> Sequence[ir.Value]:
        """Return the `count` [1] largest elements of the last axis, descending, and their indices."""
        return self._several("TopK", [value, count], {"axis": -1, "sorted": 1}, 2)

    def build(self) -> ir.Model:
        """Return the model of all that was added."""
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


def save_model(model: ir.Model, path: Path) -> None:
    """Write a model with its weights as one file."""
    ir.save(model, path)
