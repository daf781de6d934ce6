import pytest

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.request import RequestRecord
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.scheduling.batch_policy import BatchBudget, fair_share, select_ahead, select_segments
from tests.fakes import make_segment

BUDGET = BatchBudget(max_segments=4, max_padded_tokens=40, max_rows=16)
EMPTY = BatchLoad()


def make_queued(num_tokens: int, *, priority: Priority = Priority.INTERACTIVE, beam_size: int = 4) -> QueuedSegment:
    segment = make_segment(*[7] * (num_tokens - 1), beam_size=beam_size)
    return QueuedSegment(segment=segment, context=RequestRecord(priority=priority))


def make_load(num_segments: int, longest_source: int) -> BatchLoad:
    return BatchLoad(num_segments=num_segments, longest_source=longest_source, widest_beam=4)


def test_segments_join_within_the_budget() -> None:
    queued = [make_queued(5) for _ in range(6)]

    assert select_segments(queued, EMPTY, BUDGET) == queued[:4]
    assert select_segments(queued, make_load(3, 5), BUDGET) == queued[:1]
    assert select_segments(queued, make_load(4, 5), BUDGET) == select_segments([], EMPTY, BUDGET) == []


def test_segments_of_similar_length_are_preferred() -> None:
    head, long, similar, short = make_queued(8), make_queued(30), make_queued(9), make_queued(2)

    assert select_segments([head, long, similar, short], EMPTY, BUDGET) == [head, similar, short]


def test_head_that_does_not_fit_is_not_overtaken() -> None:
    queued = [make_queued(30), make_queued(2)]

    assert select_segments(queued, make_load(1, 5), BUDGET) == []


def test_segment_beyond_the_budget_is_decoded_alone() -> None:
    huge, small = make_queued(50), make_queued(2)

    assert select_segments([huge, small], EMPTY, BUDGET) == [huge]


def test_interactive_segments_join_before_bulk_segments_of_a_better_length() -> None:
    head, bulk = make_queued(5), make_queued(5, priority=Priority.BULK)
    others = [make_queued(9) for _ in range(3)]

    assert select_segments([head, *others, bulk], EMPTY, BUDGET) == [head, *others]


def test_wide_beam_does_not_widen_the_rows_of_others() -> None:
    queued = [make_queued(5), make_queued(5, beam_size=8), make_queued(5)]

    assert select_segments(queued, EMPTY, BUDGET) == queued[:2]
    assert select_segments(queued[1:], make_load(2, 5), BUDGET) == []


def test_encoded_segments_join_before_segments_of_a_better_length() -> None:
    head, similar, encoded = make_queued(8), make_queued(8), make_queued(9)
    encoded.is_encoded = True

    assert select_segments([head, similar, encoded], make_load(2, 8), BUDGET) == [head, encoded]


def test_next_segments_of_the_queue_are_encoded_ahead() -> None:
    queued = [make_queued(5) for _ in range(6)]

    assert select_ahead(queued, [], window=6, limit=3) == queued[:3]
    assert select_ahead(queued, [], window=2, limit=3) == queued[:2]


def test_segment_is_encoded_ahead_once() -> None:
    queued = [make_queued(5) for _ in range(4)]
    queued[0].is_sent_ahead = True

    assert select_ahead(queued, queued[:1], window=3, limit=2) == queued[1:3]


def test_tokens_that_are_encoded_ahead_are_limited() -> None:
    encoded, long, short = make_queued(400), make_queued(200), make_queued(100)

    assert select_ahead([long, short], [encoded], window=4, limit=4) == [short]
    assert select_ahead([long, short], [], window=4, limit=4) == [long, short]


@pytest.mark.parametrize(
    ("num_queued", "num_running", "num_batches", "share"), [(8, 0, 2, 4), (1, 1, 2, 1), (1, 3, 4, 1), (5, 4, 2, 5)]
)
def test_fair_share_spreads_segments_over_batches(
    num_queued: int, num_running: int, num_batches: int, share: int
) -> None:
    assert fair_share(num_queued + num_running, num_batches=num_batches) == share
