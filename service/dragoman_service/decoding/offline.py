"""Decoding of a list of segments without a scheduler."""

import math
from collections.abc import Callable, Sequence

from dragoman_service.datatypes import Segment, SegmentResult, StageTimings
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import StepModel


def decode_segments(
    model: StepModel, segments: Sequence[Segment], *, batch_size: int, on_ended: Callable[[], object] = lambda: None
) -> list[SegmentResult]:
    """Return one result per segment, in order; `on_ended` is called for each as it ends."""
    results = dict[int, SegmentResult]()
    order = sorted(range(len(segments)), key=lambda index: -len(segments[index].source_ids))
    batch, running = RunningBatch(model), dict[int, int]()
    while order or running:
        if order and batch.num_segments <= batch_size // 2:  # joining one by one would run the encoder for each
            joining, order = order[: batch_size - len(running)], order[batch_size - len(running) :]
            running.update(zip(batch.start([segments[index] for index in joining]), joining, strict=True))
        for ended in batch.step(max_seconds=math.inf).ended:
            results[running.pop(ended.segment_id)] = SegmentResult(
                hypotheses=ended.hypotheses,
                num_steps=ended.num_steps,
                timings=StageTimings(),
                degeneration=ended.degeneration,
            )
            on_ended()
    return [results[index] for index in range(len(segments))]
