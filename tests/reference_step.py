"""The int8 decoder step in NumPy, random decoders, and batches of the C++ library without a bundle."""

import math
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Literal

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from dragoman_service.bundle.architecture import Architecture, Limits
from dragoman_service.bundle.int8_weights import ActivationScale, decoder_arrays, decoder_products, projection_path
from dragoman_service.runtimes.native.library import (
    BackendUnsupportedError,
    Library,
    NativeNetwork,
    NetworkArrays,
    load_library,
    pointer,
)

INSTRUCTION_SETS: Final = (
    ("i8mm", "dotprod", "neon") if platform.machine() == "aarch64" else ("amx", "avx512", "avxvnni", "avx512bw", "avx2")
)
"""Instruction sets of the library on this architecture."""

MAX_POSITIONS: Final = 80
CLOSE: Final = 2e-5  # tolerance of log-probabilities: the library sums in 32 bits, the reference in 64 bits
# tolerance of log-probabilities after a value that may be rounded up or down, which changes all later values
ROUNDED_APART: Final = 0.3
# distance from the middle of two integers, absolute and relative, within which 32-bit sums may round differently
_UNSURE_STEPS: Final = 2e-5

_erf = np.vectorize(math.erf)

Array = NDArray[Any]


@cache
def native_library() -> Library | str:
    """Return the library, or the cause if it is not available; required in CI if a compiler is installed."""
    try:
        return load_library()
    except BackendUnsupportedError as error:
        reason = str(error)
    can_build = platform.machine() in ("x86_64", "aarch64") and shutil.which("g++")
    assert not (os.environ.get("CI") and can_build), f"CI must have dragoman-native: {reason}"
    return reason


