"""`StepModel` on the C++ library of `dragoman-native`, which encodes and takes the decoder steps.

Where a bundle has encoder products in floats, ONNX Runtime encodes; it computes the attention that is asked for.

Nothing is padded in a step and every segment has caches of its own, so joining, leaving and growing move nobody else's.
"""

import ctypes
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.bundle import MAX_FILE_BYTES, ActivationScale, Architecture, Bundle, NetworkWeights, layer_names, read_file
from service.decoding.beam_search import RankedStep
from service.decoding.beam_state import BeamState, Continuations
from service.decoding.step_model import EncodedSource, FloatArray, IntArray, StepOutput
from service.errors import ConfigError, EngineError
from service.runtime.encoder import EncodingModel
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.session import GraphName, Sessions, num_low_latency_threads, open_sessions, place
from service.runtime.settings import RuntimeSettings
from service.runtime.shortlist import Shortlist, open_shortlist
from service.threads import num_cores

log = logging.getLogger(__name__)

_LIBRARY_VARIABLE = "DRAGOMAN_NATIVE_LIBRARY"
"""Environment variable that names another library than the installed one, such as a build with sanitizers."""

FAST_SETS = ("avx512", "avxvnni")
"""Instruction sets with which a step is faster than the graph."""

_ABI = 5
"""Of the library's functions, as they are declared here."""

_PRODUCTS = (
    "self_attention.query.fused",
    "self_attention.output",
    "cross_attention.query",
    "cross_attention.output",
    "feed_forward.inner",
    "feed_forward.outer",
)
"""Weight matrices of a layer, in the library's order."""

_STEPS_OF_ROWS = 8
"""Steps whose rows are allocated together."""

_RECTIFIED = "feed_forward.outer"
"""The product whose input is never negative."""

_NORMS = ("self_attention_norm", "cross_attention_norm", "feed_forward_norm")
"""Norms of a layer, in the library's order."""

_EMBEDDING = "embedding"

_MEMORY = "decoder.layers.0.cross_attention.key.fused"
"""The product that makes keys and values for all decoder layers of the encoder's output."""

_STACKS = ("decoder", "encoder")
"""In the library's order."""

_ENCODED_TOKENS = 256
"""Most tokens that are encoded together; only a single source may have more. Their states fit into a core's cache."""

_POSITION_BLOCK = 16
"""Positions whose keys lie together in the library's layout."""

_EPSILON = 1e-5
"""Added to the variance by the norms of all models that the exporter writes."""

_HANDLE, _ARRAY = c_void_p, c_void_p


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("d_model", "num_heads", "ffn_size", "num_layers", "vocabulary_size")),
        *((name, c_int32) for name in ("max_positions", "is_pre_norm", "num_encoder_layers", "max_source_positions")),
        ("embedding_factor", c_float),
        ("epsilon", c_float),
    )


class _SearchStep(ctypes.Structure):
    _fields_ = (
        *((name, _ARRAY) for name in ("log_probs", "token_ids", "parents", "beam_sizes", "lengths", "min_tokens")),
        *((name, _ARRAY) for name in ("bound_penalties", "scores_to_beat", "early_stopping", "forbidden")),
        *((name, _ARRAY) for name in ("next_log_probs", "next_token_ids", "next_parents", "next_steps")),
        *((name, _ARRAY) for name in ("finished", "finished_log_probs", "finished_eos_log_probs")),
        *((name, c_int64) for name in ("eos_id", "num_bytes")),
        *((name, c_int32) for name in ("num_rows", "width", "num_candidates", "num_threads", "num_forbidden")),
        *((name, c_int32) for name in ("num_finished", "may_end")),
    )


_FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "dragoman_error": (c_char_p, ()),
    "dragoman_instruction_sets": (c_char_p, ()),
    "dragoman_model_new": (_HANDLE, (ctypes.POINTER(_Shape), c_char_p)),
    "dragoman_model_free": (None, (_HANDLE,)),
    "dragoman_model_set_embedding": (c_int, (_HANDLE, _ARRAY, _ARRAY)),
    "dragoman_model_set_positions": (c_int, (_HANDLE, c_int, _ARRAY)),
    "dragoman_model_set_product": (c_int, (_HANDLE, c_int, c_int, c_int, _ARRAY, _ARRAY, _ARRAY, c_float, c_int)),
    "dragoman_model_set_norm": (c_int, (_HANDLE, c_int, c_int, c_int, _ARRAY, _ARRAY)),
    "dragoman_encode": (c_int, (_HANDLE, c_int, _ARRAY, _ARRAY, _ARRAY, c_int)),
    "dragoman_batch_new": (_HANDLE, (_HANDLE,)),
    "dragoman_batch_free": (None, (_HANDLE,)),
    "dragoman_batch_bytes": (c_int64, (_HANDLE,)),
    "dragoman_batch_add": (c_int, (_HANDLE, c_int, _ARRAY, c_int, _ARRAY, c_int)),
    "dragoman_batch_keep": (c_int, (_HANDLE, _ARRAY, c_int)),
    "dragoman_batch_cross": (c_int, (_HANDLE, c_int, _ARRAY)),
    "dragoman_batch_search": (c_int, (_HANDLE, ctypes.POINTER(_SearchStep))),
    "dragoman_batch_step": (c_int, (_HANDLE, c_int, _ARRAY, _ARRAY, _ARRAY, c_int, c_int, _ARRAY, _ARRAY)),
}
"""Result and arguments of each function."""


