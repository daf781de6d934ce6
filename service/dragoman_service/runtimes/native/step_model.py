"""`StepModel` on the C++ library of `dragoman-native`, which runs encoder and decoder steps.

ONNX Runtime runs the encoder if the bundle stores encoder weights as floats, and the attention graph.

Steps are not padded and each segment has its own caches, so that segments are added, removed and extended without
copies of the caches of other segments.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from dragoman_service.bundle.architecture import layer_names
from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.beam_search import Interrupt, RankedRun
from dragoman_service.decoding.beam_state import BeamExpansion, BeamState, length_penalties
from dragoman_service.decoding.constraints import CandidateRules
from dragoman_service.decoding.degeneration import LOOP_CHECK_STEPS, MIN_REPEATS
from dragoman_service.decoding.step_model import EncodedSource, FloatArray, IntArray, StepOutput
from dragoman_service.runtimes.native.library import NativeNetwork, SearchRun, pointer
from dragoman_service.runtimes.onnx.encoder import EncodingModel
from dragoman_service.runtimes.onnx.session import GraphName, Sessions, num_low_latency_threads, open_sessions
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.runtimes.shortlist import Shortlist
from dragoman_service.threads import num_cores

_STEPS_OF_ROWS = 16  # steps whose rows are allocated together; a run has at most as many


class _Rows:
    # Arrays for the rows of several steps of a search. The history of the search keeps them.

    def __init__(self, num_segments: int, width: int) -> None:
        shape = (_STEPS_OF_ROWS, num_segments, width)
        self.shape = (num_segments, width)
        self._arrays = (
            *(np.empty(shape, np.float64), np.empty(shape, np.int64)),  # log-probabilities, tokens
            *(np.empty(shape, np.int64), np.empty(shape, np.float32)),  # parents, log-probabilities of the tokens
        )
        size = num_segments * width
        self._addresses = [(pointer(array), size * array.itemsize) for array in self._arrays]
        self._num_taken = 0

    @property
    def num_left(self) -> int:
        return _STEPS_OF_ROWS - self._num_taken

    def pointers(self, offset: int) -> list[int]:
        # Returns the addresses of the four arrays from a step on; 0: the next step, -1: the step taken last.
        return [address + (self._num_taken + offset) * size for address, size in self._addresses]

    def take(self, num_steps: int) -> list[BeamExpansion]:
        # Returns the rows of the next steps.
        first, self._num_taken = self._num_taken, self._num_taken + num_steps
        log_probs, tokens, parents, steps = self._arrays
        return [
            BeamExpansion(log_probs=log_probs[i], tokens=tokens[i], parents=parents[i], steps=steps[i])
            for i in range(first, self._num_taken)
        ]


class _Search:
    # Arguments of a run; all fields that do not change between runs are set once.

    def __init__(self, state: BeamState, rules: CandidateRules, interrupt: Interrupt | None) -> None:
        self.state, self.composition, self._interrupt = state, state.composition, interrupt
        num_segments, width = state.num_segments, state.widest_beam
        num_rows = _STEPS_OF_ROWS * num_segments * width
        self._finished = np.empty((num_rows, 3), np.int64)
        self._finished_log_probs = np.empty(num_rows, np.float64)
        self._finished_eos_log_probs = np.empty(num_rows, np.float32)
        num_hypotheses = np.array([search.num_hypotheses for search in state.searches], np.int64)
        self._best_scores = np.full((num_segments, num_hypotheses.max()), -np.inf)
        penalties = np.zeros((num_segments, 1 + int(state.max_tokens.max())))
        for row, search in zip(penalties, state.searches, strict=True):
            longest = search.max_target_tokens
            row[: longest + 1] = length_penalties(longest, alpha=search.length_penalty)
        # Kept alive because `run` points to them; modified in place.
        self._arrays = {
            "beam_sizes": state.beam_sizes,
            "lengths": state.lengths,
            "min_tokens": state.min_tokens,
            "max_tokens": state.max_tokens,
            "bound_penalties": state.bound_penalties,
            "penalties": penalties,
            "scores_to_beat": state.scores_to_beat,
            "best_scores": self._best_scores,
            "num_hypotheses": num_hypotheses,
            "num_finished": state.num_finished,
            "early_stopping": state.early_stopping,
            "has_coverage": np.array([search.coverage_penalty > 0 for search in state.searches], np.bool_),
            "is_guarded": np.array([search.repetition_guard for search in state.searches], np.bool_),
            "forbidden": np.array(rules.forbidden_tokens, np.int64),
            "placeholders": rules.placeholder_ids,
            "is_masked": np.ascontiguousarray(state.is_masked),
            "min_repeats": np.array(MIN_REPEATS, np.int64),
            "finished": self._finished,
            "finished_log_probs": self._finished_log_probs,
            "finished_eos_log_probs": self._finished_eos_log_probs,
            "step_seconds": (steps_s := np.empty(_STEPS_OF_ROWS, np.float64)),
        }
        self._steps_s = steps_s
        self.run = SearchRun(
            **{name: pointer(array) for name, array in self._arrays.items()},
            interrupt=None if interrupt is None else ctypes.addressof(interrupt),
            eos_id=rules.eos_id,
            width=width,
            num_candidates=rules.num_candidates(width),
            num_forbidden=len(rules.forbidden_tokens),
            num_placeholders=state.is_masked.shape[1],
            max_hypotheses=self._best_scores.shape[1],
            num_penalties=penalties.shape[1],
            num_repeat_sizes=len(MIN_REPEATS),
            loop_interval=LOOP_CHECK_STEPS,
        )
        self._rows = _Rows(num_segments, width)
        self._latest: BeamExpansion | None = None

    def fits(self, state: BeamState) -> bool:
        # The segments of the batch and their options must not have changed.
        return state is self.state and state.composition is self.composition

    def prepare(self, state: BeamState) -> SearchRun:
        # Returns the arguments of a run that starts with the rows of the state.
        run, latest = self.run, self._latest
        if latest is not None and state.log_probs is latest.log_probs and state.tokens is latest.tokens:
            run.log_probs, run.token_ids, run.parents, _ = self._rows.pointers(-1)
        else:
            # Kept alive because `run` points to them.
            self._given = [np.ascontiguousarray(rows) for rows in (state.log_probs, state.tokens, state.parents)]
            run.log_probs, run.token_ids, run.parents = (pointer(rows) for rows in self._given)
        run.num_rows = state.log_probs.shape[1]
        for segment, finished in enumerate(state.finished):
            if finished:
                self._best_scores[segment, : len(finished)] = [hypothesis.score for hypothesis in finished]
        if not self._rows.num_left:
            self._rows = _Rows(*self._rows.shape)
        run.max_steps = self._rows.num_left
        run.next_log_probs, run.next_token_ids, run.next_parents, run.next_steps = self._rows.pointers(0)
        return run

    def outcome(self) -> RankedRun:
        # Returns the outcome of the run.
        run = self.run
        rows = self._rows.take(run.num_steps)
        self._latest = rows[-1]
        finished: Sequence[tuple[int, int, int, float, float]] = ()
        if run.num_ended:
            columns = (self._finished, self._finished_log_probs, self._finished_eos_log_probs)
            found = zip(*(column[: run.num_ended].tolist() for column in columns), strict=True)
            finished = [(*place, *log_probs) for place, *log_probs in found]
        steps_s = self._steps_s[: run.num_steps].tolist()
        return RankedRun(rows=rows, finished=finished, steps_s=steps_s, may_end=bool(run.may_end))


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
        self._step, self._run_search = self._library.function("batch_step"), self._library.function("batch_search")
        self._bytes = self._library.function("batch_bytes")
        self._search: _Search | None = None
        self._handle = self._library.new("batch", network.handle)
        self._finalizer = weakref.finalize(self, self._library.function("batch_free"), self._handle)
        num_layers, num_heads = network.architecture.num_decoder_layers, network.architecture.num_heads
        self._cross_shape = (2 * num_layers, num_heads, network.architecture.d_model // num_heads)
        self._source_lengths: list[int] = []
        self._crosses: list[FloatArray | None] = []  # encoder outputs that the library reads; it copies those of graphs
        self._output: StepOutput | None = None
        self.cache_bytes = 0  # bytes of caches, encoder outputs and temporary values; any thread can read it

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
            cross, is_from_graph = source.cross, source.cross.ndim > 1
            self._library.call("batch_add", self._handle, length, pointer(cross), cross.size, is_from_graph, *tokens)
            self._source_lengths.append(length)
            self._crosses.append(None if is_from_graph else cross)
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

    def search(
        self, state: BeamState, *, rules: CandidateRules, max_seconds: float, interrupt: Interrupt | None
    ) -> RankedRun:
        """Take steps and rank the candidates; see `SearchingBatch`."""
        search = self._search
        if search is None or not search.fits(state):
            search = self._search = _Search(state, rules, interrupt)
        run = search.prepare(state)
        run.num_threads, run.max_seconds = self._num_threads(), max_seconds
        if self._run_search(self._handle, run):
            raise self._library.error()
        self.cache_bytes = run.num_bytes
        return search.outcome()

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
        self._crosses = [self._crosses[index] for index in keep]
        self._output = None
        self.cache_bytes = self._bytes(self._handle)


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

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV caches and temporary values of all batches and of encoder runs, including spare capacity."""
        return super().cache_bytes + self.network.scratch_bytes

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
