"""Runs the encoder graph, of which all step models of a bundle start their segments."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from service.bundle import layer_names
from service.decoding.step_model import EncodedSource, IntArray
from service.runtime.session import Sessions

_ENCODER_BUCKET = 16
"""New segments whose lengths fall into the same bucket of so many tokens are encoded in one run: measured, a run costs
as much as 13 tokens of padding."""

_ENCODER_TOKENS = 192
"""Most tokens of one encoder run, padding counted; only a single segment may have more. Their states fit into the cache
of a core: measured, twice as many take up to 1.5 times as long a token."""


class Encoder:
    """Encodes sources, those of similar length in one run; may be used from several threads at once."""

    def __init__(self, sessions: Sessions) -> None:
        """Use the encoder of loaded graphs."""
        manifest = sessions.bundle.manifest
        self._session = sessions.encoder
        self._pad_id = manifest.special_ids.pad
        self._outputs = layer_names(("cross_key", "cross_value"), manifest.architecture.num_decoder_layers)

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Return the encoded sources, in order.

        `cross` of each is one contiguous array [2 * L, H, S, D] of its own S tokens: key and value of each of the L
        decoder layers in turn. It does not depend, bit for bit, on the other sources.
        """
        lengths = np.array([len(ids) for ids in source_ids], dtype=np.int32)
        encoded: dict[int, EncodedSource] = {}
        for group in _by_length(lengths):
            padded = np.full((len(group), int(lengths[group].max())), self._pad_id, dtype=np.int64)
            for row, index in zip(padded, group, strict=True):
                row[: lengths[index]] = source_ids[index]
            outputs = self._session.run(self._outputs, {"source_ids": padded, "source_lengths": lengths[group]})
            for place, index in enumerate(group):
                own = [values[place, :, : lengths[index]] for values in outputs]
                encoded[index] = EncodedSource(source_ids=tuple(source_ids[index]), cross=np.stack(own))
        return [encoded[index] for index in range(len(source_ids))]


def _by_length(lengths: NDArray[np.int32]) -> Iterator[IntArray]:
    """Yield the indices of segments that are encoded together."""
    buckets = -(-lengths // _ENCODER_BUCKET)
    for bucket in np.unique(buckets):
        members = np.flatnonzero(buckets == bucket)
        members = members[np.argsort(lengths[members], kind="stable")]
        size = max(1, _ENCODER_TOKENS // (int(bucket) * _ENCODER_BUCKET))
        for begin in range(0, len(members), size):
            yield members[begin : begin + size]
