"""`StepModel` on the C++ library of `dragoman-native`, which runs encoder and decoder steps.

ONNX Runtime runs the encoder if the bundle stores encoder weights as floats, and the attention graph.

Steps are not padded and each segment has its own caches, so that segments are added, removed and extended without
copies of the caches of other segments.
"""

import weakref
from collections.abc import Callable, Sequence

import numpy as np

from dragoman_service.bundle.architecture import layer_names
from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.beam_search import CandidateRules, RankedStep
from dragoman_service.decoding.beam_state import BeamExpansion, BeamState
from dragoman_service.decoding.step_model import EncodedSource, FloatArray, IntArray, StepOutput
from dragoman_service.runtimes.native.library import NativeNetwork, SearchStep, pointer
from dragoman_service.runtimes.onnx.encoder import EncodingModel
from dragoman_service.runtimes.onnx.session import GraphName, Sessions, num_low_latency_threads, open_sessions
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.runtimes.shortlist import Shortlist
from dragoman_service.threads import num_cores

_STEPS_OF_ROWS = 8  # steps whose rows are allocated together


class _Rows:
    # Arrays for the rows of several steps of a search. The history of the search keeps them.

    def __init__(self, num_segments: int, width: int) -> None:
        shape = (_STEPS_OF_ROWS, num_segments, width)
        self.shape = (num_segments, width)
        log_probs, steps = np.empty(shape, np.float64), np.empty(shape, np.float32)
        tokens, parents = np.empty(shape, np.int64), np.empty(shape, np.int64)
        self._steps = [
            BeamExpansion(log_probs=log_probs[i], tokens=tokens[i], parents=parents[i], steps=steps[i])
            for i in range(_STEPS_OF_ROWS)
        ]
        size = num_segments * width
        self._addresses = [(pointer(array), size * array.itemsize) for array in (log_probs, tokens, parents, steps)]
        self._num_taken = 0

    @property
    def is_full(self) -> bool:
        return self._num_taken == _STEPS_OF_ROWS

    def take(self) -> tuple[BeamExpansion, list[int]]:
        # Returns the rows of the next step and the addresses of their arrays.
        index, self._num_taken = self._num_taken, self._num_taken + 1
        return self._steps[index], [address + index * size for address, size in self._addresses]


class _Search:
    # Arguments of a search step; all fields that do not change between steps are set once.

    def __init__(self, state: BeamState, rules: CandidateRules) -> None:
        self.state, self.composition = state, state.composition
        num_segments, width = state.num_segments, state.widest_beam
        self._finished = np.empty((num_segments * width, 2), np.int64)
        self._finished_log_probs = np.empty(num_segments * width, np.float64)
        self._finished_eos_log_probs = np.empty(num_segments * width, np.float32)
        # Kept alive because `step` points to them; modified in place.
        self._arrays = {
            "beam_sizes": state.beam_sizes,
            "lengths": state.lengths,
            "min_tokens": state.min_tokens,
            "bound_penalties": state.bound_penalties,
            "scores_to_beat": state.scores_to_beat,
            "early_stopping": state.early_stopping,
            "forbidden": np.array(rules.never, np.int64),
            "placeholders": rules.placeholder_ids,
            "is_masked": np.ascontiguousarray(state.is_masked),
            "finished": self._finished,
            "finished_log_probs": self._finished_log_probs,
            "finished_eos_log_probs": self._finished_eos_log_probs,
        }
        self.step = SearchStep(
            **{name: pointer(array) for name, array in self._arrays.items()},
            eos_id=rules.eos_id,
            width=width,
            num_candidates=rules.num_candidates(width),
            num_forbidden=len(rules.never),
            num_placeholders=state.is_masked.shape[1],
        )
        self.rows = _Rows(num_segments, width)
        self._latest: BeamExpansion | None = None
        self._latest_pointers: list[int] = []

    def fits(self, state: BeamState) -> bool:
        # The segments of the batch and their options must not have changed.
        return state is self.state and state.composition is self.composition

    def prepare(self, state: BeamState) -> BeamExpansion:
        # Sets the pointers to the rows of the state and to the rows of the next step, and returns the latter.
        step, latest = self.step, self._latest
        if latest is not None and state.log_probs is latest.log_probs and state.tokens is latest.tokens:
            step.log_probs, step.token_ids, step.parents = self._latest_pointers[:3]
        else:
            # Kept alive because `step` points to them.
            self._given = [np.ascontiguousarray(rows) for rows in (state.log_probs, state.tokens, state.parents)]
            step.log_probs, step.token_ids, step.parents = (pointer(rows) for rows in self._given)
        step.num_rows = state.log_probs.shape[1]
        if self.rows.is_full:
            self.rows = _Rows(*self.rows.shape)
        self._latest, self._latest_pointers = self.rows.take()
        step.next_log_probs, step.next_token_ids, step.next_parents, step.next_steps = self._latest_pointers
        return self._latest

    def finished_hypotheses(self) -> list[tuple[int, int, float, float]]:
        # Returns `RankedStep.finished`.
        columns = (self._finished, self._finished_log_probs, self._finished_eos_log_probs)
        rows = zip(*(column[: self.step.num_finished].tolist() for column in columns), strict=True)
        return [(*place, *log_probs) for place, *log_probs in rows]


