"""Reads the weights of a network back from the graphs of a bundle.

These are the weights the bundle computes with: halves as they are, integers times the factor of their row. Rounding or
quantizing them again gives the same numbers, so the network that comes back is served as the bundle is.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from dragoman_export.data.vocabulary import Vocabulary
from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.portable import TokenizerDescription, TokenizerFiles, load_weights
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_export.onnx_export.blocks import EMBEDDING, PROJECTION, SOURCE_EMBEDDING
from dragoman_export.onnx_export.calibration import Rounding
from dragoman_export.onnx_export.int8_weights import int8_scales
from dragoman_export.onnx_export.network import Network, TrainedModel
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, open_bundle
from dragoman_service.bundle.manifest import Tokenization
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer

_FUSED = ".fused."
_QUANTIZED = "int8"
_TABLES = frozenset({EMBEDDING, SOURCE_EMBEDDING, PROJECTION})
"""Matrices that graphs store as rows of tokens, not transposed as those of other products."""


def read_network(bundle: Bundle, precision: str | None = None) -> Network:
    """Return shape and weights of a bundle's network.

    Args:
        bundle: an opened bundle.
        precision: whose graphs are read; None: the bundle's default.

    Raises:
        BundleError: if the bundle lacks the precision.
        ImportFormatError: if a graph lacks a weight or has one that does not fit.
    """
    shape, ids = bundle.manifest.architecture, bundle.manifest.special_ids
    config = ModelConfig(
        **shape.model_dump(),
        pad_id=ids.pad,
        bos_id=ids.bos,
        eos_id=ids.eos,
        unk_id=ids.unk,
    )
    weights: dict[str, FloatArray] = {}
    paths = bundle.graph_paths(precision or bundle.manifest.default_precision)
    for stack, path in zip(("encoder", "decoder"), paths, strict=True):
        stored = _stored(ir.load(path))
        for name, array in _floats(stored).items():
            weights.update(_parts(name, array, config))
        if config.positions == "learned":  # of rows before that of the first token, which nobody reads, none are stored
            unused = np.zeros((config.position_offset, config.d_model), np.float32)
            weights[f"{stack}.positions.weight"] = np.concatenate([unused, stored["position_encodings"]])
    return Network(config=config, weights=weights, roundings=read_roundings(bundle))


def open_model(path: Path) -> tuple[Transformer, SentencePieceTokenizer]:
    """Return the network, in evaluation mode, and the tokenizer of a bundle, or of what `TrainedModel.find` takes.

    Raises:
        BundleError: if a bundle or a tokenizer is damaged.
        ImportFormatError: if weights are not as this exporter or an importer makes them.
        RunFolderError: if there is no model.
    """
    if not (path / MANIFEST_NAME).is_file():
        trained = TrainedModel.find(path)
        return trained.load(), trained.open_tokenizer()
    bundle = open_bundle(path)
    return _load(bundle), open_tokenizer(bundle)


def read_model(path: Path) -> tuple[Transformer, Vocabulary | TokenizerFiles]:
    """Return the same network, and of the tokenizer what another bundle or run needs; raises as `open_model`."""
    if not (path / MANIFEST_NAME).is_file():
        trained = TrainedModel.find(path)
        return trained.load(), trained.read_vocabulary()
    bundle = open_bundle(path)
    tokenization = bundle.manifest.tokenization
    if tokenization == Tokenization():
        return _load(bundle), Vocabulary.load(bundle.tokenizer_path)
    description = TokenizerDescription(model=bundle.tokenizer_path.name, **tokenization.model_dump())
    files = {name: (path / name).read_bytes() for name in (description.model, *description.names())}
    return _load(bundle), TokenizerFiles(description=description, files=files)


def _load(bundle: Bundle) -> Transformer:
    network = read_network(bundle)
    weights = {name: torch.tensor(array) for name, array in network.weights.items()}
    return load_weights(network.config, weights, bundle.directory)


def read_roundings(bundle: Bundle) -> dict[str, Rounding]:
    """Return how a bundle's int8 graphs round what enters products; without those that have a scale a row."""
    if _QUANTIZED not in bundle.manifest.precisions:
        return {}
    return {
        product.removesuffix(".fused"): Rounding(scale=fixed.scale, zero_point=fixed.zero_point)
        for path in bundle.graph_paths(_QUANTIZED)
        for product, fixed in int8_scales(ir.load(path)).items()
        if fixed is not None
    }


def _stored(model: ir.Model) -> dict[str, NDArray[Any]]:
    """Return the arrays of a graph by name."""
    return {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}  # type: ignore[union-attr]


def _floats(stored: Mapping[str, NDArray[Any]]) -> dict[str, FloatArray]:
    """Return weights as PyTorch stores them, [outputs, inputs], and biases, by their names in the graph."""
    floats: dict[str, FloatArray] = {}
    for name, array in stored.items():
        weight, _, kind = name.rpartition(".")
        if kind == "int8":
            factors = stored.get(f"{weight}.factors")
            if factors is None:
                raise ImportFormatError(f"{name} has no {weight}.factors beside it")
            rows = array if weight in _TABLES else array.T
            floats[weight] = rows.astype(np.float32) * factors.reshape(-1, 1).astype(np.float32)
        elif kind in ("weight", "bias"):
            is_transposed = array.ndim == 2 and name not in _TABLES
            floats[name] = np.ascontiguousarray(array.T if is_transposed else array, dtype=np.float32)
    return floats


def _parts(name: str, array: FloatArray, config: ModelConfig) -> Mapping[str, FloatArray]:
    """Return the weights or biases that a graph stores side by side, each under its name in a checkpoint."""
    if _FUSED not in name:
        return {name: array}
    first, _, kind = name.partition(_FUSED)
    path, _, projection = first.rpartition(".")
    key_size = config.key_size
    if projection == "query":
        sizes = {f"{path}.query": config.num_heads * config.head_size, **_sized(path, ("key", "value"), key_size)}
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