class Library:
    """The functions of the shared library; EngineError if one fails."""

    def __init__(self, path: str) -> None:
        """Load the library at a path; OSError if it cannot be, EngineError if it is of another version."""
        self._functions = ctypes.CDLL(path)  # calls release the interpreter lock
        if (abi := self._functions.dragoman_abi()) != _ABI:
            raise EngineError(f"dragoman-native has interface {abi}; this service needs {_ABI}: install it again")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Those that this CPU has and the library can use, best first."""
        return tuple(self._functions.dragoman_instruction_sets().decode().split())

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function by its name without prefix."""
        found: Callable[..., Any] = getattr(self._functions, f"dragoman_{name}")
        return found

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that says whether it succeeded."""
        if self.function(name)(*arguments) != 0:
            raise self.error()

    def error(self) -> EngineError:
        """Return the error of the last call of this thread."""
        return EngineError(f"native engine: {self._functions.dragoman_error().decode()}")

    def new(self, name: str, *arguments: Any) -> int:
        """Return what `<name>_new` made."""
        handle = self.function(f"{name}_new")(*arguments)
        if handle is None:
            raise self.error()
        return int(handle)


NetworkArrays = tuple[Mapping[str, NDArray[Any]], Mapping[str, ActivationScale | None]]
"""Tensors and activations of an encoder or decoder, by their names in `NetworkWeights`."""


class NativeNetwork:
    """The weights of a network, packed for an instruction set; may be used from several threads at once."""

    def __init__(
        self,
        library: Library,
        architecture: Architecture,
        tensors: Mapping[str, NDArray[Any]],
        activations: Mapping[str, ActivationScale | None],
        *,
        encoder: NetworkArrays | None = None,
        instruction_set: str | None = None,
    ) -> None:
        """Pack weights, which are copied.

        Args:
            library: does the work.
            architecture: of the network.
            tensors: of the decoder, by their names in `NetworkWeights`.
            activations: of the decoder; see `NetworkWeights`.
            encoder: tensors and activations of the encoder; None: another encodes.
            instruction_set: one of the library's; None: the best.
        """
        positions, encoder_layers = tensors["position_encodings"], architecture.num_encoder_layers if encoder else 0
        shape = _Shape(
            d_model=architecture.d_model,
            num_heads=architecture.num_heads,
            ffn_size=architecture.ffn_size,
            num_layers=architecture.num_decoder_layers,
            vocabulary_size=architecture.vocabulary_size,
            max_positions=len(positions),
            is_pre_norm=architecture.norm == "pre",
            num_encoder_layers=encoder_layers,
            max_source_positions=len(encoder[0]["position_encodings"]) if encoder else 0,
            embedding_factor=architecture.d_model**0.5,
            epsilon=_EPSILON,
        )
        self.library, self.architecture = library, architecture
        self.instruction_set = instruction_set or library.instruction_sets[0]
        self.handle = library.new("model", ctypes.byref(shape), self.instruction_set.encode())
        weakref.finalize(self, library.function("model_free"), self.handle)
        embedding = [_pointer(tensors[f"{_EMBEDDING}.weight.{part}"]) for part in ("int8", "factors")]
        library.call("model_set_embedding", self.handle, *embedding)
        projection = (None, None, None, *_entering(activations, _EMBEDDING))
        library.call("model_set_product", self.handle, 0, -1, 0, *projection)
        self._set_stack(0, architecture.num_decoder_layers, (tensors, activations))
        self.has_encoder = encoder is not None
        if encoder is not None:
            self._set_stack(1, encoder_layers, encoder)
            self._set_product(1, -1, 0, encoder, _MEMORY)

    def encode(self, source_ids: Sequence[Sequence[int]], *, num_threads: int) -> list[EncodedSource]:
        """Return the encoded sources, in order; none depends on the others; `has_encoder`.

        `cross` of each is one array of float32 in the library's layout: for each decoder layer the keys in blocks of 16
        positions, then the values.
        """
        encoded: list[EncodedSource] = []
        for group in _groups(source_ids):
            lengths = np.array([len(ids) for ids in group], np.int32)
            token_ids = np.fromiter(chain.from_iterable(group), np.int64, int(lengths.sum()))
            arrays = [np.empty(self._cross_size(len(ids)), np.float32) for ids in group]
            pointers = (c_void_p * len(group))(*map(_pointer, arrays))
            self.library.call(
                "encode", self.handle, len(group), _pointer(lengths), _pointer(token_ids), pointers, num_threads
            )
            encoded += (
                EncodedSource(source_ids=tuple(ids), cross=cross) for ids, cross in zip(group, arrays, strict=True)
            )
        return encoded

    def _cross_size(self, length: int) -> int:
        padded = -(-length // _POSITION_BLOCK) * _POSITION_BLOCK
        return self.architecture.num_decoder_layers * self.architecture.d_model * (padded + length)

    def _set_stack(self, stack: int, num_layers: int, arrays: NetworkArrays) -> None:
        name, kinds = _STACKS[stack], enumerate(_PRODUCTS)
        products = [(kind, path) for kind, path in kinds if stack == 0 or "cross_attention" not in path]
        norms = [(kind, path) for kind, path in enumerate(_NORMS) if stack == 0 or "cross_attention" not in path]
        self.library.call("model_set_positions", self.handle, stack, _pointer(arrays[0]["position_encodings"]))
        for layer in range(num_layers):
            for kind, path in products:
                self._set_product(stack, layer, kind, arrays, f"{name}.layers.{layer}.{path}")
            for kind, path in norms:
                self._set_norm(stack, layer, kind, arrays, f"{name}.layers.{layer}.{path}")
        if self.architecture.norm == "pre":
            self._set_norm(stack, -1, 0, arrays, f"{name}.norm")

    def _set_product(self, stack: int, layer: int, kind: int, arrays: NetworkArrays, path: str) -> None:
        tensors, activations = arrays
        pointers = [_pointer(tensors[f"{path}.{part}"]) for part in ("weight.int8", "weight.factors", "bias")]
        self.library.call(
            "model_set_product", self.handle, stack, layer, kind, *pointers, *_entering(activations, path)
        )

    def _set_norm(self, stack: int, layer: int, kind: int, arrays: NetworkArrays, path: str) -> None:
        pointers = [_pointer(arrays[0][f"{path}.{part}"]) for part in ("weight", "bias")]
        self.library.call("model_set_norm", self.handle, stack, layer, kind, *pointers)


def _groups(source_ids: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    """Yield sources that are encoded together: nothing is padded, so in the order given."""
    begin = num_tokens = 0
    for end, ids in enumerate(source_ids):
        if end > begin and num_tokens + len(ids) > _ENCODED_TOKENS:
            yield source_ids[begin:end]
            begin, num_tokens = end, 0
        num_tokens += len(ids)
    yield source_ids[begin:]


def _entering(activations: Mapping[str, ActivationScale | None], path: str) -> tuple[float, int]:
    """Return scale and zero point as the library takes them: 0 stands for a scale of each row."""
    if (scale := activations[path]) is not None:
        return scale.scale, scale.zero_point
    return 0.0, 0 if path.endswith(_RECTIFIED) else 128


def _pointer(array: NDArray[Any]) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("an array for the library is not contiguous")
    return array.ctypes.data


class _Rows:
    """Room for the rows of several steps of a search, which the history keeps."""

    def __init__(self, num_segments: int, width: int) -> None:
        shape = (_STEPS_OF_ROWS, num_segments, width)
        self.shape = (num_segments, width)
        log_probs, steps = np.empty(shape, np.float64), np.empty(shape, np.float32)
        tokens, parents = np.empty(shape, np.int64), np.empty(shape, np.int64)
        self._steps = [
            Continuations(log_probs=log_probs[i], tokens=tokens[i], parents=parents[i], steps=steps[i])
            for i in range(_STEPS_OF_ROWS)
        ]
        size = num_segments * width
        self._pointers = [(_pointer(array), size * array.itemsize) for array in (log_probs, tokens, parents, steps)]
        self._num_taken = 0

    @property
    def is_full(self) -> bool:
        return self._num_taken == _STEPS_OF_ROWS

    def take(self) -> tuple[Continuations, list[int]]:
        """Return the rows of another step, and the addresses of their arrays."""
        index, self._num_taken = self._num_taken, self._num_taken + 1
        return self._steps[index], [pointer + index * size for pointer, size in self._pointers]


class _Search:
    """The structure that a search hands to the library, filled as far as it stays the same from step to step."""

    def __init__(self, state: BeamState, forbidden: Sequence[int], eos_id: int, num_candidates: int) -> None:
        self.state, self.composition, self.num_candidates = state, state.composition, num_candidates
        num_segments, width = state.num_segments, state.widest_beam
        self.finished = np.empty((num_segments * width, 2), np.int64)
        self.finished_log_probs = np.empty(num_segments * width, np.float64)
        self.finished_eos_log_probs = np.empty(num_segments * width, np.float32)
        # They live as long as this, and are changed in place.
        self._arrays = {
            "beam_sizes": state.beam_sizes,
            "lengths": state.lengths,
            "min_tokens": state.min_tokens,
            "bound_penalties": state.bound_penalties,
            "scores_to_beat": state.scores_to_beat,
            "early_stopping": state.early_stopping,
            "forbidden": np.array(forbidden, np.int64),
            "finished": self.finished,
            "finished_log_probs": self.finished_log_probs,
            "finished_eos_log_probs": self.finished_eos_log_probs,
        }
        self.step = _SearchStep(
            **{name: _pointer(array) for name, array in self._arrays.items()},
            eos_id=eos_id,
            width=width,
            num_candidates=num_candidates,
            num_forbidden=len(forbidden),
        )
        self.rows = _Rows(num_segments, width)
        self._latest: Continuations | None = None
        self._latest_pointers: list[int] = []

    def fits(self, state: BeamState, num_candidates: int) -> bool:
        """Say whether nobody has joined or left since."""
        is_same = state is self.state and state.composition is self.composition
        return is_same and num_candidates == self.num_candidates

    def prepare(self, state: BeamState) -> Continuations:
        """Point to the state's rows and to room for the next ones, which are returned."""
        step, latest = self.step, self._latest
        if latest is not None and state.log_probs is latest.log_probs and state.tokens is latest.tokens:
            step.log_probs, step.token_ids, step.parents = self._latest_pointers[:3]
        else:
            self._given = [np.ascontiguousarray(rows) for rows in (state.log_probs, state.tokens, state.parents)]
            step.log_probs, step.token_ids, step.parents = (_pointer(rows) for rows in self._given)
        step.num_rows = state.log_probs.shape[1]
        if self.rows.is_full:
            self.rows = _Rows(*self.rows.shape)
        self._latest, self._latest_pointers = self.rows.take()
        step.next_log_probs, step.next_token_ids, step.next_parents, step.next_steps = self._latest_pointers
        return self._latest


