import math
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dragoman_service.datatypes import SamplingConfig, SearchConfig, Segment
from dragoman_service.errors import DeadlineExceededError, InvalidFieldError
from dragoman_service.request import (
    AttentionDetail,
    ProtectionOptions,
    SamplingOptions,
    Term,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.translation.options import (
    TextBudget,
    TranslationDefaults,
    TranslationLimits,
    check_request,
    fit_to_model,
    new_seed,
    search_config,
)

DEFAULTS = TranslationDefaults()
PIECES = {"a": 4, "b": 5}


def fitted(options: TranslationOptions, *, max_target_tokens: int = 100) -> SearchConfig:
    model: Any = SimpleNamespace(tokenizer=SimpleNamespace(token_id=PIECES.get), max_target_tokens=max_target_tokens)
    return fit_to_model(SearchConfig(), options, model, name="m/1", has_attention=True)


def test_an_option_that_is_absent_gets_the_default() -> None:
    search = search_config(TranslationOptions(), TranslationDefaults(beam_size=2, length_penalty=1.5))

    assert search == SearchConfig(beam_size=2, length_penalty=1.5, max_target_tokens=512, repetition_guard=True)


@pytest.mark.parametrize(("default", "expected"), [(4, 6), (8, 8)])
def test_default_beam_is_at_least_as_wide_as_the_hypotheses_wanted(default: int, expected: int) -> None:
    search = search_config(TranslationOptions(num_hypotheses=6), TranslationDefaults(beam_size=default))

    assert (search.beam_size, search.num_hypotheses) == (expected, 6)


def test_options_at_their_bounds_are_accepted() -> None:
    low = TranslationOptions(
        beam_size=1,
        num_hypotheses=1,
        length_penalty=0.0,
        min_target_tokens=0,
        no_repeat_ngram_size=0,
        repetition_penalty=1.0,
        coverage_penalty=0.0,
    )
    high = TranslationOptions(
        beam_size=16,
        num_hypotheses=16,
        length_penalty=5.0,
        min_target_tokens=511,
        max_target_tokens=512,
        no_repeat_ngram_size=16,
        repetition_penalty=10.0,
        coverage_penalty=5.0,
    )

    assert search_config(low, DEFAULTS).length_penalty == 0.0
    assert search_config(high, DEFAULTS) == SearchConfig(
        beam_size=16,
        num_hypotheses=16,
        length_penalty=5.0,
        min_target_tokens=511,
        max_target_tokens=512,
        no_repeat_ngram_size=16,
        repetition_penalty=10.0,
        coverage_penalty=5.0,
        repetition_guard=True,
    )


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"beam_size": 0}, "beam_size", "is 0, must be 1 to 16"),
        ({"beam_size": 17}, "beam_size", "is 17, must be 1 to 16"),
        ({"num_hypotheses": 0}, "num_hypotheses", "is 0, must be 1 to 16"),
        ({"num_hypotheses": 17}, "num_hypotheses", "is 17, must be 1 to 16"),
        ({"beam_size": 4, "num_hypotheses": 5}, "num_hypotheses", "is 5, must be 1 to 4, the beam size"),
        ({"length_penalty": -0.1}, "length_penalty", "is -0.1, must be 0 to 5"),
        ({"length_penalty": 5.1}, "length_penalty", "is 5.1, must be 0 to 5"),
        ({"length_penalty": math.nan}, "length_penalty", "is nan, must be 0 to 5"),
        ({"length_penalty": math.inf}, "length_penalty", "is inf, must be 0 to 5"),
        ({"max_target_tokens": 0}, "max_target_tokens", "is 0, must be 1 to 512"),
        ({"max_target_tokens": 513}, "max_target_tokens", "is 513, must be 1 to 512"),
        ({"min_target_tokens": -1}, "min_target_tokens", "is -1, must be 0 to 511, below options.max_target_tokens"),
        (
            {"min_target_tokens": 9, "max_target_tokens": 9},
            "min_target_tokens",
            "is 9, must be 0 to 8, below options.max_target_tokens",
        ),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size", "is -1, must be 0 to 16"),
        ({"no_repeat_ngram_size": 17}, "no_repeat_ngram_size", "is 17, must be 0 to 16"),
        ({"repetition_penalty": 0.9}, "repetition_penalty", "is 0.9, must be 1 to 10"),
        ({"repetition_penalty": 10.1}, "repetition_penalty", "is 10.1, must be 1 to 10"),
        ({"repetition_penalty": math.nan}, "repetition_penalty", "is nan, must be 1 to 10"),
        ({"repetition_penalty": math.inf}, "repetition_penalty", "is inf, must be 1 to 10"),
        ({"coverage_penalty": -0.1}, "coverage_penalty", "is -0.1, must be 0 to 5"),
        ({"coverage_penalty": 5.1}, "coverage_penalty", "is 5.1, must be 0 to 5"),
        ({"coverage_penalty": math.nan}, "coverage_penalty", "is nan, must be 0 to 5"),
        ({"coverage_penalty": -math.inf}, "coverage_penalty", "is -inf, must be 0 to 5"),
        ({"sampling": SamplingOptions(), "beam_size": 1}, "beam_size", "is 1, must be absent with options.sampling"),
        ({"sampling": SamplingOptions(), "num_hypotheses": 0}, "num_hypotheses", "is 0, must be 1 to 16"),
        ({"sampling": SamplingOptions(), "num_hypotheses": 17}, "num_hypotheses", "is 17, must be 1 to 16"),
        ({"sampling": SamplingOptions(temperature=0.0)}, "sampling.temperature", "is 0.0, must be 0.01 to 10"),
        ({"sampling": SamplingOptions(temperature=10.1)}, "sampling.temperature", "is 10.1, must be 0.01 to 10"),
        ({"sampling": SamplingOptions(temperature=math.nan)}, "sampling.temperature", "is nan, must be 0.01 to 10"),
        ({"sampling": SamplingOptions(temperature=math.inf)}, "sampling.temperature", "is inf, must be 0.01 to 10"),
        ({"sampling": SamplingOptions(top_k=0)}, "sampling.top_k", "is 0, must be 1 to 1000"),
        ({"sampling": SamplingOptions(top_k=1001)}, "sampling.top_k", "is 1001, must be 1 to 1000"),
        ({"sampling": SamplingOptions(top_p=0.0)}, "sampling.top_p", "is 0.0, must be above 0, at most 1"),
        ({"sampling": SamplingOptions(top_p=1.1)}, "sampling.top_p", "is 1.1, must be above 0, at most 1"),
        ({"sampling": SamplingOptions(top_p=math.nan)}, "sampling.top_p", "is nan, must be above 0, at most 1"),
        ({"sampling": SamplingOptions(seed=-1)}, "sampling.seed", "is -1, must be 0 to 2^63 - 1"),
        ({"sampling": SamplingOptions(seed=2**63)}, "sampling.seed", f"is {2**63}, must be 0 to 2^63 - 1"),
    ],
)
def test_an_option_out_of_range_is_named_with_its_range(options: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        search_config(TranslationOptions(**options), DEFAULTS)

    assert str(caught.value) == f"options.{field}: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_target_tokens": 101}, "options.max_target_tokens: is 101, must be 1 to 100, the limit of model m/1"),
        (
            {"min_target_tokens": 100},
            "options.min_target_tokens: is 100, must be 0 to 99, below the limit of model m/1",
        ),
    ],
)
def test_the_limit_of_the_model_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        fitted(TranslationOptions(**options))

    assert str(caught.value) == message


