from concurrent.futures import CancelledError
from typing import Any

import pytest

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.errors import DeadlineExceededError, InvalidFieldError
from dragoman_service.request import AttentionDetail, TranslationOptions
from dragoman_service.translation.options import RequestBudget
from dragoman_service.translation.settings import TranslationLimits
from tests.fakes import ManualClock

NO_OPTIONS = TranslationOptions()
ALL_HEADS = TranslationOptions(return_attention=AttentionDetail.ALL_HEADS)


def segments(*lengths: int, num_hypotheses: int = 1) -> list[Segment]:
    search = SearchConfig(num_hypotheses=num_hypotheses)
    return [Segment(source_ids=(5,) * length, search=search) for length in lengths]


def count(counted: list[Segment], options: TranslationOptions = NO_OPTIONS, **limits: int) -> None:
    budget = RequestBudget(options, TranslationLimits(**{"max_request_source_tokens": 10**6, **limits}))
    for segment in counted:
        budget.add([segment])


@pytest.mark.parametrize(("lengths", "limit"), [((1, 1, 1, 1), 3), ((5, 6), 10)], ids=["sentences", "tokens"])
def test_segments_are_limited_over_all_texts(lengths: tuple[int, ...], limit: int) -> None:
    limits: dict[str, Any] = {"max_request_sentences": 3, "max_request_source_tokens": 10}

    count(segments(*lengths[:-1]), **limits)
    with pytest.raises(InvalidFieldError, match=f"at most {limit} over all texts") as caught:
        count(segments(*lengths), **limits)

    assert caught.value.field == "texts"


def test_long_sentence_is_rejected_before_it_is_split() -> None:
    budget = RequestBudget(NO_OPTIONS, TranslationLimits(max_request_source_tokens=10))
    budget.add(segments(5))

    budget.check_sentence(5)
    with pytest.raises(InvalidFieldError, match="at most 10 over all texts"):
        budget.check_sentence(6)


def test_limits_apply_to_each_sentence_of_a_document() -> None:
    budget = RequestBudget(NO_OPTIONS, TranslationLimits(max_request_source_tokens=10), is_document=True)
    for _ in range(9):
        budget.check_sentence(10)
        budget.add(segments(5, 5))

    with pytest.raises(InvalidFieldError, match="at most 10 over a sentence") as caught:
        budget.check_sentence(11)
    assert caught.value.field == "text"


def test_forced_lengths_count_as_work() -> None:
    forced = SearchConfig(beam_size=16, min_target_tokens=100, max_target_tokens=200)
    limit = 5 + 16 * 101

    count([Segment(source_ids=(0,) * 5, search=forced)], max_request_decode_cost=limit)
    with pytest.raises(InvalidFieldError, match=f"units of decode cost.* at most {limit}"):
        count([Segment(source_ids=(0,) * 6, search=forced)], max_request_decode_cost=limit)


def test_cancelled_work_ends_at_the_next_check() -> None:
    budget = RequestBudget(NO_OPTIONS, TranslationLimits())
    budget.check_sentence(1)

    budget.cancel()

    with pytest.raises(CancelledError):
        budget.check_sentence(1)


def test_work_ends_at_its_deadline() -> None:
    clock = ManualClock(1.0)
    budget = RequestBudget(NO_OPTIONS, TranslationLimits(), deadline_s=2.0, clock=clock)
    budget.check()

    clock.advance(1.0)

    with pytest.raises(DeadlineExceededError) as caught:
        budget.check()
    assert caught.value.stage == "text"


@pytest.mark.parametrize(
    ("options", "limit", "name"),
    [
        (TranslationOptions(return_alignment=True), 8192, "return_alignment"),
        (TranslationOptions(return_attention=AttentionDetail.AVERAGED), 4096, "return_attention AVERAGED"),
        (ALL_HEADS, 512, "return_attention ALL_HEADS"),
    ],
)
def test_attention_limits_tokens_times_hypotheses(options: TranslationOptions, limit: int, name: str) -> None:
    count(segments(limit // 2, limit // 4, num_hypotheses=1), options)
    count(segments(limit // 4, num_hypotheses=4), options)

    with pytest.raises(InvalidFieldError, match=f"at most {limit} with options.{name}"):
        count(segments(limit // 4, 1, num_hypotheses=4), options)


def test_requests_without_attention_are_not_limited_by_it() -> None:
    count(segments(100_000, num_hypotheses=16))
    count([], ALL_HEADS)