class NativeStepBatch:
    """The segments of one running batch; one thread at a time may use it.

    Results of a segment do not depend, bit for bit, on the other segments, nor on the number of threads.
    """

    def __init__(
        self,
        network: NativeNetwork,
        sessions: Sessions,
        *,
        num_threads: Callable[[], int],
        shortlist: Shortlist | None = None,
    ) -> None:
        """Start without segments; `num_threads` says before a step how many may take it."""
        self._library, self._sessions = network.library, sessions
        self._shortlist = shortlist
        self._num_threads = num_threads
        self._step, self._search_step = self._library.function("batch_step"), self._library.function("batch_search")
        self._bytes = self._library.function("batch_bytes")
        self._search: _Search | None = None
        self._handle = self._library.new("batch", network.handle)
        self._finalizer = weakref.finalize(self, self._library.function("batch_free"), self._handle)
        shape = network.architecture
        self._cross_shape = (2 * shape.num_decoder_layers, shape.num_heads, shape.d_model // shape.num_heads)
        self._source_lengths: list[int] = []
        self._output: StepOutput | None = None
        self.cache_bytes = 0
        """Bytes of its caches; any thread may read it."""

    @property
    def num_segments(self) -> int:
        """B, segments in the batch."""
        return len(self._source_lengths)

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, in order, behind those of the batch."""
        for source in sources:
            length = len(source.source_ids)
            listed = None if self._shortlist is None else self._shortlist.of(source.source_ids)
            tokens = (None, 0) if listed is None else (_pointer(listed), len(listed))
            is_from_graph = source.cross.ndim > 1
            self._library.call("batch_add", self._handle, length, _pointer(source.cross), is_from_graph, *tokens)
            self._source_lengths.append(length)
        self._output = None

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to every row and score what may follow it."""
        num_segments, num_rows = token_ids.shape
        wanted = None if isinstance(num_candidates, int) else np.ascontiguousarray(num_candidates, dtype=np.int32)
        shape = num_segments, num_rows, int(np.max(num_candidates))
        if self._output is None or self._output.token_ids.shape != shape:
            self._output = StepOutput(log_probs=np.empty(shape, np.float32), token_ids=np.empty(shape, np.int64))
        token_ids, parents = np.ascontiguousarray(token_ids), np.ascontiguousarray(parents)
        fault = self._step(
            self._handle,
            num_rows,
            token_ids.ctypes.data,
            parents.ctypes.data,
            None if wanted is None else wanted.ctypes.data,
            shape[2],
            self._num_threads(),
            self._output.log_probs.ctypes.data,
            self._output.token_ids.ctypes.data,
        )
        if fault:
            raise self._library.error()
        self.cache_bytes = self._bytes(self._handle)
        return self._output

    def search_step(
        self, state: BeamState, *, num_candidates: int, forbidden: Sequence[int], eos_id: int
    ) -> RankedStep:
        """Take a step and rank, as `SearchingBatch` says."""
        search = self._search
        if search is None or not search.fits(state, num_candidates):
            search = self._search = _Search(state, forbidden, eos_id, num_candidates)
        rows, step = search.prepare(state), search.step
        step.num_threads = self._num_threads()
        if self._search_step(self._handle, step):
            raise self._library.error()
        count = step.num_finished
        finished = (
            [
                (*places, log_prob, eos_log_prob)
                for places, log_prob, eos_log_prob in zip(
                    search.finished[:count].tolist(),
                    search.finished_log_probs[:count].tolist(),
                    search.finished_eos_log_probs[:count].tolist(),
                    strict=True,
                )
            ]
            if count
            else []
        )
        self.cache_bytes = step.num_bytes
        return RankedStep(rows=rows, finished=finished, may_end=bool(step.may_end))

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Return what `StepBatch.cross_attention` says; BundleError if the bundle has no attention graph."""
        attention = self._sessions.attention
        if attention is None:
            raise self._sessions.bundle.missing_attention(self._sessions.placement.precision)
        num_arrays, num_heads, head_size = self._cross_shape
        cross = np.empty((num_arrays, 1, num_heads, self._source_lengths[segment], head_size), np.float32)
        self._library.call("batch_cross", self._handle, segment, _pointer(cross))
        names = layer_names(("cross_key", "cross_value"), num_arrays // 2)
        return attention.weights(target_ids, dict(zip(names, cross, strict=True)))

    def drop(self, keep: Sequence[int]) -> None:
        """Forget every segment but those at the given indices, which become 0, 1, ... in the order given."""
        indices = np.array(keep, dtype=np.int64)
        self._library.call("batch_keep", self._handle, _pointer(indices), len(indices))
        self._source_lengths = [self._source_lengths[index] for index in keep]
        self._output = None


class NativeStepModel(EncodingModel):
    """A network that the library runs; safe to share between threads, each with its own batches."""

    def __init__(
        self, bundle: Bundle, settings: RuntimeSettings, network: NativeNetwork, *, shortlist: Shortlist | None = None
    ) -> None:
        """Open the other graphs of a bundle; raises as `open_sessions`.

        With a shortlist a segment's candidates are the tokens of its list; where more are asked for, padding with a
        log-probability of minus infinity follows.
        """
        graphs: tuple[GraphName, ...] = () if network.has_encoder else ("encoder",)
        super().__init__(open_sessions(bundle, settings, graphs=graphs))
        self.network, self._shortlist = network, shortlist
        self._num_threads = settings.num_intra_op_threads
        self._num_lone_threads = num_low_latency_threads(
            settings, self.placement, weights_bytes=self.weights_bytes, num_cores=num_cores()
        )

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Encode sources; none depends on the others."""
        if not self.network.has_encoder:
            return super().encode(source_ids)
        return self.network.encode(source_ids, num_threads=self._threads_of_step())

    def new_batch(self) -> NativeStepBatch:
        """Return an empty running batch."""
        num_threads, shortlist = self._threads_of_step, self._shortlist
        return self._counted(
            NativeStepBatch(self.network, self._sessions, num_threads=num_threads, shortlist=shortlist)
        )

    def _threads_of_step(self) -> int:
        return self._num_lone_threads if self._num_running() <= 1 else self._num_threads


def open_step_model(bundle: Bundle, settings: RuntimeSettings) -> OnnxStepModel | NativeStepModel:
    """Open a bundle with the engine that the settings ask for or that suits best, and log which and why.

    Raises:
        BundleError, ConfigError: as `open_sessions`; ConfigError, too, if the native engine or a shortlist, which needs
            it, is asked for and cannot be used.
    """
    network: NativeNetwork | None = None
    reason = "asked for"
    if settings.engine != "onnxruntime":
        try:
            network = _open_network(bundle, settings)
            reason = f"int8 on a CPU with {network.instruction_set}"
        except Unsuitable as error:
            reason = str(error)
            if settings.engine == "native":
                raise ConfigError(
                    "runtime.engine", "native", f"a machine and a bundle that allow it: {error}"
                ) from error
    manifest = bundle.manifest
    model = f"{manifest.name}/{manifest.version}"
    engine = "native" if network else "onnxruntime"
    chosen = {"engine": engine, "reason": reason, "shortlist": settings.shortlist}
    if settings.shortlist and not network:
        raise ConfigError("runtime.shortlist", True, f"false, or the native engine; the graph is used: {reason}")
    log.info("decoder engine chosen", extra={"model": model, **chosen})
    if not network:
        return OnnxStepModel(bundle, settings)
    return NativeStepModel(bundle, settings, network, shortlist=open_shortlist(bundle) if settings.shortlist else None)


class Unsuitable(Exception):  # noqa: N818 - a reason to use the other engine, no error
    """Says why the native engine cannot be used."""


def _open_network(bundle: Bundle, settings: RuntimeSettings) -> NativeNetwork:
    """Return the network of a bundle; Unsuitable if machine, settings or bundle do not allow it."""
    placement = place(bundle, settings)
    if placement.device != "cpu":
        raise Unsuitable("the model runs on a GPU")
    precision = placement.precision
    bundle.graph_paths(precision)  # BundleError if there is no such precision
    if (weights := bundle.int8_weights(precision)) is None:
        raise Unsuitable(f"the bundle does not describe int8 weights of its decoder at {precision}")
    library = load_library()
    usable = [name for name in library.instruction_sets if settings.engine == "native" or name in FAST_SETS]
    if not usable:
        raise Unsuitable("the CPU has neither AVX-512 VNNI nor AVX-VNNI")
    architecture = bundle.manifest.architecture
    if architecture.d_model // architecture.num_heads % 8:
        raise Unsuitable(f"d_model {architecture.d_model} over {architecture.num_heads} heads is no multiple of 8")
    content = read_file(bundle.directory / str(bundle.manifest.precisions[precision].weights), max_bytes=MAX_FILE_BYTES)
    return NativeNetwork(
        library,
        architecture,
        *_arrays(weights.decoder, content),
        encoder=_arrays(weights.encoder, content) if weights.encoder else None,
        instruction_set=usable[0],
    )


def _arrays(weights: NetworkWeights, content: bytes) -> NetworkArrays:
    """Return tensors, which refer to the content of the file of weights, and activations."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, stored in weights.tensors.items():
        count = stored.num_bytes // np.dtype(stored.dtype).itemsize
        tensors[name] = np.frombuffer(content, stored.dtype, count, stored.offset).reshape(stored.shape)
    return tensors, weights.activations


def load_library() -> Library:
    """Load the library; Unsuitable if it is not installed or cannot be loaded here."""
    path = os.environ.get(_LIBRARY_VARIABLE)
    if path is None:
        try:
            import dragoman_native  # noqa: PLC0415 - optional
        except ImportError as error:
            raise Unsuitable("dragoman-native is not installed") from error
        path = str(dragoman_native.LIBRARY)
    try:
        return Library(path)
    except (OSError, EngineError) as error:
        raise Unsuitable(f"dragoman-native cannot be loaded: {error}") from error