def test_target_limits_within_those_of_the_model_pass() -> None:
    fitted(TranslationOptions(), max_target_tokens=1)
    fitted(TranslationOptions(min_target_tokens=99, max_target_tokens=100))


def test_what_is_drawn_is_as_wide_as_what_is_asked_for() -> None:
    options = TranslationOptions(
        sampling=SamplingOptions(temperature=0.5, top_k=3, top_p=0.9, seed=7), num_hypotheses=16
    )

    search = search_config(options, DEFAULTS)

    assert search.sampling == SamplingConfig(temperature=0.5, top_k=3, top_p=0.9, seed=7)
    assert (search.beam_size, search.num_hypotheses) == (16, 16)


def test_sampling_at_its_bounds_is_accepted() -> None:
    low = SamplingOptions(temperature=0.01, top_k=1, top_p=1e-9, seed=0)
    high = SamplingOptions(temperature=10.0, top_k=1000, top_p=1.0, seed=2**63 - 1)

    for sampling in (low, high):
        assert search_config(TranslationOptions(sampling=sampling), DEFAULTS).beam_size == 1


def test_a_seed_is_drawn_for_a_request_that_names_none() -> None:
    options = TranslationOptions(sampling=SamplingOptions())

    assert search_config(options, DEFAULTS, draw_seed=lambda: 11).sampling == SamplingConfig(seed=11)


