import pytest

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import BatchBudget, QueuedSegment, select_prefetch, select_segments
from tests.fakes import make_segment

BUDGET = BatchBudget(max_segments=4, max_padded_tokens=40, max_rows=16)


def make_queued(
    num_tokens: int, *, priority: Priority = Priority.INTERACTIVE, beam_size: int = 4, is_encoded: bool = False
) -> QueuedSegment:
    segment = make_segment(*[7] * (num_tokens - 1), beam_size=beam_size)
    return QueuedSegment(segment=segment, context=RequestContext(priority=priority), is_encoded=is_encoded)


@pytest.mark.parametrize(
    ("queued", "running", "selected"),
    [
        ([], (0, 0), []),
        ([make_queued(5) for _ in range(6)], (0, 0), [0, 1, 2, 3]),
        ([make_queued(5) for _ in range(6)], (3, 5), [0]),
        ([make_queued(5) for _ in range(6)], (4, 5), []),
        ([make_queued(8), make_queued(30), make_queued(9), make_queued(2)], (0, 0), [0, 2, 3]),  # similar lengths
        ([make_queued(30), make_queued(2)], (1, 5), []),  # the head is not overtaken
        ([make_queued(50), make_queued(2)], (0, 0), [0]),  # decoded alone
        ([make_queued(5), make_queued(9), make_queued(9), make_queued(5, priority=Priority.BULK)], (1, 5), [0, 1, 2]),
        ([make_queued(5), make_queued(5, beam_size=8), make_queued(5)], (0, 0), [0, 1]),
        ([make_queued(5, beam_size=8), make_queued(5)], (2, 5), []),
        ([make_queued(8), make_queued(8), make_queued(9, is_encoded=True)], (2, 8), [0, 2]),
    ],
)
def test_segments_join_within_the_budget_in_the_order_of_preference(
    queued: list[QueuedSegment], running: tuple[int, int], selected: list[int]
) -> None:
    load = BatchLoad(num_segments=running[0], longest_source=running[1], widest_beam=4)

    joined = select_segments(queued, load, BUDGET)

    assert joined[:1] == queued[: bool(selected)]
    assert sorted(map(queued.index, joined)) == selected


@pytest.mark.parametrize(
    ("lengths", "encoded", "limits", "selected"),
    [
        ([5] * 6, [], (6, 3), [0, 1, 2]),
        ([5] * 6, [], (2, 3), [0, 1]),
        ([200, 100], [400], (4, 4), [1]),  # at most 512 tokens
        ([200, 100], [], (4, 4), [0, 1]),
    ],
)
def test_next_segments_of_the_queue_are_encoded_ahead(
    lengths: list[int], encoded: list[int], limits: tuple[int, int], selected: list[int]
) -> None:
    queued = [make_queued(length) for length in lengths]
    window, limit = limits

    ahead = select_prefetch(queued, [make_queued(length) for length in encoded], window=window, limit=limit)

    assert ahead == [queued[index] for index in selected]


def test_segment_is_encoded_ahead_once() -> None:
    queued = [make_queued(5) for _ in range(4)]
    queued[0].is_prefetched = True

    assert select_prefetch(queued, queued[:1], window=3, limit=2) == queued[1:3]
