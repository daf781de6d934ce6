"""`StepModel` on ONNX Runtime, with the encoder, decoder and attention graphs of a bundle."""

from collections.abc import Callable, Sequence

from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.step_model import EncodedSource, FloatArray, IntArray, StepOutput
from dragoman_service.runtimes.onnx.encoder import EncodingModel
from dragoman_service.runtimes.onnx.kv_pool import SegmentBuffers, fitting_length, round_up
from dragoman_service.runtimes.onnx.session import Sessions, open_sessions
from dragoman_service.runtimes.onnx.step_batch import CachingBatch, StepShape
from dragoman_service.runtimes.onnx.step_binding import StepBinding
from dragoman_service.runtimes.onnx_cuda.device_batch import DeviceStepBatch
from dragoman_service.runtimes.settings import RuntimeSettings

_SOURCE_BUCKET = 8  # growth granularity of source positions in the cross-attention buffers


class OnnxStepModel(EncodingModel):
    """Step model on ONNX Runtime; safe to share between threads, each with its own batches."""

    def __init__(self, bundle: Bundle, settings: RuntimeSettings) -> None:
        """Open the graphs of a bundle; raises the errors of `open_sessions`."""
        super().__init__(open_sessions(bundle, settings))

    def new_batch(self) -> "OnnxStepBatch | DeviceStepBatch":
        """Return an empty running batch."""
        if memory := self._sessions.device_memory:
            return self._registered(DeviceStepBatch(self._sessions, memory))
        return self._registered(OnnxStepBatch(self._sessions, is_alone=lambda: self._num_running() == 1))


class OnnxStepBatch(CachingBatch[SegmentBuffers]):
    """Caches and bindings of one running batch on the CPU; not safe for concurrent use.

    Results of a segment do not depend on the other segments, bit for bit, provided that dead rows copy the token and
    parent of a live row of their segment.
    """

    def __init__(self, sessions: Sessions, *, is_alone: Callable[[], bool]) -> None:
        """Create an empty batch; `is_alone` returns whether the other batches of the model are empty."""
        float_type, low_latency = sessions.float_type, sessions.low_latency_decoder
        super().__init__(sessions, lambda names, part_shape, _: SegmentBuffers(names, part_shape, float_type))
        self._has_new_segments = False
        self._is_alone = is_alone
        self._binding = StepBinding(sessions.opened("decoder"), float_type)
        self._low_latency_binding = StepBinding(low_latency, float_type) if low_latency else None

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, in order."""
        first = self.num_segments
        self._release()
        super().start(sources)
        self._has_new_segments = True
        self._fit_buffers()
        for index, source in enumerate(sources, first):
            self._cross.fill(index, source.cross)

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to each row and return the next candidates with their log-probabilities."""
        if self._has_new_segments:
            parents = self._continued(parents)
            self._has_new_segments = False
        slots = self._slots.append(parents)
        binding = self._fitted_binding(self._shape(self.num_segments, token_ids.shape[1], num_candidates))
        output = binding.run(
            token_ids, positions=self._positions, parents=parents, slots=slots, visible=self._slots.visible
        )
        self._positions += 1
        return output

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Implement `StepBatch.cross_attention`; raises BundleError if the bundle has no attention graph."""
        own = (slice(segment, segment + 1), slice(None), slice(int(self._source_lengths[segment])))
        return self._sessions.opened_attention().weights(
            target_ids, {name: array[own] for name, array in self._cross.live().items()}
        )

    def drop(self, keep: Sequence[int]) -> None:
        """Keep only the segments at the given indices, which become 0, 1, ... in the given order."""
        self._release()
        super().drop(keep)
        self._pools.keep_segments(keep)
        self._cross.keep_segments(keep)

    def _fitted_binding(self, shape: StepShape) -> StepBinding:
        binding = self._low_latency_binding if self._low_latency_binding and self._is_alone() else self._binding
        if not binding.is_bound_to(shape):
            self._release()
            self._fit_buffers()
            binding.bind(
                shape,
                layout=(self._pools.layout, self._cross.layout),
                pools=self._pools.live(),
                cross=self._cross.live(),
                source_lengths=self._source_lengths,
            )
        return binding

    def _release(self) -> None:
        self._binding.release()
        if self._low_latency_binding:
            self._low_latency_binding.release()

    def _fit_buffers(self) -> None:
        self._pools.resize(self.num_segments, self._slots.num_slots)
        longest = int(self._source_lengths.max(initial=1))
        needed = round_up(longest, _SOURCE_BUCKET)
        self._cross.resize(self.num_segments, fitting_length(self._cross.length, needed))