def test_seeds_are_within_their_range_and_not_always_the_same() -> None:
    seeds = {new_seed() for _ in range(20)}

    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("choice", "default", "expected"),
    [(None, True, True), (None, False, False), (False, True, False), (True, False, True)],
)
def test_guard_and_early_stopping_are_the_callers_choice_or_else_the_operators(
    choice: bool | None, default: bool, expected: bool
) -> None:
    defaults = TranslationDefaults(repetition_guard=default, early_stopping=default)

    search = search_config(TranslationOptions(repetition_guard=choice, early_stopping=choice), defaults)

    assert (search.repetition_guard, search.early_stopping) == (expected, expected)


@pytest.mark.parametrize("choice", [None, True])
def test_what_is_drawn_at_random_is_not_guarded(choice: bool | None) -> None:
    options = TranslationOptions(repetition_guard=choice, sampling=SamplingOptions())

    assert not search_config(options, DEFAULTS).repetition_guard


def test_pieces_become_the_ids_that_must_not_occur() -> None:
    assert fitted(TranslationOptions(suppressed_tokens=("b", "a", "b"))).suppressed_tokens == {4, 5}
    assert fitted(TranslationOptions(suppressed_tokens=())).suppressed_tokens == frozenset()
    assert fitted(TranslationOptions(suppressed_tokens=("a",) * 64)).suppressed_tokens == {4}


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (
            ("a", "c", "d"),
            "options.suppressed_tokens[1]: is 'c', must be a piece of the vocabulary of model m/1 that is not special",
        ),
        (("a",) * 65, "options.suppressed_tokens: is 65 pieces, must be at most 64"),
    ],
)
def test_a_piece_that_there_is_no_token_for_is_named(pieces: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        fitted(TranslationOptions(suppressed_tokens=pieces))

    assert str(caught.value) == message


def _segments(*lengths: int, num_hypotheses: int = 1) -> list[Segment]:
    search = SearchConfig(num_hypotheses=num_hypotheses)
    return [Segment(source_ids=(5,) * length, search=search) for length in lengths]


def _request(*texts: str, prefix: str = "", prefixes: tuple[str, ...] = ()) -> TranslationRequest:
    options = TranslationOptions(target_prefix=prefix)
    return TranslationRequest(
        texts=texts, source_language="en", target_language="de", options=options, target_prefixes=prefixes
    )


def _count(segments: Sequence[Segment], options: TranslationOptions, limits: TranslationLimits | None = None) -> None:
    budget = TextBudget(options, limits or TranslationLimits(max_request_source_tokens=10**6))
    for segment in segments:
        budget.add([segment])


def _check(request: TranslationRequest, limits: TranslationLimits | None = None) -> None:
    check_request(request, limits or TranslationLimits(), TranslationDefaults(), draw_seed=lambda: 0)


DOCUMENTS = "TranslateDocument (`translate_document`, `--document`) takes up to 99"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((), "texts: is 0 texts, must be 1 to 3 texts"),
        (("a",) * 4, "texts: is 4 texts, must be 1 to 3 texts"),
        (("a", "b" * 11), f"texts[1]: is 11 characters, must be at most 10; {DOCUMENTS}"),
        (("a" * 9,) * 3, "texts: is 27 characters, must be at most 20 over all texts"),
        (("a", "b", "\ud800"), "texts[2]: is a text with a lone surrogate, must be Unicode text"),
    ],
)
def test_texts_beyond_a_limit_are_rejected(texts: tuple[str, ...], message: str) -> None:
    limits = TranslationLimits(
        max_texts=3, max_text_characters=10, max_request_characters=20, max_document_characters=99
    )

    with pytest.raises(InvalidFieldError) as caught:
        _check(_request(*texts), limits)

    assert str(caught.value) == message


