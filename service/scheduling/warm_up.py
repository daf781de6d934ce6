"""The first segments that the batches of a model decode, before its decoding threads begin."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from service.datatypes import Priority, Segment, SegmentResult
from service.scheduling.pending import PendingSegment
from service.scheduling.worker import Worker


def warm_up(
    workers: Sequence[Worker], segments: Sequence[Segment], *, clock: Callable[[], float]
) -> list[SegmentResult]:
    """Let the batches of all decoding threads decode the same segments, all at once; return the results of one.

    At once, as the memory that runs take at the same time is kept for the next ones.

    Args:
        workers: not yet run by anybody else.
        segments: first one alone, then all together: the smallest batch, and a larger one that shrinks.
        clock: of the scheduler.

    Raises:
        EngineError: if the model cannot decode them.
    """
    with ThreadPoolExecutor(len(workers), thread_name_prefix="warm-up") as pool:
        decode = partial(_decode_twice, segments=segments, clock=clock)
        results, *_ = pool.map(decode, workers)
    return results


def _decode_twice(worker: Worker, *, segments: Sequence[Segment], clock: Callable[[], float]) -> list[SegmentResult]:
    _decode(worker, segments[:1], clock=clock)
    return _decode(worker, segments, clock=clock)


def _decode(worker: Worker, segments: Sequence[Segment], *, clock: Callable[[], float]) -> list[SegmentResult]:
    group = [
        PendingSegment(
            segment=segment, priority=Priority.INTERACTIVE, caller="", admitted_at_s=clock(), deadline_s=math.inf
        )
        for segment in segments
    ]
    worker.hand_over(group)
    while worker.num_segments:
        worker.exchange()
    return [pending.future.result() for pending in group]
