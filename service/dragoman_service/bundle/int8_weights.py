"""Description of the int8 weights of a network, for runtimes that do not use its graphs: arrays and their offsets."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from dragoman_service.bundle.architecture import PROJECTION_BIAS, Architecture, Limits, Section, Size
from dragoman_service.bundle.manifest import MAX_FILE_BYTES, Manifest
from dragoman_service.errors import BundleError

WEIGHTS_ALIGNMENT_BYTES: Final = 64
"""Arrays in the weights file start at multiples of this size, the cache line and widest vector load of a CPU."""

_EMBEDDING: Final = "embedding"  # target embedding, optionally shared with source embedding and output projection

_TensorName = Annotated[str, Field(max_length=200)]

_FLOAT32_TINY: Final = 2.0**-126  # smallest normal number
_FLOAT32_MAX: Final = (2 - 2.0**-23) * 2.0**127


class StoredTensor(Section):
    """An array in the weights file: elements in C order, little-endian."""

    dtype: Literal["int8", "float32"]
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=2)]
    offset: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES, multiple_of=WEIGHTS_ALIGNMENT_BYTES)]
    """Position in the file, in bytes."""

    @property
    def num_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * (1 if self.dtype == "int8" else 4)


class ActivationScale(Section):
    """Quantization of the input of a product: x / scale + zero_point, rounded half to even, from 0 to `levels`."""

    scale: Annotated[float, Field(ge=_FLOAT32_TINY, le=_FLOAT32_MAX, allow_inf_nan=False)]  # representable as float32
    zero_point: Annotated[int, Field(ge=0, le=255)]
    levels: Literal[127, 255] = 255
    """Largest integer. CPUs without VNNI multiply integers up to 127 faster."""

    @model_validator(mode="after")
    def _check_zero_point(self) -> Self:
        if self.zero_point > self.levels:
            raise ValueError(f"zero_point {self.zero_point} exceeds levels {self.levels}")
        return self


class NetworkWeights(Section):
    """Weight arrays and activation scales of an encoder or decoder whose products are all int8.

    Together with the architecture, they replace the graph.
    """

    tensors: Annotated[dict[_TensorName, StoredTensor], Field(max_length=8192)]
    """Name, as in `encoder_arrays` or `decoder_arrays`, to array."""
    activations: Annotated[dict[_TensorName, ActivationScale | None], Field(max_length=2048)]
    """Product, as in `encoder_products` or `decoder_products`, to the scale of its input. None: each row has its own
    scale, which maps the largest magnitude of the row to the largest integer, with zero point 128. For
    `feed_forward.outer` after a ReLU, it maps the largest value to 255, with zero point 0."""

    def check(self, path: Path, part: Literal["encoder", "decoder"], manifest: Manifest, weights: str) -> None:
        """Raise BundleError, with file and part, if the arrays do not match the manifest and its weights file."""
        arrays, products = (
            (encoder_arrays, encoder_products) if part == "encoder" else (decoder_arrays, decoder_products)
        )
        expected = arrays(manifest.architecture, manifest.limits)
        for what, found, names in (
            (f"{part}.tensors", self.tensors, expected.keys()),
            (f"{part}.activations", self.activations, products(manifest.architecture).keys()),
        ):
            if missing := names - found.keys():
                raise BundleError(str(path), found="missing", expected="a value", what=f"{what}.{min(missing)}")
            if extra := found.keys() - names:
                raise BundleError(
                    str(path), found="an unknown name", expected="only known names", what=f"{what}.{min(extra)}"
                )
        size = manifest.files[weights].bytes
        for name, tensor in self.tensors.items():
            what, kind = f"{part}.tensors.{name}", (tensor.dtype, tensor.shape)
            if kind != expected[name]:
                raise BundleError(str(path), found=kind, expected=expected[name], what=what)
            if tensor.offset + tensor.num_bytes > size:
                place = f"{tensor.num_bytes} bytes from {tensor.offset}"
                raise BundleError(str(path), found=place, expected=f"within the {size} bytes of {weights}", what=what)


class Int8Weights(Section):
    """Int8 weights of a precision, for runtimes that do not use its graphs."""

    decoder: NetworkWeights
    encoder: NetworkWeights | None  # None: not all products of the encoder are int8

    def check(self, path: Path, manifest: Manifest, weights: str) -> None:
        """Raise BundleError, with the file at `path`, if the weights do not match the manifest and its weights file."""
        self.decoder.check(path, "decoder", manifest, weights)
        if self.encoder is not None:
            self.encoder.check(path, "encoder", manifest, weights)


def encoder_products(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Return the matrix products of an encoder: path to number of inputs and outputs.

    Fused into one product each: query, key and value of self-attention; inner projection and gate of SwiGLU; keys and
    values of the cross-attention of all decoder layers, in the order key 0, value 0, key 1, value 1, ...
    """
    products = _layer_products(architecture, "encoder", architecture.num_encoder_layers)
    num_outputs = 2 * architecture.num_decoder_layers * architecture.key_size
    return {**products, "decoder.layers.0.cross_attention.key.fused": (architecture.d_model, num_outputs)}


