"""Base of the step models: the encoder graph, limits, and the number of running batches."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import layer_names
from dragoman_service.bundle.files import Bundle
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.decoding.step_model import EncodedSource, IntArray, ModelLimits, Placeholder, VocabularySpec
from dragoman_service.runtimes.onnx.session import Sessions
from dragoman_service.runtimes.onnx_cuda.device import DeviceMemory, DeviceSource
from dragoman_service.text.tokenizer import open_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Cost model and limits of encoder batches."""

    run_tokens: int  # fixed cost of an encoder run, in tokens
    min_split_difference: int  # sources whose lengths differ by this number of tokens or more do not share a run
    max_tokens: int  # maximum number of tokens of a run, including padding; a single source can exceed it


ON_CPU = Grouping(run_tokens=10, min_split_difference=16, max_tokens=192)
"""Measured with the bundled `en-de` model: the fixed cost of a run is 7 tokens. The first run after a decoder step
costs about 40 tokens more, independent of the grouping, because the step evicts encoder weights from the CPU cache. The
states of 192 tokens fit into the cache of a core; with 384 tokens, the time per token is up to 1.5 times as long."""

ON_GPU = Grouping(run_tokens=1000, min_split_difference=4096, max_tokens=4096)
"""Estimated, not measured: the launches of a run take at least half a millisecond, a token takes well below a
microsecond, and 4096 tokens occupy all multiprocessors."""


