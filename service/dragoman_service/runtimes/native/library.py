"""ctypes binding of the C++ library of `dragoman-native`, and networks with weights packed for it."""

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import PROJECTION_BIAS, Activation, Architecture
from dragoman_service.bundle.int8_weights import ActivationScale, projection_path
from dragoman_service.decoding.step_model import EncodedSource
from dragoman_service.errors import EngineError
from dragoman_service.runtimes.settings import LIBRARY_VARIABLE

_ABI = 12  # version of the function declarations below

_INSTALL = "install it with pip install 'dragoman[serve]', or in a checkout with pip install ./service/native"

_PRODUCTS = (
    "self_attention.query.fused",
    "self_attention.output",
    "cross_attention.query",
    "cross_attention.output",
    "feed_forward.inner",
    "feed_forward.outer",
)
"""Weight matrices of a layer, in the library's order."""

_RECURRENCE = {
    "self_attention.query.fused": "recurrence.input.fused",
    "self_attention.output": None,
    "self_attention_norm": "recurrence_norm",
}
"""Matrices and norm of SSRU layers in place of self-attention; None: no matrix."""

# SwiGLU fuses the inner product with its gate. The input of the outer product is non-negative with ReLU.
_INNER, _OUTER = "feed_forward.inner", "feed_forward.outer"

_NORMS = ("self_attention_norm", "cross_attention_norm", "feed_forward_norm")
"""Norms of a layer, in the library's order."""

_CROSS_PRODUCT = "decoder.layers.0.cross_attention.key.fused"
"""The product that computes keys and values of all decoder layers from the encoder output."""

_STACKS = ("decoder", "encoder")  # in the library's order
_DECODER, _ENCODER = 0, 1  # indices in `_STACKS`
_NO_LAYER = -1  # layer index of a product or norm outside of the layers

_ENCODED_TOKENS = 256
"""Maximum number of tokens of a group of sources, whose states then fit into the cache of a core; a single source can
exceed it."""

_POSITION_BLOCK = 16  # positions per block of keys in the library's layout
_CACHE_LINE_BYTES = 64

_ACTIVATIONS: Sequence[Activation] = ("relu", "gelu", "swish", "swiglu")  # in the library's order

_HANDLE, _ARRAY = c_void_p, c_void_p


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("d_model", "num_heads", "ffn_size", "num_layers", "vocabulary_size")),
        *((name, c_int32) for name in ("max_positions", "is_pre_norm", "num_encoder_layers", "max_source_positions")),
        *((name, c_int32) for name in ("source_vocabulary_size", "activation", "is_rms_norm", "has_embedding_norm")),
        ("is_recurrent", c_int32),
        ("embedding_factor", c_float),
        ("epsilon", c_float),
    )


class SearchRun(ctypes.Structure):
    """Arguments and results of a run of search steps; see `SearchRun` in batch.hpp."""

    _fields_ = (
        *((name, _ARRAY) for name in ("log_probs", "token_ids", "parents", "beam_sizes", "lengths", "min_tokens")),
        *((name, _ARRAY) for name in ("max_tokens", "bound_penalties", "penalties", "scores_to_beat", "best_scores")),
        *((name, _ARRAY) for name in ("num_hypotheses", "num_finished", "early_stopping", "has_coverage")),
        *((name, _ARRAY) for name in ("is_guarded", "forbidden", "placeholders", "is_masked", "min_repeats")),
        *((name, _ARRAY) for name in ("interrupt", "next_log_probs", "next_token_ids", "next_parents", "next_steps")),
        *((name, _ARRAY) for name in ("finished", "finished_log_probs", "finished_eos_log_probs", "step_seconds")),
        ("max_seconds", c_double),
        *((name, c_int64) for name in ("eos_id", "num_bytes")),
        *((name, c_int32) for name in ("num_rows", "width", "num_candidates", "num_threads", "num_forbidden")),
        *((name, c_int32) for name in ("num_placeholders", "max_hypotheses", "num_penalties", "num_repeat_sizes")),
        *((name, c_int32) for name in ("loop_interval", "max_steps", "num_steps", "num_ended", "may_end")),
    )


_FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "dragoman_error": (c_char_p, ()),
    "dragoman_layout": (c_char_p, ()),
    "dragoman_instruction_sets": (c_char_p, ()),
    "dragoman_model_new": (_HANDLE, (ctypes.POINTER(_Shape), c_char_p)),
    "dragoman_model_free": (None, (_HANDLE,)),
    "dragoman_model_scratch_bytes": (c_int64, (_HANDLE,)),
    "dragoman_model_products_ns": (c_double, (_HANDLE, c_int)),
    "dragoman_peak_macs_per_ns": (c_double, (c_char_p,)),
    "dragoman_model_set_embedding": (c_int, (_HANDLE, c_int, _ARRAY, _ARRAY)),
    "dragoman_model_set_positions": (c_int, (_HANDLE, c_int, _ARRAY)),
    "dragoman_model_set_product": (
        c_int,
        (_HANDLE, c_int, c_int, c_int, _ARRAY, _ARRAY, _ARRAY, c_float, c_int, c_int),
    ),
    "dragoman_model_set_norm": (c_int, (_HANDLE, c_int, c_int, c_int, _ARRAY, _ARRAY)),
    "dragoman_encode": (c_int, (_HANDLE, c_int, _ARRAY, _ARRAY, _ARRAY, c_int)),
    "dragoman_batch_new": (_HANDLE, (_HANDLE,)),
    "dragoman_batch_free": (None, (_HANDLE,)),
    "dragoman_batch_bytes": (c_int64, (_HANDLE,)),
    "dragoman_batch_add": (c_int, (_HANDLE, c_int, _ARRAY, c_int64, c_int, _ARRAY, c_int)),
    "dragoman_batch_keep": (c_int, (_HANDLE, _ARRAY, c_int)),
    "dragoman_batch_cross": (c_int, (_HANDLE, c_int, _ARRAY)),
    "dragoman_batch_search": (c_int, (_HANDLE, ctypes.POINTER(SearchRun))),
    "dragoman_batch_step": (c_int, (_HANDLE, c_int, _ARRAY, _ARRAY, _ARRAY, c_int, c_int, _ARRAY, _ARRAY)),
}
"""Result type and argument types of each function."""


def _layout() -> Iterator[str]:
    # Yields the lines of `dragoman_layout`: name and size of a structure; name, offset and size of each field.
    for name, structure in (("Shape", _Shape), ("SearchRun", SearchRun)):
        yield f"{name} {ctypes.sizeof(structure)}"
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            yield f"{name}.{field} {place.offset} {place.size}"


