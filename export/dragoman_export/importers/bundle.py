"""Reads the weights of a network back from the graphs of a bundle.

These are the weights after rounding: halves, or integers times the factor of their row. Rounding or quantizing them
again gives the same numbers, so the network translates exactly as the bundle.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman_export.errors import ImportFormatError
from dragoman_export.model.config import ModelConfig
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_export.onnx_export.blocks import EMBEDDING, PROJECTION, SOURCE_EMBEDDING
from dragoman_export.onnx_export.int8_weights import int8_scales
from dragoman_export.onnx_export.network import Network
from dragoman_export.onnx_export.quantize import Rounding
from dragoman_service.bundle.files import Bundle

_FUSED = ".fused."
_QUANTIZED = "int8"
# stored as rows of tokens; other matrices are stored transposed
_TABLES = frozenset({EMBEDDING, SOURCE_EMBEDDING, PROJECTION})


def read_network(bundle: Bundle, precision: str | None = None) -> Network:
    """Return configuration and weights of a bundle's network, by default of its default precision.

    Raises:
        BundleError: if the bundle lacks the precision.
        ImportFormatError: if a weight of a graph is missing or has another shape.
    """
    shape, ids = bundle.manifest.architecture, bundle.manifest.special_ids
    config = ModelConfig(**shape.model_dump(), pad_id=ids.pad, bos_id=ids.bos, eos_id=ids.eos, unk_id=ids.unk)
    weights: dict[str, FloatArray] = {}
    paths = bundle.graph_paths(precision or bundle.manifest.default_precision)
    for stack, path in zip(("encoder", "decoder"), paths, strict=True):
        values = ir.load(path).graph.initializers.items()
        stored = {name: value.const_value.numpy() for name, value in values}  # type: ignore[union-attr]
        for name, array in _floats(stored).items():
            weights.update(_parts(name, array, config))
        if config.positions == "learned":  # rows before the first token are not stored
            unused = np.zeros((config.position_offset, config.d_model), np.float32)
            weights[f"{stack}.positions.weight"] = np.concatenate([unused, stored["position_encodings"]])
    return Network(config=config, weights=weights, roundings=read_roundings(bundle))


def read_roundings(bundle: Bundle) -> dict[str, Rounding]:
    """Return the fixed activation scales of a bundle's int8 graphs; products with a scale per row are omitted."""
    if _QUANTIZED not in bundle.manifest.precisions:
        return {}
    return {
        product.removesuffix(".fused"): Rounding(**fixed.model_dump())
        for path in bundle.graph_paths(_QUANTIZED)
        for product, fixed in int8_scales(ir.load(path)).items()
        if fixed is not None
    }


def _floats(stored: Mapping[str, NDArray[Any]]) -> dict[str, FloatArray]:
    # Weights in PyTorch's layout, [outputs, inputs], and biases, by their names in the graph.
    floats: dict[str, FloatArray] = {}
    for name, array in stored.items():
        weight, _, kind = name.rpartition(".")
        if kind == "int8":
            factors = stored.get(f"{weight}.factors")
            if factors is None:
                raise ImportFormatError(f"{name} has no {weight}.factors")
            rows = array if weight in _TABLES else array.T
            floats[weight] = rows.astype(np.float32) * factors.reshape(-1, 1).astype(np.float32)
        elif kind in ("weight", "bias"):
            is_transposed = array.ndim == 2 and name not in _TABLES
            floats[name] = np.ascontiguousarray(array.T if is_transposed else array, dtype=np.float32)
    return floats


def _parts(name: str, array: FloatArray, config: ModelConfig) -> Mapping[str, FloatArray]:
    # Splits weights or biases that a graph stores side by side, by their names in a checkpoint.
    if _FUSED not in name:
        return {name: array}
    first, _, kind = name.partition(_FUSED)
    path, _, projection = first.rpartition(".")
    key_size = config.key_size
    if projection == "query":
        sizes = {f"{path}.query": config.num_heads * config.head_size, **_sized(path, ("key", "value"), key_size)}
    elif projection == "input":
        sizes = _sized(path, ("input", "forget"), config.d_model)
    elif projection == "inner":
        sizes = _sized(path, ("inner", "gate"), config.ffn_size)
    else:
        layers = (f"decoder.layers.{layer}.cross_attention" for layer in range(config.num_decoder_layers))
        sizes = {part: size for layer in layers for part, size in _sized(layer, ("key", "value"), key_size).items()}
    if len(array) != sum(sizes.values()):
        raise ImportFormatError(f"{name} has {len(array)} rows: expected {sum(sizes.values())}")
    parts = np.split(array, np.cumsum(list(sizes.values()))[:-1])
    return {f"{part}.{kind}": rows for part, rows in zip(sizes, parts, strict=True)}


def _sized(path: str, parts: Sequence[str], size: int) -> dict[str, int]:
    return {f"{path}.{part}": size for part in parts}
