"""Results of segments decoded before: a sentence that comes again with the same options is not decoded again.

A result does not depend on what else was in the batch, so the answer is the same, bit for bit.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from dragoman_service.datatypes import Segment, SegmentResult, StageTimings

_ENTRY_BYTES: Final = 600
"""Of an entry without tokens and hypotheses. Measured with CPython 3.11 like the next ones, and rounded up."""

_HYPOTHESIS_BYTES: Final = 250
_SOURCE_TOKEN_BYTES: Final = 36
_TARGET_TOKEN_BYTES: Final = 68
"""Token id and log-probability."""


class ResultCache:
    """The results of the segments used last, in bounded memory; not thread-safe: the engine client guards it."""

    def __init__(self, max_bytes: int) -> None:
        """Begin empty; with 0 bytes it stays so."""
        self._max_bytes = max_bytes
        self._results: OrderedDict[Segment, SegmentResult] = OrderedDict()  # the one used last is the last
        self.num_bytes = 0
        """What it takes, estimated."""

    def get(self, segment: Segment) -> SegmentResult | None:
        """Return the result of a segment of this source and these options, as one that took no time, if it is kept."""
        result = self._results.get(segment)
        if result is not None:
            self._results.move_to_end(segment)
        return result

    def put(self, segment: Segment, result: SegmentResult) -> None:
        """Keep a result, unless it is sampled, has attention, or is larger than all that may be kept."""
        size = _num_bytes(segment, result)
        if segment.search.sampling or segment.wants_attention or size > self._max_bytes or segment in self._results:
            return
        self._results[segment] = replace(result, timings=StageTimings())
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= _num_bytes(*self._results.popitem(last=False))


def _num_bytes(segment: Segment, result: SegmentResult) -> int:
    num_target_tokens = sum(len(hypothesis.token_ids) for hypothesis in result.hypotheses)
    tokens = _SOURCE_TOKEN_BYTES * len(segment.source_ids) + _TARGET_TOKEN_BYTES * num_target_tokens
    return _ENTRY_BYTES + _HYPOTHESIS_BYTES * len(result.hypotheses) + tokens