def group_by_length(lengths: NDArray[np.int32], grouping: Grouping = ON_CPU) -> Iterator[IntArray]:
    """Yield the indices of the sources of each run; the grouping minimizes the total cost, including padding."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order].tolist()
    costs, begins = [0], [0]  # for the first i sources: minimum cost, and start of the last group
    for end, longest in enumerate(ordered, 1):
        costs.append(costs[end - 1] + grouping.run_tokens + longest)
        begins.append(end - 1)
        for begin in range(end - 2, -1, -1):
            num_tokens = (end - begin) * longest
            if num_tokens > grouping.max_tokens or longest - ordered[begin] >= grouping.min_split_difference:
                break
            cost = costs[begin] + grouping.run_tokens + num_tokens
            if cost < costs[end]:
                costs[end], begins[end] = cost, begin
    end = len(ordered)
    while end:
        yield order[begins[end] : end]
        end = begins[end]


class _RegisteredBatch(Protocol):
    @property
    def num_segments(self) -> int: ...

    @property
    def cache_bytes(self) -> int: ...


_Batch = TypeVar("_Batch", bound=_RegisteredBatch)


class EncodingModel:
    """Base of the step models: encodes sources and tracks running batches; safe to share between threads."""

    def __init__(self, sessions: Sessions) -> None:
        self.limits = model_limits(sessions.bundle.manifest, _placeholders(sessions.bundle))
        self.placement, self.weights_bytes = sessions.placement, sessions.weights_bytes
        """Chosen device and precision, and the size of the graph and weight files."""
        self._sessions = sessions
        num_layers = sessions.bundle.manifest.architecture.num_decoder_layers
        self._cross_names = layer_names(("cross_key", "cross_value"), num_layers)
        self._batches: tuple[weakref.ref[_RegisteredBatch], ...] = ()
        self._lock = threading.Lock()  # guards changes of `_batches`

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV caches of all batches, including spare capacity."""
        return sum(batch.cache_bytes for batch in self._living())

    @property
    def copied_bytes(self) -> tuple[int, int]:
        """Bytes copied from host to device and from device to host; 0 on the CPU."""
        memory = self._sessions.device_memory
        return (memory.uploaded_bytes, memory.downloaded_bytes) if memory else (0, 0)

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Return the encoded sources, in order; sources of similar length share a run.

        `cross` is a contiguous array [2 * L, H, S, D] without padding: keys and values of layer 0, then of layer 1, and
        so on. On a GPU it is a `DeviceSource`. On the CPU it does not depend on the other sources, bit for bit.
        """
        pad_id, memory = self._sessions.bundle.manifest.special_ids.pad, self._sessions.device_memory
        lengths = np.array([len(ids) for ids in source_ids], dtype=np.int32)
        encoded: dict[int, EncodedSource] = {}
        for group in group_by_length(lengths, ON_GPU if memory else ON_CPU):
            padded = np.full((len(group), int(lengths[group].max())), pad_id, dtype=np.int64)
            for row, index in zip(padded, group, strict=True):
                row[: lengths[index]] = source_ids[index]
            run = partial(self._run_on_device, memory) if memory else self._run
            for index, cross in zip(group, run(padded, lengths[group]), strict=True):
                encoded[index] = EncodedSource(source_ids=tuple(source_ids[index]), cross=cross)
        return [encoded[index] for index in range(len(source_ids))]

    def _run(self, source_ids: IntArray, lengths: NDArray[np.int32]) -> Iterator[NDArray[Any]]:
        outputs = self._sessions.opened("encoder").run(
            self._cross_names, {"source_ids": source_ids, "source_lengths": lengths}
        )
        num_heads, _, head_size = outputs[0].shape[1:]
        for place, length in enumerate(lengths):
            cross = np.empty((len(outputs), num_heads, length, head_size), dtype=outputs[0].dtype)
            for layer, values in enumerate(outputs):
                cross[layer] = values[place, :, :length]
            yield cross

    def _run_on_device(
        self, memory: DeviceMemory, source_ids: IntArray, lengths: NDArray[np.int32]
    ) -> Iterator[DeviceSource]:
        num_sources, num_positions = source_ids.shape
        shape = self._sessions.bundle.manifest.architecture
        group = memory.zeros((len(self._cross_names), num_sources, shape.num_key_heads, num_positions, shape.head_size))
        inputs = {
            "source_ids": memory.upload(source_ids),
            "source_lengths": memory.upload(lengths),
        }
        outputs = {name: group.part(group.shape[1:], index=(index,)) for index, name in enumerate(self._cross_names)}
        memory.bind(self._sessions.opened("encoder"), inputs, outputs).run()
        for index in range(num_sources):
            yield DeviceSource(group=group, index=index)

    def _registered(self, batch: _Batch) -> _Batch:
        # Returns the batch, registered with the model until it is garbage-collected.
        with self._lock:
            self._batches = (*map(weakref.ref, self._living()), weakref.ref(batch))
        return batch

    def _living(self) -> list[_RegisteredBatch]:
        return [batch for reference in self._batches if (batch := reference()) is not None]

    def _num_running(self) -> int:
        return sum([batch.num_segments > 0 for batch in self._living()])


def _placeholders(bundle: Bundle) -> tuple[Placeholder, ...]:
    # Reserved pieces are placeholders that no source contains.
    tokenization = bundle.manifest.tokenization
    if not tokenization.placeholders and not tokenization.reserved:
        return ()
    tokenizer = open_tokenizer(bundle)
    reserved = (Placeholder(source_id=-1, target_id=target_id) for _, target_id in tokenizer.reserved_ids)
    return (*starmap(Placeholder, tokenizer.placeholder_ids), *reserved)


def model_limits(manifest: Manifest, placeholders: tuple[Placeholder, ...] = ()) -> ModelLimits:
    """Return vocabulary and maximum lengths of a model; `placeholders` are required only for search."""
    ids, limits = manifest.special_ids, manifest.limits
    return ModelLimits(
        vocabulary=VocabularySpec(
            size=manifest.architecture.vocabulary_size,
            pad_id=ids.pad,
            bos_id=ids.bos,
            eos_id=ids.eos,
            unk_id=ids.unk,
            placeholders=placeholders,
        ),
        max_source_tokens=limits.max_source_tokens,
        max_target_tokens=limits.max_target_tokens,
    )