def decoder_products(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Return the matrix products of a decoder step: path to number of inputs and outputs.

    Query, key and value of self-attention are fused, and so are input and forget gate of an SSRU. The
    output projection has the path of the embedding if they share
    a table, else `projection`.
    """
    products = _layer_products(architecture, "decoder", architecture.num_decoder_layers)
    return {**products, projection_path(architecture): (architecture.d_model, architecture.vocabulary_size)}


def projection_path(architecture: Architecture) -> str:
    """Return the path of the output projection: that of the embedding if they share a table."""
    return "projection" if architecture.tied_embeddings == "none" else _EMBEDDING


def _layer_products(architecture: Architecture, stack: str, num_layers: int) -> dict[str, tuple[int, int]]:
    width, hidden = architecture.d_model, architecture.ffn_size
    query_size = architecture.num_heads * architecture.head_size
    inner_suffix, num_inner = (".fused", 2 * hidden) if architecture.activation == "swiglu" else ("", hidden)
    cross = {"cross_attention.query": (width, query_size), "cross_attention.output": (query_size, width)}
    first = {
        "self_attention.query.fused": (width, query_size + 2 * architecture.key_size),
        "self_attention.output": (query_size, width),
    }
    if stack == "decoder" and architecture.decoder_type == "ssru":
        first = {"recurrence.input.fused": (width, 2 * width)}
    parts = {
        **first,
        **(cross if stack == "decoder" else {}),
        f"feed_forward.inner{inner_suffix}": (width, num_inner),
        "feed_forward.outer": (hidden, width),
    }
    return {f"{stack}.layers.{layer}.{part}": sizes for layer in range(num_layers) for part, sizes in parts.items()}


def encoder_arrays(architecture: Architecture, limits: Limits) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the arrays of an encoder whose products are all int8: name to element type and shape.

    The format is the same as in `decoder_arrays`; `position_encodings` is [S, d_model]. A separate source embedding is
    stored as `encoder.embedding.weight.int8` and `.factors`.
    """
    kinds = ("self_attention_norm", "feed_forward_norm")
    norms = _norms(architecture, "encoder", architecture.num_encoder_layers, kinds)
    table = _EMBEDDING if architecture.tied_embeddings == "all" else f"encoder.{_EMBEDDING}"
    return _arrays(
        architecture,
        encoder_products(architecture),
        norms,
        limits.max_source_tokens,
        {table: architecture.num_source_tokens},
    )


def decoder_arrays(architecture: Architecture, limits: Limits) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the arrays of a decoder step whose products are all int8: name to element type and shape.

    Each product except the output projection has `<path>.weight.int8` [inputs, outputs], `<path>.weight.factors`
    [outputs], which multiply the integer sums, and `<path>.bias` [outputs]. The embedding, which may also be the output
    projection, is stored by rows: `embedding.weight.int8` [V, d_model] and `embedding.weight.factors` [V, 1]. A
    separate `projection.weight` has the same format; `projection.bias` is [V]. `position_encodings` is [T, d_model],
    or [max_positions, d_model] if they are learned. Norms have `weight` and, except RMS norms, `bias`.
    """
    first = "recurrence_norm" if architecture.decoder_type == "ssru" else "self_attention_norm"
    kinds = (first, "cross_attention_norm", "feed_forward_norm")
    norms = _norms(architecture, "decoder", architecture.num_decoder_layers, kinds)
    tables = dict.fromkeys((_EMBEDDING, projection_path(architecture)), architecture.vocabulary_size)
    arrays = _arrays(architecture, decoder_products(architecture), norms, limits.max_target_tokens, tables)
    if architecture.projection_bias:
        arrays[PROJECTION_BIAS] = ("float32", (architecture.vocabulary_size,))
    return arrays


def _norms(architecture: Architecture, stack: str, num_layers: int, kinds: Sequence[str]) -> list[str]:
    norms = [f"{stack}.layers.{layer}.{kind}" for layer in range(num_layers) for kind in kinds]
    outside_layers = (("norm", architecture.has_final_norm), ("embedding_norm", architecture.embedding_norm))
    return [*norms, *(f"{stack}.{name}" for name, exists in outside_layers if exists)]


def _arrays(
    architecture: Architecture,
    products: Mapping[str, tuple[int, int]],
    norms: Sequence[str],
    num_positions: int,
    tables: Mapping[str, int],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    # Returns all arrays except the bias of the logits. `tables`: path of embedding or projection to number of rows.
    width = architecture.d_model
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    if architecture.positions in ("sinusoidal", "learned"):
        arrays["position_encodings"] = ("float32", (architecture.max_positions or num_positions, width))
    if architecture.positions == "rotary":
        arrays["rotary_positions"] = ("float32", (num_positions, architecture.head_size))
    for path, num_rows in tables.items():
        arrays[f"{path}.weight.int8"] = ("int8", (num_rows, width))
        arrays[f"{path}.weight.factors"] = ("float32", (num_rows, 1))
    for path, (inputs, outputs) in products.items():
        if path not in tables:
            arrays[f"{path}.weight.int8"] = ("int8", (inputs, outputs))
            arrays.update(dict.fromkeys((f"{path}.weight.factors", f"{path}.bias"), ("float32", (outputs,))))
    parts = ("weight", "bias") if architecture.norm_kind == "layer" else ("weight",)
    for path in norms:
        arrays.update(dict.fromkeys((f"{path}.{part}" for part in parts), ("float32", (width,))))
    return arrays