def library_or_skip() -> Library:
    """Return the library; skips the test if it is not available."""
    if isinstance(found := native_library(), str):
        pytest.skip(found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder of random weights."""

    architecture: Architecture
    tensors: Mapping[str, Array]
    activations: Mapping[str, ActivationScale | None]

    @classmethod
    def drawn(
        cls,
        generator: Generator,
        *,
        head_size: int = 8,
        num_heads: int = 2,
        ffn_size: int = 20,
        num_layers: int = 2,
        vocabulary_size: int = 70,
        is_pre_norm: bool = True,
        has_fixed_scales: bool = True,
        levels: Literal[127, 255] = 255,
        **variant: Any,
    ) -> "Decoder":
        """Draw weights for states and logits of about 1; every fifth token duplicates the previous one.

        With 127 levels, the sums of all columns but every tenth one fit into 16 bits.
        """
        architecture = Architecture(
            vocabulary_size=vocabulary_size,
            d_model=head_size * num_heads,
            num_heads=num_heads,
            ffn_size=ffn_size,
            num_encoder_layers=1,
            num_decoder_layers=num_layers,
            norm="pre" if is_pre_norm else "post",
            **variant,
        )
        limits = Limits(max_source_tokens=MAX_POSITIONS, max_target_tokens=MAX_POSITIONS)
        tensors = {
            name: _tensor(generator, name, dtype, shape, architecture.d_model)
            for name, (dtype, shape) in decoder_arrays(architecture, limits).items()
        }
        for name, tensor in tensors.items() if levels == 127 else ():
            if name.endswith(".int8"):
                by_output = tensor if name.startswith(("embedding", "projection")) else tensor.T
                by_output[np.arange(len(by_output)) % 10 > 0] //= 2
        for name in ("embedding.weight.int8", "embedding.weight.factors"):
            tensors[name][1::5] = tensors[name][0::5][: len(tensors[name][1::5])]
        activations = {
            path: _activation(generator, path, architecture, levels) if has_fixed_scales else None
            for path in decoder_products(architecture)
        }
        return cls(architecture=architecture, tensors=tensors, activations=activations)

    def cross(self, generator: Generator, source_length: int) -> Array:
        """Draw a random encoder output for a source: [2 L, H, S, D]."""
        shape = self.architecture
        size = (2 * shape.num_decoder_layers, shape.num_heads, source_length, shape.d_model // shape.num_heads)
        return generator.normal(size=size).astype(np.float32)

    def packed(self, library: Library, instruction_set: str | None = None) -> NativeNetwork:
        """Return the weights, packed by the library."""
        arrays = NetworkArrays(self.tensors, self.activations)
        return NativeNetwork(library, self.architecture, arrays, instruction_set=instruction_set)


def _tensor(generator: Generator, name: str, dtype: str, shape: tuple[int, ...], width: int) -> Array:
    if dtype == "int8":
        least = generator.choice([-127, -128])  # the exporter writes no -128; others may
        return generator.integers(least, 128, shape, dtype=np.int8)
    part = name.rpartition(".")[2]
    drawn = generator.normal(size=shape)
    if part == "factors":
        inputs = 4 * width if name.endswith("outer.weight.factors") else width
        drawn = (1 + 0.2 * drawn) / (73 * np.sqrt(inputs))
        drawn[generator.integers(len(drawn))] = generator.choice([0.0, 1e-40, -1e-3])
    elif part == "weight":  # of a norm
        drawn = 1 + 0.3 * drawn
    elif part == "bias":
        drawn *= 0.3
    return drawn.astype(np.float32)


def _activation(
    generator: Generator, path: str, architecture: Architecture, levels: Literal[127, 255]
) -> ActivationScale:
    is_rectified = path.endswith("outer") and architecture.activation == "relu"
    zero_point = int(generator.integers(0, 40)) if is_rectified else int(generator.integers(100, 156))
    scale = generator.uniform(0.02, 0.05)
    if levels == 127:
        zero_point, scale = zero_point // 2, scale * 2
    return ActivationScale(scale=float(np.float32(scale)), zero_point=zero_point, levels=levels)


@dataclass(slots=True)
class _Segment:
    cross: Array
    position: int = 0
    rows: list[list[Array]] = field(default_factory=list)  # keys and values of each row and layer, [2, H, T, D]
    is_sure: bool = True


class ReferenceBatch:
    """A running batch in 64 bits; each row is computed separately and has its own cache."""

    def __init__(self, decoder: Decoder) -> None:
        shape = decoder.architecture
        self._decoder, self._heads = decoder, (shape.num_heads, shape.d_model // shape.num_heads)
        self._segments: list[_Segment] = []
        self._is_sure = True

    def add(self, cross: Array) -> None:
        """Append a segment."""
        self._segments.append(_Segment(cross.astype(np.float64)))

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the segments at these indices, in this order."""
        self._segments = [self._segments[index] for index in indices]

    def step(self, token_ids: ArrayLike, parents: ArrayLike) -> tuple[Array, Array]:
        """Return log-probabilities [B, K, V], and for each segment whether the rounding of all values is certain."""
        log_probs = np.array(
            [self._step(*each) for each in zip(self._segments, np.array(token_ids), np.array(parents), strict=True)]
        )
        return log_probs, np.array([segment.is_sure for segment in self._segments])

    def _step(self, segment: _Segment, token_ids: Array, parents: Array) -> Array:
        before = segment.rows
        layers = self._decoder.architecture.num_decoder_layers
        self._is_sure = segment.is_sure
        segment.rows = [list(before[p]) if segment.position else [np.array([])] * layers for p in parents]
        logits = [self._row(segment, row, token) for row, token in zip(segment.rows, token_ids, strict=True)]
        segment.position += 1
        segment.is_sure = self._is_sure
        return np.array([each - np.logaddexp.reduce(each) for each in logits])

    def _row(self, segment: _Segment, caches: list[Array], token: int) -> Array:
        decoder = self._decoder
        shape, tensors = decoder.architecture, decoder.tensors
        is_pre = shape.norm == "pre"
        embedding = tensors["embedding.weight.int8"][token].astype(np.float64)
        embedding *= tensors["embedding.weight.factors"][token] * np.sqrt(
            shape.d_model if shape.scale_embeddings else 1
        )
        x = embedding + tensors["position_encodings"][segment.position]
        x = self._norm(x, "decoder.embedding_norm") if shape.embedding_norm else x
        for layer in range(shape.num_decoder_layers):
            path = f"decoder.layers.{layer}"
            for name, function in (
                ("self_attention", partial(self._attend_self, caches, layer)),
                ("cross_attention", partial(self._attend_cross, segment.cross[2 * layer : 2 * layer + 2])),
                ("feed_forward", self._feed_forward),
            ):
                entering = self._norm(x, f"{path}.{name}_norm") if is_pre else x
                x = x + function(f"{path}.{name}", entering)
                x = x if is_pre else self._norm(x, f"{path}.{name}_norm")
        path = projection_path(shape)
        rounded = self._rounded(self._norm(x, "decoder.norm") if is_pre else x, path, is_rectified=False)
        factors = tensors[f"{path}.weight.factors"][:, 0].astype(np.float64)
        logits: Array = (tensors[f"{path}.weight.int8"] @ rounded) * factors
        return logits + tensors.get("projection.bias", 0)

    def _attend_self(self, caches: list[Array], layer: int, path: str, x: Array) -> Array:
        query, *new = self._product(x, f"{path}.query.fused").reshape(3, *self._heads)
        before = caches[layer].reshape(2, self._heads[0], -1, self._heads[1])
        caches[layer] = np.concatenate([before, np.array(new)[:, :, None]], axis=2)
        return self._product(_attend(query, *caches[layer]), f"{path}.output")

    def _attend_cross(self, cross: Array, path: str, x: Array) -> Array:
        query = self._product(x, f"{path}.query").reshape(self._heads)
        return self._product(_attend(query, *cross), f"{path}.output")

    def _feed_forward(self, path: str, x: Array) -> Array:
        activation = self._decoder.architecture.activation
        if activation == "swiglu":
            linear, gate = np.split(self._product(x, f"{path}.inner.fused"), 2)
            return self._product(linear * gate / (1 + np.exp(-gate)), f"{path}.outer")
        inner = self._product(x, f"{path}.inner")
        if activation == "relu":
            return self._product(np.maximum(inner, 0), f"{path}.outer", is_rectified=True)
        share = 1 / (1 + np.exp(-inner)) if activation == "swish" else (1 + _erf(inner / np.sqrt(2))) / 2
        return self._product(inner * share, f"{path}.outer")

    def _norm(self, x: Array, path: str) -> Array:
        weight, bias = self._decoder.tensors[f"{path}.weight"], self._decoder.tensors.get(f"{path}.bias", 0)
        x = x - x.mean() if self._decoder.architecture.norm_kind == "layer" else x
        normed: Array = x / np.sqrt(np.square(x).mean() + self._decoder.architecture.norm_epsilon) * weight + bias
        return normed

    def _product(self, x: Array, path: str, *, is_rectified: bool = False) -> Array:
        tensors = self._decoder.tensors
        rounded = self._rounded(x, path, is_rectified=is_rectified)
        sums = rounded @ tensors[f"{path}.weight.int8"]
        return sums * tensors[f"{path}.weight.factors"].astype(np.float64) + tensors[f"{path}.bias"]

    def _rounded(self, x: Array, path: str, *, is_rectified: bool) -> Array:
        given, levels = self._decoder.activations[path], 255
        if given is not None:
            scale, zero_point, levels = given.scale, given.zero_point, given.levels
        elif is_rectified:
            scale, zero_point = x.max() / 255, 0
        else:
            scale, zero_point = np.abs(x).max() / 127, 128
        steps = x / scale if scale > 0 else np.zeros_like(x)
        is_inside = (steps > -zero_point - 1) & (steps < levels + 1 - zero_point)
        to_middle = np.abs(steps - np.floor(steps) - 0.5)
        self._is_sure &= not (is_inside & (to_middle < _UNSURE_STEPS * (1 + np.abs(steps) / 10))).any()
        return np.clip(np.rint(steps), -zero_point, levels - zero_point) * scale


def _attend(query: Array, keys: Array, values: Array) -> Array:
    scores = np.einsum("hd,htd->ht", query, keys) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    mixed: Array = np.einsum("ht,htd->hd", weights / weights.sum(axis=1, keepdims=True), values)
    return mixed.reshape(-1)


class LibraryBatch:
    """A running batch of the library, driven through its C functions."""

    def __init__(self, decoder: NativeNetwork, crosses: Sequence[Array] = (), *, num_threads: int = 1) -> None:
        self._library, self._call = decoder.library, decoder.library.call
        self.handle = decoder.library.new("batch", decoder.handle)
        self.num_threads = num_threads
        self.num_segments = 0
        for cross in crosses:
            self.add(cross)

    def __enter__(self) -> "LibraryBatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._library.function("batch_free")(self.handle)

    def add(self, cross: Array, shortlist: ArrayLike = ()) -> None:
        """Append a segment; its candidates are the tokens of the shortlist, if given."""
        listed = np.array(shortlist, np.int32)
        tokens = pointer(listed), len(listed)
        self._call("batch_add", self.handle, cross.shape[2], pointer(cross), cross.size, True, *tokens)
        self.num_segments += 1

    def keep(self, indices: Sequence[int]) -> None:
        """Keep the segments at these indices, in this order."""
        kept = np.array(indices, np.int64)
        self._call("batch_keep", self.handle, pointer(kept), len(kept))
        self.num_segments = len(indices)

    def step(
        self, token_ids: ArrayLike, parents: ArrayLike, num_candidates: int, of_rows: Array | None = None
    ) -> tuple[Array, Array]:
        """Return log-probabilities and tokens of candidates [B, K, C]; `of_rows` [B, K] limits their number."""
        ids, rows = np.array(token_ids, np.int64), np.array(parents, np.int64)
        shape = (*ids.shape, num_candidates)
        log_probs, candidates = np.full(shape, 7, np.float32), np.full(shape, -7, np.int64)
        counts = None if of_rows is None else np.array(of_rows, np.int32)
        counts_address = None if counts is None else pointer(counts)
        self._call(
            "batch_step",
            *(self.handle, shape[1], pointer(ids), pointer(rows), counts_address),
            *(num_candidates, self.num_threads, pointer(log_probs), pointer(candidates)),
        )
        return log_probs, candidates

    @property
    def num_bytes(self) -> int:
        """Size of the caches in bytes."""
        return int(self._library.function("batch_bytes")(self.handle))

    def cross(self, segment: int, like: Array) -> Array:
        """Return the cross-attention keys or values of a segment."""
        values = np.full_like(like, 7)
        self._call("batch_cross", self.handle, segment, pointer(values))
        return values


def check_candidates(actual: tuple[Array, Array], expected: Array, is_sure: Array) -> None:
    """Compare candidates [B, K, C] with log-probabilities [B, K, V] of the reference."""
    log_probs, token_ids = actual
    assert (np.diff(log_probs) <= 0).all()
    assert (np.diff(np.sort(token_ids)) > 0).all(), "a token twice"
    tolerance = np.where(is_sure, CLOSE, ROUNDED_APART)[:, None, None]
    best = -np.sort(-expected)[..., : log_probs.shape[-1]]
    assert (np.abs(log_probs - np.take_along_axis(expected, token_ids, axis=-1)) <= tolerance).all()
    assert (np.abs(log_probs - best) <= tolerance).all()
