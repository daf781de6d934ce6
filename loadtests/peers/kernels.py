"""`kernels`: one step of a decoder layer's self-attention by each way that ONNX Runtime has for it, checked and timed.

A step of B segments with K hypotheses, each of which continues one of the step before and adds a token. The ways differ
in where keys and values lie, and in what it takes that a hypothesis continues another:

  slot-pool     as this system does it: the hypotheses of a segment share slots, a mask says which each sees
  past          MultiHeadAttention: a cache for each hypothesis, copied in the new order, and once more to append
  indirection   DecoderMaskedMultiHeadAttention: a cache for each, in place; a table says whose token is where
  group-query   GroupQueryAttention: a cache for each, copied in the new order
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from dragoman_export.onnx_export.write import IR_VERSION, MICROSOFT, OPSET_VERSION
from dragoman_service.runtimes.onnx.session import check_device, providers, session_options
from dragoman_service.runtimes.onnx_cuda.cache_graphs import HIDDEN
from dragoman_service.runtimes.settings import RuntimeSettings
from loadtests.flags import within
from loadtests.peers.systems import GPU_PRECISIONS, Device
from loadtests.report import figures_line

_NUM_RUNS: Final = 30
_NUM_WARM_UP_RUNS: Final = 3
_TOLERANCES: Final = {"float32": 1e-4, "float16": 2e-2}
_VECTOR_BYTES: Final = 16
"""The CUDA kernel with indirection reads keys in vectors of so many bytes, and has the tokens between them."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a step; the defaults are a layer of Transformer-base in the middle of a sentence."""

    num_segments: int
    num_rows: int = 4
    num_tokens: int = 31
    """That each hypothesis has had."""
    num_heads: int = 8
    head_size: int = 64

    @property
    def width(self) -> int:
        """H * D."""
        return self.num_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step is given, and what it must give."""

    sizes: Sizes
    query: Array
    """[B, K, H * D]; so are the new keys and values."""
    key: Array
    value: Array
    keys: Array
    """[B, K, T, H, D] of the hypotheses of the step before; so are their values."""
    values: Array
    parents: Array
    """[B, K] the hypothesis that each continues."""

    def expected(self) -> Array:
        """Return softmax(q k / sqrt(D)) v of each hypothesis, in double precision [B, K, H * D]."""
        shape = (*self.query.shape[:2], self.sizes.num_heads, self.sizes.head_size)
        index = self.parents[:, :, None, None, None]
        query, key, value = (one.reshape(shape).astype(np.float64) for one in (self.query, self.key, self.value))
        keys, values = (np.take_along_axis(one, index, axis=1).astype(np.float64) for one in (self.keys, self.values))
        keys, values = (np.concatenate([a, b[:, :, None]], axis=2) for a, b in ((keys, key), (values, value)))
        scores = np.einsum("bkhd,bkthd->bkht", query, keys) / np.sqrt(self.sizes.head_size)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        expected: Array = np.einsum("bkht,bkthd->bkhd", weights, values).reshape(self.query.shape)
        return expected


def make_step(sizes: Sizes, float_type: str, *, seed: int = 7) -> Step:
    """Return a step with values at random."""
    rng = np.random.default_rng(seed)
    rows = (sizes.num_segments, sizes.num_rows)

    def draw(*shape: int) -> Array:
        return rng.standard_normal((*rows, *shape)).astype(float_type)

    cached = (sizes.num_tokens, sizes.num_heads, sizes.head_size)
    new, old = (draw(sizes.width) for _ in range(3)), (draw(*cached) for _ in range(2))
    (query, key, value), (keys, values) = new, old
    parents = rng.integers(sizes.num_rows, size=rows)
    return Step(sizes=sizes, query=query, key=key, value=value, keys=keys, values=values, parents=parents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A graph of the step, what it gets, and where its caches are."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, tuple[int, ...]]
    """Their shapes; the first is what comes of the step."""
    in_place: Mapping[str, str] = field(default_factory=dict)
    """Outputs that are written over an input."""
    on_host: frozenset[str] = frozenset()
    """Inputs that kernels read on the host."""


def slot_pool(step: Step, device: Device) -> Layer:  # noqa: ARG001
    """Return the layer as `onnx_export.decoder` has it; token t of hypothesis k lies in slot t * K + k."""
    sizes = step.sizes
    count, rows, tokens = sizes.num_segments, sizes.num_rows, sizes.num_tokens
    slots = (tokens + 1) * rows
    mask = np.full((count, 1, rows, slots), HIDDEN, step.query.dtype)
    for row in range(rows):
        for before in range(tokens):
            np.put_along_axis(mask[:, 0, row], step.parents[:, [row]] + before * rows, 0, axis=1)
        mask[:, 0, row, tokens * rows + row] = 0
    places = np.empty((count, rows, 2), np.int64)
    places[..., 0], places[..., 1] = np.arange(count)[:, None], tokens * rows + np.arange(rows)

    def pool(cached: Array) -> Array:
        filled = np.zeros((count, slots, sizes.width), cached.dtype)
        filled[:, : tokens * rows] = cached.transpose(0, 2, 1, 3, 4).reshape(count, tokens * rows, sizes.width)
        return filled

    heads: dict[str, Any] = {"q_num_heads": sizes.num_heads, "kv_num_heads": sizes.num_heads}
    return Layer(
        nodes=[
            helper.make_node("ScatterND", ["keys", "places", "key"], ["keys.written"]),
            helper.make_node("ScatterND", ["values", "places", "value"], ["values.written"]),
            helper.make_node("Attention", ["query", "keys.written", "values.written", "mask"], ["output"], **heads),
        ],
        inputs={**_new(step), "keys": pool(step.keys), "values": pool(step.values), "places": places, "mask": mask},
        outputs={
            "output": step.query.shape,
            **dict.fromkeys(("keys.written", "values.written"), (count, slots, sizes.width)),
        },
        in_place={"keys.written": "keys", "values.written": "values"},
    )


def past(step: Step, device: Device) -> Layer:  # noqa: ARG001
    """Return the layer with a cache for each hypothesis [B * K, H, T, D], put in order and then appended to."""
    sizes = step.sizes
    present = (sizes.num_segments * sizes.num_rows, sizes.num_heads, sizes.num_tokens + 1, sizes.head_size)
    attended = ["query", "key", "value", "", "", "", "ordered_keys", "ordered_values"]
    outputs = ["output", "present_keys", "present_values"]
    return Layer(
        nodes=[
            *_reordering(),
            helper.make_node("MultiHeadAttention", attended, outputs, domain=MICROSOFT, num_heads=sizes.num_heads),
        ],
        inputs={**_new(step, is_flat=True), **_caches(step, length=sizes.num_tokens), "rows": _rows(step)},
        outputs={"output": _flat(step.query).shape, "present_keys": present, "present_values": present},
    )


def indirection(step: Step, device: Device) -> Layer:
    """Return the layer with a cache for each hypothesis, written in place and read by a table [B, K, T + 1]."""
    sizes = step.sizes
    table = np.repeat(step.parents[:, :, None], sizes.num_tokens + 1, axis=2).astype(np.int32)
    table[:, :, -1] = np.arange(sizes.num_rows)
    caches = _caches(step, length=sizes.num_tokens + 1)
    if device == "cuda":
        caches["keys"] = _in_vectors(caches["keys"])
    attended = ["query", "key", "value", "", "", "keys", "values", "past_length", "beam_width", "table"]
    flags: dict[str, Any] = {"num_heads": sizes.num_heads, "past_present_share_buffer": 1}
    outputs = ["output", "keys.written", "values.written"]
    return Layer(
        nodes=[helper.make_node("DecoderMaskedMultiHeadAttention", attended, outputs, domain=MICROSOFT, **flags)],
        inputs={
            **_new(step, is_flat=True),
            **caches,
            "past_length": np.array([sizes.num_tokens], np.int32),
            "beam_width": np.array([sizes.num_rows], np.int32),
            "table": table,
        },
        outputs={"output": _flat(step.query).shape, **dict.fromkeys(outputs[1:], caches["values"].shape)},
        in_place={"keys.written": "keys", "values.written": "values"},
        on_host=frozenset({"past_length", "beam_width"}),
    )


def group_query(step: Step, device: Device) -> Layer:  # noqa: ARG001
    """Return the layer with a cache for each hypothesis, put in order; every query head has its own keys."""
    sizes = step.sizes
    attended = ["query", "key", "value", "ordered_keys", "ordered_values", "last", "total"]
    heads: dict[str, Any] = {"num_heads": sizes.num_heads, "kv_num_heads": sizes.num_heads}
    outputs = ["output", "present_keys", "present_values"]
    caches = _caches(step, length=sizes.num_tokens + 1)
    return Layer(
        nodes=[
            *_reordering(),
            helper.make_node("GroupQueryAttention", attended, outputs, domain=MICROSOFT, **heads),
        ],
        inputs={
            **_new(step, is_flat=True),
            **caches,
            "rows": _rows(step),
            "last": np.full(len(_rows(step)), sizes.num_tokens, np.int32),
            "total": np.array(sizes.num_tokens + 1, np.int32),
        },
        outputs={"output": _flat(step.query).shape, **dict.fromkeys(outputs[1:], caches["keys"].shape)},
        on_host=frozenset({"total"}),
    )


LAYERS: Final[Mapping[str, Callable[[Step, Device], Layer]]] = {
    "slot-pool": slot_pool,
    "past": past,
    "indirection": indirection,
    "group-query": group_query,
}
"""By name."""


def _new(step: Step, *, is_flat: bool = False) -> dict[str, Array]:
    new = {"query": step.query, "key": step.key, "value": step.value}
    return {name: _flat(array) if is_flat else array for name, array in new.items()}


def _flat(array: Array) -> Array:
    """Return each hypothesis as a segment of its own: [B, K, X] as [B * K, 1, X]."""
    return array.reshape(-1, 1, array.shape[-1])


def _rows(step: Step) -> Array:
    """Return which of all B * K hypotheses each continues."""
    first = step.sizes.num_rows * np.arange(step.sizes.num_segments)
    return (step.parents + first[:, None]).reshape(-1).astype(np.int64)


def _caches(step: Step, *, length: int) -> dict[str, Array]:
    """Return keys and values [B * K, H, length, D], zeros behind the tokens."""
    sizes, found = step.sizes, dict[str, Array]()
    for name, cached in (("keys", step.keys), ("values", step.values)):
        found[name] = np.zeros((len(_rows(step)), sizes.num_heads, length, sizes.head_size), cached.dtype)
        found[name][:, :, : sizes.num_tokens] = cached.transpose(0, 1, 3, 2, 4).reshape(
            -1, sizes.num_heads, sizes.num_tokens, sizes.head_size
        )
    return found


def _reordering() -> list[onnx.NodeProto]:
    return [helper.make_node("Gather", [name, "rows"], [f"ordered_{name}"]) for name in ("keys", "values")]


def _in_vectors(keys: Array) -> Array:
    """Return keys [R, H, T, D] with the memory of [R, H, D / x, T, x], x elements to a vector."""
    rows, heads, length, size = keys.shape
    width = _VECTOR_BYTES // keys.itemsize
    parts = keys.reshape(rows, heads, length, size // width, width).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(parts).reshape(keys.shape)


class LayerRun:
    """A layer on a device, with all that it reads and writes there."""

    def __init__(self, layer: Layer, device: Device) -> None:
        """Open the graph and copy the inputs; raises as ONNX Runtime if it has no kernel on the device."""
        settings = RuntimeSettings()
        options = session_options(settings)
        if device == "cuda":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        names = providers(device, settings)[:1]
        self._session = onnxruntime.InferenceSession(_model(layer).SerializeToString(), options, names)
        self._session.disable_fallback()
        check_device(device, self._session.get_providers())
        self._binding = self._session.io_binding()
        put = onnxruntime.OrtValue.ortvalue_from_numpy
        values = {
            name: put(np.ascontiguousarray(array), "cpu" if name in layer.on_host else device, 0)
            for name, array in layer.inputs.items()
        }
        for name, value in values.items():
            self._binding.bind_ortvalue_input(name, value)
        made = {name: np.zeros(shape, layer.inputs["query"].dtype) for name, shape in layer.outputs.items()}
        values |= {name: put(array, device, 0) for name, array in made.items() if name not in layer.in_place}
        for name in layer.outputs:
            self._binding.bind_ortvalue_output(name, values[layer.in_place.get(name, name)])
        self._output = values[next(iter(layer.outputs))]
        self._arrays = made, layer  # on the CPU they are the memory

    def run(self) -> Array:
        """Take the step, and return what comes of it; the same whenever it is taken."""
        self._session.run_with_iobinding(self._binding)
        output: Array = self._output.numpy()
        return output

    def time_s(self) -> float:
        """Return the median time of a step."""
        times_s = list[float]()
        for _ in range(_NUM_WARM_UP_RUNS + _NUM_RUNS):
            began_s = time.perf_counter()
            self._session.run_with_iobinding(self._binding)
            times_s.append(time.perf_counter() - began_s)
        return median(times_s[_NUM_WARM_UP_RUNS:])


def _model(layer: Layer) -> onnx.ModelProto:
    def declare(name: str, array: Array, shape: Sequence[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

    query = layer.inputs["query"]
    inputs = [declare(name, array, array.shape) for name, array in layer.inputs.items()]
    outputs = [declare(name, query, shape) for name, shape in layer.outputs.items()]
    opsets = [helper.make_opsetid("", OPSET_VERSION), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph(layer.nodes, "layer", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def measure(name: str, sizes: Sizes, device: Device) -> dict[str, str]:
    """Return the figures of a way to attend: its time, and how far it is from the formula; or why it cannot be run."""
    float_type = {"fp16": "float16", "fp32": "float32"}[GPU_PRECISIONS[device]]
    step = make_step(sizes, float_type)
    told = {"device": device, "type": float_type, "way": name, "batch": str(sizes.num_segments)}
    try:
        layer = LayerRun(LAYERS[name](step, device), device)
        error = np.abs(layer.run().reshape(step.query.shape) - step.expected()).max()
        elapsed_s = layer.time_s()
    except Exception as fault:  # noqa: BLE001 (ONNX Runtime's exception classes have no common base)
        return {**told, "state": "cannot", "reason": " ".join(str(fault).split())}
    state = "ok" if error <= _TOLERANCES[float_type] else "WRONG"
    return {**told, "state": state, "error": f"{error:.1e}", "layer_ms": f"{1000 * elapsed_s:.3f}"}


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the command and its flags."""
    parser = add_command("kernels", help="compare the kernels for self-attention", description=__doc__)
    parser.add_argument("--gpu", choices=tuple(GPU_PRECISIONS), default="cuda", help="cpu: in fp32 on the CPU (cuda)")
    read = lambda text: [within(1, 1024, int)(size) for size in text.split(",")]  # noqa: E731
    sizes = "segments of a step (1,8,32,128)"
    parser.add_argument("--batch-sizes", type=read, default=[1, 8, 32, 128], metavar="B,B", help=sizes)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    found = [
        measure(name, Sizes(num_segments=size), arguments.gpu) for size in arguments.batch_sizes for name in LAYERS
    ]
    for figures in found:
        print(figures_line("kernel", figures), flush=True)
    return int(any(figures["state"] == "WRONG" for figures in found))