class Library:
    """Functions of the shared library; a failure raises EngineError."""

    def __init__(self, path: str) -> None:
        """Load the library.

        Raises OSError if it cannot be loaded, EngineError if its version or the layout of a structure differs,
        AttributeError if it lacks a function.
        """
        self._functions = ctypes.CDLL(path)  # calls release the interpreter lock
        if (abi := self._functions.dragoman_abi()) != _ABI:
            raise EngineError(f"ABI version {abi}, expected {_ABI}; {_INSTALL}")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments
        self._check_layout()

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Instruction sets that this CPU and the library support; the first is the fastest in a self-test."""
        names = self._functions.dragoman_instruction_sets()
        if names is None:
            raise self.error()
        return tuple(names.decode().split())

    def _check_layout(self) -> None:
        # Compares the structures of the library with `_Shape` and `SearchRun`.
        text = self._functions.dragoman_layout()
        if text is None:
            raise self.error()
        lines = zip_longest(text.decode().splitlines(), _layout(), fillvalue="nothing")
        for line, expected in lines:
            if line != expected:
                raise EngineError(f"layout {line!r}, expected {expected!r}; {_INSTALL}")

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function by its name without the prefix `dragoman_`."""
        function: Callable[..., Any] = getattr(self._functions, f"dragoman_{name}")
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status; raises EngineError if the status is not 0."""
        if self.function(name)(*arguments) != 0:
            raise self.error()

    def error(self) -> EngineError:
        """Return the error of the last failed call of this thread."""
        return EngineError(f"native engine: {self._functions.dragoman_error().decode()}")

    def new(self, name: str, *arguments: Any) -> int:
        """Create an object with `<name>_new` and return its handle."""
        handle = self.function(f"{name}_new")(*arguments)
        if handle is None:
            raise self.error()
        return int(handle)


class BackendUnsupportedError(Exception):
    """The native engine cannot be used; the message is the reason."""


def check_architecture(architecture: Architecture) -> None:
    """Raise BackendUnsupportedError, with the first unsupported field, unless the library supports an architecture."""
    heads, kv_heads, head_size = architecture.num_heads, architecture.num_key_heads, architecture.head_size
    if head_size % 8:
        raise BackendUnsupportedError(f"head size {head_size} is not a multiple of 8")
    if heads * head_size != architecture.d_model:
        raise BackendUnsupportedError(f"d_model {architecture.d_model} is not {heads} heads of size {head_size}")
    if kv_heads != heads:
        raise BackendUnsupportedError(f"{kv_heads} key and value heads differ from {heads} query heads")
    if architecture.positions not in ("sinusoidal", "learned"):
        raise BackendUnsupportedError(f"positions {architecture.positions!r} are not supported")
    if architecture.has_final_norm != (architecture.norm == "pre"):
        raise BackendUnsupportedError(
            f"norm {architecture.norm!r} with final_norm {architecture.final_norm} is not supported"
        )


def load_library() -> Library:
    """Load the library.

    Raises BackendUnsupportedError if it is not installed, has another version than the service or cannot be loaded.
    """
    try:
        return Library(os.environ.get(LIBRARY_VARIABLE) or _installed_library())
    except (OSError, AttributeError, EngineError) as error:
        raise BackendUnsupportedError(f"dragoman-native cannot be loaded: {error}") from error


def _installed_library() -> str:
    try:
        import dragoman_native  # noqa: PLC0415 - optional
    except ImportError as error:
        raise BackendUnsupportedError(f"dragoman-native is not installed; {_INSTALL}") from error
    with contextlib.suppress(PackageNotFoundError):  # a source tree that is not installed has no version
        if (native := version("dragoman-native")) != (own := version("dragoman")):
            raise BackendUnsupportedError(f"dragoman-native has version {native}, expected {own}; {_INSTALL}")
    return str(dragoman_native.LIBRARY)


class NetworkArrays(NamedTuple):
    """Tensors and activation scales of an encoder or decoder, by their names in `NetworkWeights`."""

    tensors: Mapping[str, NDArray[Any]]
    activations: Mapping[str, ActivationScale | None]


class NativeNetwork:
    """Weights of a network, packed for an instruction set; safe to use from several threads."""

    def __init__(
        self,
        library: Library,
        architecture: Architecture,
        decoder: NetworkArrays,
        *,
        encoder: NetworkArrays | None = None,
        instruction_set: str | None = None,
    ) -> None:
        """Copy and pack the weights, by default for the fastest instruction set of the CPU.

        Without an encoder, ONNX Runtime encodes.
        """
        encoder_layers = architecture.num_encoder_layers if encoder else 0
        shape = _Shape(
            d_model=architecture.d_model,
            num_heads=architecture.num_heads,
            ffn_size=architecture.ffn_size,
            num_layers=architecture.num_decoder_layers,
            vocabulary_size=architecture.vocabulary_size,
            max_positions=len(decoder.tensors["position_encodings"]),
            is_pre_norm=architecture.norm == "pre",
            num_encoder_layers=encoder_layers,
            max_source_positions=len(encoder.tensors["position_encodings"]) if encoder else 0,
            source_vocabulary_size=0 if architecture.tied_embeddings == "all" else architecture.num_source_tokens,
            activation=_ACTIVATIONS.index(architecture.activation),
            is_rms_norm=architecture.norm_kind == "rms",
            has_embedding_norm=architecture.embedding_norm,
            is_recurrent=architecture.decoder_type == "ssru",
            embedding_factor=architecture.d_model**0.5 if architecture.scale_embeddings else 1.0,
            epsilon=architecture.norm_epsilon,
        )
        self.library, self.architecture = library, architecture
        self.instruction_set = instruction_set or library.instruction_sets[0]
        self.handle = library.new("model", ctypes.byref(shape), self.instruction_set.encode())
        weakref.finalize(self, library.function("model_free"), self.handle)
        self.scratch_bytes = 0  # memory that encoder runs reuse; any thread can read it
        self._set_embedding(_DECODER, decoder, "embedding.weight")
        self._set_projection(decoder)
        self._set_stack(_DECODER, architecture.num_decoder_layers, decoder)
        self.has_encoder = encoder is not None
        if encoder is not None:
            if architecture.tied_embeddings != "all":
                self._set_embedding(_ENCODER, encoder, "encoder.embedding.weight")
            self._set_stack(_ENCODER, encoder_layers, encoder)
            self._set_product(_ENCODER, _NO_LAYER, 0, encoder, _CROSS_PRODUCT)

    def encode(self, source_ids: Sequence[Sequence[int]], *, num_threads: int) -> list[EncodedSource]:
        """Return the encoded sources, in order, independent of each other; requires `has_encoder`.

        `cross` is a float32 array in the library's layout: for each decoder layer, the keys in blocks of 16 positions,
        then the values. Batches do not copy it.
        """
        width, encoded = self.architecture.num_decoder_layers * self.architecture.d_model, list[EncodedSource]()
        for group in _groups(source_ids):
            lengths = np.array([len(ids) for ids in group], np.int32)
            token_ids = np.fromiter(chain.from_iterable(group), np.int64, int(lengths.sum()))
            padded = -(-lengths // _POSITION_BLOCK) * _POSITION_BLOCK
            arrays = [_aligned(width * int(size)) for size in padded + lengths]
            pointers = (c_void_p * len(group))(*map(pointer, arrays))
            self.library.call(
                "encode", self.handle, len(group), pointer(lengths), pointer(token_ids), pointers, num_threads
            )
            encoded += (
                EncodedSource(source_ids=tuple(ids), cross=cross) for ids, cross in zip(group, arrays, strict=True)
            )
        self.scratch_bytes = self.library.function("model_scratch_bytes")(self.handle)
        return encoded

    def _set_stack(self, stack: int, num_layers: int, arrays: NetworkArrays) -> None:
        fused = ".fused" if self.architecture.activation == "swiglu" else ""
        products, norms = (
            [(kind, path) for kind, path in enumerate(self._paths(stack, paths)) if path is not None]
            for paths in (_PRODUCTS, _NORMS)
        )
        name = _STACKS[stack]
        self.library.call("model_set_positions", self.handle, stack, pointer(arrays.tensors["position_encodings"]))
        for layer in range(num_layers):
            for kind, path in products:
                suffix = fused if path == _INNER else ""
                self._set_product(stack, layer, kind, arrays, f"{name}.layers.{layer}.{path}{suffix}")
            for kind, path in norms:
                self._set_norm(stack, layer, kind, arrays, f"{name}.layers.{layer}.{path}")
        if self.architecture.norm == "pre":
            self._set_norm(stack, _NO_LAYER, 0, arrays, f"{name}.norm")
        if self.architecture.embedding_norm:
            self._set_norm(stack, _NO_LAYER, 1, arrays, f"{name}.embedding_norm")

    def _paths(self, stack: int, paths: Sequence[str]) -> Iterator[str | None]:
        # Yields the paths of a stack, None for those that it lacks.
        is_recurrent = stack == _DECODER and self.architecture.decoder_type == "ssru"
        for path in paths:
            if stack == _ENCODER and "cross_attention" in path:
                yield None
            else:
                yield _RECURRENCE.get(path, path) if is_recurrent else path

    def _set_embedding(self, stack: int, arrays: NetworkArrays, name: str) -> None:
        pointers = [pointer(arrays.tensors[f"{name}.{part}"]) for part in ("int8", "factors")]
        self.library.call("model_set_embedding", self.handle, stack, *pointers)

    def _set_projection(self, arrays: NetworkArrays) -> None:
        path, is_tied = projection_path(self.architecture), self.architecture.tied_embeddings != "none"
        table = [None if is_tied else f"{path}.weight.{part}" for part in ("int8", "factors")]  # tied: set already
        names = [*table, PROJECTION_BIAS if self.architecture.projection_bias else None]
        self._set_product(_DECODER, _NO_LAYER, 0, arrays, path, names=names)

    def _set_product(
        self,
        stack: int,
        layer: int,
        kind: int,
        arrays: NetworkArrays,
        path: str,
        *,
        names: Sequence[str | None] | None = None,
    ) -> None:
        # `names` are those of weights, factors and bias; by default all of them exist.
        names = names or [f"{path}.{part}" for part in ("weight.int8", "weight.factors", "bias")]
        pointers = [None if name is None else pointer(arrays.tensors[name]) for name in names]
        if activation := arrays.activations[path]:
            rounding = activation.scale, activation.zero_point, activation.levels
        else:  # each row has its own scale
            is_rectified = path.endswith(_OUTER) and self.architecture.activation == "relu"
            rounding = 0.0, 0 if is_rectified else 128, 255
        self.library.call("model_set_product", self.handle, stack, layer, kind, *pointers, *rounding)

    def _set_norm(self, stack: int, layer: int, kind: int, arrays: NetworkArrays, path: str) -> None:
        weight, bias = arrays.tensors[f"{path}.weight"], arrays.tensors.get(f"{path}.bias")
        pointers = pointer(weight), None if bias is None else pointer(bias)
        self.library.call("model_set_norm", self.handle, stack, layer, kind, *pointers)


def _groups(source_ids: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    # Yields consecutive sources to encode together. They are not sorted by length, because the library does not pad.
    begin = num_tokens = 0
    for end, ids in enumerate(source_ids):
        if end > begin and num_tokens + len(ids) > _ENCODED_TOKENS:
            yield source_ids[begin:end]
            begin, num_tokens = end, 0
        num_tokens += len(ids)
    yield source_ids[begin:]


def _aligned(size: int) -> NDArray[np.float32]:
    # Begins at a cache line and is followed by another one, because the library reads whole vectors.
    memory = np.empty(size + 2 * _CACHE_LINE_BYTES // 4, np.float32)
    begin = -pointer(memory) % _CACHE_LINE_BYTES // memory.itemsize
    return memory[begin : begin + size]


def pointer(array: NDArray[Any]) -> int:
    """Return the address of an array; raises ValueError if it is not contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError("array is not contiguous")
    return array.ctypes.data