def test_characters_are_code_points() -> None:
    _check(_request("🎉" * 10), TranslationLimits(max_text_characters=10, max_request_characters=10))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((1, 1, 1, 1), "texts: is 4 or more sentences, must be at most 3 over all texts"),
        ((5, 6), "texts: is 11 or more source tokens, must be at most 10 over all texts"),
    ],
)
def test_what_the_texts_came_apart_into_is_limited(lengths: tuple[int, ...], message: str) -> None:
    limits = TranslationLimits(max_request_sentences=3, max_request_source_tokens=10)

    with pytest.raises(InvalidFieldError) as caught:
        _count(_segments(*lengths), TranslationOptions(), limits)

    assert str(caught.value) == message


def test_segments_within_the_limits_pass() -> None:
    limits = TranslationLimits(max_request_sentences=2, max_request_source_tokens=10)

    _count(_segments(5, 5), TranslationOptions(), limits)


def test_a_sentence_that_is_too_long_is_rejected_before_it_is_split() -> None:
    budget = TextBudget(TranslationOptions(), TranslationLimits(max_request_source_tokens=10))
    budget.add(_segments(5))

    budget.check_sentence(5)
    with pytest.raises(InvalidFieldError, match="is 11 or more source tokens, must be at most 10 over all texts"):
        budget.check_sentence(6)


def test_of_a_document_each_sentence_has_the_limits_of_a_request() -> None:
    budget = TextBudget(TranslationOptions(), TranslationLimits(max_request_source_tokens=10), is_document=True)
    for _ in range(9):
        budget.check_sentence(10)
        budget.add(_segments(5, 5))

    with pytest.raises(
        InvalidFieldError, match="text: is 11 or more source tokens, must be at most 10 over a sentence"
    ):
        budget.check_sentence(11)


def test_forced_lengths_count_as_work() -> None:
    limits = TranslationLimits(max_request_work_tokens=5 + 16 * 101)
    forced = SearchConfig(beam_size=16, min_target_tokens=100, max_target_tokens=200)

    _count([Segment(source_ids=(0,) * 5, search=forced)], TranslationOptions(), limits)
    with pytest.raises(InvalidFieldError, match=r"work tokens .*, must be at most 1621 over all texts"):
        _count([Segment(source_ids=(0,) * 6, search=forced)], TranslationOptions(), limits)


def test_work_that_is_no_longer_wanted_ends() -> None:
    budget = TextBudget(TranslationOptions(), TranslationLimits())
    budget.check_sentence(1)

    budget.cancel()

    for look in (budget.check, partial(budget.check_sentence, 1)):
        with pytest.raises(CancelledError):
            look()


def test_work_behind_its_deadline_ends() -> None:
    now_s = 1.0
    budget = TextBudget(TranslationOptions(), TranslationLimits(), deadline_s=2.0, clock=lambda: now_s)
    budget.check()

    now_s = 2.0

    with pytest.raises(DeadlineExceededError) as caught:
        budget.check()
    assert caught.value.stage == "text"


