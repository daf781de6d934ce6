"""Result cache: a segment that was decoded before with the same options is answered without decoding.

A result does not depend on its batch, so the cached result is bit-identical.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from dragoman_service.datatypes import Segment, SegmentResult, StageTimings

# Measured with CPython 3.11 and rounded up.
_ENTRY_BYTES: Final = 600  # without tokens and hypotheses
_HYPOTHESIS_BYTES: Final = 250
_SOURCE_TOKEN_BYTES: Final = 36
_TARGET_TOKEN_BYTES: Final = 68  # token id and log-probability


class ResultCache:
    """Least recently used results in bounded memory; not thread-safe: the scheduler holds its lock."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._results: OrderedDict[Segment, SegmentResult] = OrderedDict()  # least recently used first
        self.num_bytes = 0  # estimated

    def get(self, segment: Segment) -> SegmentResult | None:
        """Return the cached result of a segment with the same source and options, with zero timings."""
        result = self._results.get(segment)
        if result is not None:
            self._results.move_to_end(segment)
        return result

    def put(self, segment: Segment, result: SegmentResult) -> None:
        """Cache a result, unless it is sampled, has attention, or exceeds the memory of the cache."""
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
