"""Decodes segments in one running batch."""

from collections.abc import Sequence

from dragoman_service.datatypes import Segment
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import StepModel


def decode_all(model: StepModel, segments: Sequence[Segment], *, batch_size: int = 100) -> list[EndedSegment]:
    """Decode segments, `batch_size` at a time; the next segment takes the place of each that ends."""
    batch, waiting = RunningBatch(model), list(enumerate(segments))[::-1]
    running: dict[int, int] = {}
    ended: dict[int, EndedSegment] = {}
    while waiting or running:
        joining = [waiting.pop() for _ in range(min(len(waiting), batch_size - len(running)))]
        handles = batch.start([segment for _, segment in joining]) if joining else ()
        running.update(zip(handles, (index for index, _ in joining), strict=True))
        ended.update({running.pop(segment.segment_id): segment for segment in batch.step().ended})
    return [ended[index] for index in range(len(segments))]