def test_stars_of_all_patterns_are_counted_together() -> None:
    patterns = tuple(f"{name}*]*]" for name in "abcd")

    def check(*own: str) -> None:
        options = TranslationOptions(protection=ProtectionOptions(patterns=own))
        _check(replace(_request("a"), options=options))

    check(*patterns)
    with pytest.raises(InvalidFieldError) as caught:
        check(*patterns, "e*")

    assert str(caught.value) == "options.protection.patterns: is 9 `*`, must be at most 8 in all patterns together"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (_request("a", prefix="b" * 1001), "options.target_prefix: is 1001 characters, must be at most 1000"),
        (
            _request("a", prefix="\ud800"),
            "options.target_prefix: is a text with a lone surrogate, must be Unicode text",
        ),
        (_request("a", "b", prefixes=("c",)), "target_prefixes: is 1 prefixes, must be none or 2"),
        (_request("a", "b", prefixes=("", "c" * 1001)), "target_prefixes[1]: is 1001 characters, must be at most 1000"),
        (
            _request("a", prefixes=("\udfff",)),
            "target_prefixes[0]: is a text with a lone surrogate, must be Unicode text",
        ),
    ],
)
def test_a_prefix_beyond_a_limit_is_rejected(request_: TranslationRequest, message: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        _check(request_)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    "request_", [_request("a"), _request("a", prefix="é" * 1000), _request("a", prefixes=("é" * 1000,))]
)
def test_a_prefix_within_the_limits_passes(request_: TranslationRequest) -> None:
    _check(request_)


ALIGNMENT = TranslationOptions(return_alignment=True)
AVERAGED = TranslationOptions(return_attention=AttentionDetail.AVERAGED)
ALL_HEADS = TranslationOptions(return_attention=AttentionDetail.ALL_HEADS)


@pytest.mark.parametrize(
    ("options", "limit", "name"),
    [
        (ALIGNMENT, 8192, "options.return_alignment"),
        (AVERAGED, 4096, "options.return_attention AVERAGED"),
        (ALL_HEADS, 512, "options.return_attention ALL_HEADS"),
    ],
)
def test_attention_is_limited_by_what_an_answer_would_hold(options: TranslationOptions, limit: int, name: str) -> None:
    _count(_segments(limit // 2, limit // 4, num_hypotheses=1), options)
    _count(_segments(limit // 4, num_hypotheses=4), options)

    with pytest.raises(InvalidFieldError) as caught:
        _count(_segments(limit // 4, 1, num_hypotheses=4), options)

    value = f"{limit // 4 + 1} or more source tokens times 4 hypotheses"
    assert str(caught.value) == f"texts: is {value}, must be at most {limit} with {name}"


def test_without_attention_nothing_is_limited_by_it() -> None:
    _count(_segments(100_000, num_hypotheses=16), TranslationOptions())
    _count([], ALL_HEADS)


def test_an_operator_cannot_allow_more_texts_than_the_interface_promises() -> None:
    with pytest.raises(ValidationError, match="max_texts"):
        TranslationLimits(max_texts=129)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"protection": ProtectionOptions(patterns=("ok", "x"))}, "options.protection.patterns[1]"),
        ({"protection": ProtectionOptions(patterns=("x" * 65,))}, "options.protection.patterns[0]"),
        ({"protection": ProtectionOptions(patterns=("*a",))}, "options.protection.patterns[0]"),
        ({"protection": ProtectionOptions(patterns=("a**",))}, "options.protection.patterns[0]"),
        ({"protection": ProtectionOptions(patterns=("a b",))}, "options.protection.patterns[0]"),
        ({"terms": (Term(source=""),)}, "options.terms[0].source"),
        ({"terms": (Term(source="x" * 201),)}, "options.terms[0].source"),
        ({"terms": (Term(source="x", target="y" * 201),)}, "options.terms[0].target"),
        ({"terms": (Term(source=" x"),)}, "options.terms[0].source"),
        ({"terms": (Term(source="x"), Term(source="x", target="y"))}, "options.terms[1].source"),
    ],
)
def test_patterns_and_terms_that_cannot_be_are_rejected(options: dict[str, Any], field: str) -> None:
    request = TranslationRequest(
        texts=("a",), source_language="en", target_language="de", options=TranslationOptions(**options)
    )

    with pytest.raises(InvalidFieldError) as caught:
        _check(request)

    assert caught.value.field == field