class NativeStepBatch:
    """Segments of one running batch; not safe for concurrent use.

    Results of a segment do not depend on the other segments or the number of threads, bit for bit.
    """

    def __init__(
        self,
        network: NativeNetwork,
        sessions: Sessions,
        *,
        num_threads: Callable[[], int],
        shortlist: Shortlist | None = None,
    ) -> None:
        """Create an empty batch; `num_threads` is called before each step and returns the number of threads."""
        self._library, self._sessions = network.library, sessions
        self._shortlist = shortlist
        self._num_threads = num_threads
        self._step, self._search_step = self._library.function("batch_step"), self._library.function("batch_search")
        self._bytes = self._library.function("batch_bytes")
        self._search: _Search | None = None
        self._handle = self._library.new("batch", network.handle)
        self._finalizer = weakref.finalize(self, self._library.function("batch_free"), self._handle)
        num_layers, num_heads = network.architecture.num_decoder_layers, network.architecture.num_heads
        self._cross_shape = (2 * num_layers, num_heads, network.architecture.d_model // num_heads)
        self._source_lengths: list[int] = []
        self._output: StepOutput | None = None
        self.cache_bytes = 0  # bytes of the caches; any thread can read it

    @property
    def num_segments(self) -> int:
        """Number of segments in the batch, B."""
        return len(self._source_lengths)

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, in order."""
        for source in sources:
            length = len(source.source_ids)
            listed = None if self._shortlist is None else self._shortlist.of(source.source_ids)
            tokens = (None, 0) if listed is None else (pointer(listed), len(listed))
            cross = pointer(source.cross), source.cross.size, source.cross.ndim > 1  # more dimensions: from the graph
            self._library.call("batch_add", self._handle, length, *cross, *tokens)
            self._source_lengths.append(length)
        self._output = None

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to each row and return the next candidates with their log-probabilities."""
        num_segments, num_rows = token_ids.shape
        row_candidates = (
            None if isinstance(num_candidates, int) else np.ascontiguousarray(num_candidates, dtype=np.int32)
        )
        shape = num_segments, num_rows, int(np.max(num_candidates))
        if self._output is None or self._output.token_ids.shape != shape:
            self._output = StepOutput(log_probs=np.empty(shape, np.float32), token_ids=np.empty(shape, np.int64))
        token_ids, parents = np.ascontiguousarray(token_ids), np.ascontiguousarray(parents)
        fault = self._step(
            self._handle,
            num_rows,
            pointer(token_ids),
            pointer(parents),
            None if row_candidates is None else pointer(row_candidates),
            shape[2],
            self._num_threads(),
            pointer(self._output.log_probs),
            pointer(self._output.token_ids),
        )
        if fault:
            raise self._library.error()
        self.cache_bytes = self._bytes(self._handle)
        return self._output

    def search_step(self, state: BeamState, *, rules: CandidateRules) -> RankedStep:
        """Run a step and rank the candidates; see `SearchingBatch`."""
        search = self._search
        if search is None or not search.fits(state):
            search = self._search = _Search(state, rules)
        rows, step = search.prepare(state), search.step
        step.num_threads = self._num_threads()
        if self._search_step(self._handle, step):
            raise self._library.error()
        self.cache_bytes = step.num_bytes
        finished = search.finished_hypotheses() if step.num_finished else []
        return RankedStep(rows=rows, finished=finished, may_end=bool(step.may_end))

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Implement `StepBatch.cross_attention`; raises BundleError if the bundle has no attention graph."""
        attention = self._sessions.opened_attention()
        num_arrays, num_heads, head_size = self._cross_shape
        cross = np.empty((num_arrays, 1, num_heads, self._source_lengths[segment], head_size), np.float32)
        self._library.call("batch_cross", self._handle, segment, pointer(cross))
        names = layer_names(("cross_key", "cross_value"), num_arrays // 2)
        return attention.weights(target_ids, dict(zip(names, cross, strict=True)))

    def drop(self, keep: Sequence[int]) -> None:
        """Keep only the segments at the given indices, which become 0, 1, ... in the given order."""
        indices = np.array(keep, dtype=np.int64)
        self._library.call("batch_keep", self._handle, pointer(indices), len(indices))
        self._source_lengths = [self._source_lengths[index] for index in keep]
        self._output = None


class NativeStepModel(EncodingModel):
    """Step model on the native engine; safe to share between threads, each with its own batches."""

    def __init__(
        self, bundle: Bundle, settings: RuntimeSettings, network: NativeNetwork, *, shortlist: Shortlist | None = None
    ) -> None:
        """Open the graphs of a bundle that the library does not replace; raises the errors of `open_sessions`.

        With a shortlist, the candidates of a segment are the tokens of its list. If a step requests more candidates,
        padding with a log-probability of minus infinity follows.
        """
        graphs: tuple[GraphName, ...] = () if network.has_encoder else ("encoder",)
        super().__init__(open_sessions(bundle, settings, graphs=graphs))
        self.network, self._shortlist = network, shortlist
        self._num_threads = settings.num_intra_op_threads
        self._num_lone_threads = num_low_latency_threads(
            settings, self.placement, weights_bytes=self.weights_bytes, num_cores=num_cores()
        )

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Encode sources, independent of each other."""
        if not self.network.has_encoder:
            return super().encode(source_ids)
        return self.network.encode(source_ids, num_threads=self._threads_of_step())

    def new_batch(self) -> NativeStepBatch:
        """Return an empty running batch."""
        num_threads, shortlist = self._threads_of_step, self._shortlist
        return self._registered(
            NativeStepBatch(self.network, self._sessions, num_threads=num_threads, shortlist=shortlist)
        )

    def _threads_of_step(self) -> int:
        return self._num_lone_threads if self._num_running() <= 1 else self._num_threads
