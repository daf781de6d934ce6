import pytest

from dragoman_service.datatypes import Priority
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.admission_queue import QueuedSegment
from dragoman_service.scheduling.batch_policy import BatchBudget, fair_share, select_ahead, select_segments
from tests.fakes import make_segment

BUDGET = BatchBudget(max_segments=4, max_padded_tokens=40, max_rows=16)
EMPTY = BatchLoad()


def make_pending(num_tokens: int, *, priority: Priority = Priority.INTERACTIVE, beam_size: int = 4) -> QueuedSegment:
    segment = make_segment(*[7] * (num_tokens - 1), beam_size=beam_size)
    return QueuedSegment(segment=segment, context=RequestContext(priority=priority))


def make_load(num_segments: int, longest_source: int) -> BatchLoad:
    return BatchLoad(num_segments=num_segments, longest_source=longest_source, widest_beam=4)


def test_nothing_joins_from_an_empty_queue() -> None:
    assert select_segments([], EMPTY, BUDGET) == []


def test_all_join_while_the_budget_lasts() -> None:
    waiting = [make_pending(5) for _ in range(6)]

    assert select_segments(waiting, EMPTY, BUDGET) == waiting[:4]
    assert select_segments(waiting, make_load(3, 5), BUDGET) == waiting[:1]
    assert select_segments(waiting, make_load(4, 5), BUDGET) == []


def test_segments_of_a_length_like_the_head_s_are_preferred() -> None:
    head, long, similar, short = make_pending(8), make_pending(30), make_pending(9), make_pending(2)

    assert select_segments([head, long, similar, short], EMPTY, BUDGET) == [head, similar, short]


def test_a_head_that_does_not_fit_yet_is_not_overtaken() -> None:
    waiting = [make_pending(30), make_pending(2)]

    assert select_segments(waiting, make_load(1, 5), BUDGET) == []


def test_a_segment_beyond_the_budget_is_decoded_alone() -> None:
    huge, small = make_pending(50), make_pending(2)

    assert select_segments([huge, small], EMPTY, BUDGET) == [huge]


def test_interactive_segments_join_before_bulk_ones_of_a_better_length() -> None:
    head, bulk = make_pending(5), make_pending(5, priority=Priority.BULK)
    others = [make_pending(9) for _ in range(3)]

    assert select_segments([head, *others, bulk], EMPTY, BUDGET) == [head, *others]


def test_a_wide_beam_does_not_widen_the_rows_of_many() -> None:
    waiting = [make_pending(5), make_pending(5, beam_size=8), make_pending(5)]

    assert select_segments(waiting, EMPTY, BUDGET) == waiting[:2]
    assert select_segments(waiting[1:], make_load(2, 5), BUDGET) == []


def test_segments_that_are_encoded_already_join_before_those_of_a_better_length() -> None:
    head, similar, encoded = make_pending(8), make_pending(8), make_pending(9)
    encoded.is_encoded = True

    assert select_segments([head, similar, encoded], make_load(2, 8), BUDGET) == [head, encoded]


def test_the_next_of_the_queue_are_encoded_ahead() -> None:
    waiting = [make_pending(5) for _ in range(6)]

    assert select_ahead(waiting, [], window=6, limit=3) == waiting[:3]
    assert select_ahead(waiting, [], window=2, limit=3) == waiting[:2]


def test_no_segment_is_sent_ahead_twice() -> None:
    waiting = [make_pending(5) for _ in range(4)]
    waiting[0].is_sent_ahead = True

    assert select_ahead(waiting, waiting[:1], window=3, limit=2) == waiting[1:3]


def test_what_is_kept_encoded_has_a_bound_in_tokens() -> None:
    kept, long, short = make_pending(400), make_pending(200), make_pending(100)

    assert select_ahead([long, short], [kept], window=4, limit=4) == [short]
    assert select_ahead([long, short], [], window=4, limit=4) == [long, short]


@pytest.mark.parametrize(
    ("num_waiting", "num_running", "num_batches", "share"), [(8, 0, 2, 4), (1, 1, 2, 1), (1, 3, 4, 1), (5, 4, 2, 5)]
)
def test_the_fair_share_spreads_segments_over_batches(
    num_waiting: int, num_running: int, num_batches: int, share: int
) -> None:
    assert fair_share(num_waiting + num_running, num_batches=num_batches) == share
