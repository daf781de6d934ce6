import math
from typing import Any

import pytest
from pydantic import ValidationError

from service.datatypes import SearchConfig, Segment, TranslationOptions
from service.errors import InvalidFieldError
from service.text.limits import (
    TranslationDefaults,
    TranslationLimits,
    check_segments,
    check_target_limit,
    check_texts,
    search_config,
)

DEFAULTS = TranslationDefaults()


def _segments(*lengths: int) -> list[Segment]:
    return [Segment(source_ids=(5,) * length, search=SearchConfig()) for length in lengths]


def test_an_option_that_is_absent_gets_the_default() -> None:
    search = search_config(TranslationOptions(), TranslationDefaults(beam_size=2, length_penalty=1.5))

    assert search == SearchConfig(beam_size=2, length_penalty_alpha=1.5, max_target_tokens=512)


def test_options_at_their_bounds_are_accepted() -> None:
    low = TranslationOptions(beam_size=1, num_hypotheses=1, length_penalty_alpha=0.0, min_target_tokens=0)
    high = TranslationOptions(
        beam_size=16, num_hypotheses=16, length_penalty_alpha=5.0, min_target_tokens=511, max_target_tokens=512
    )

    assert search_config(low, DEFAULTS).length_penalty_alpha == 0.0
    assert search_config(high, DEFAULTS).min_target_tokens == 511


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"beam_size": 0}, "beam_size", "is 0, must be 1 to 16"),
        ({"beam_size": 17}, "beam_size", "is 17, must be 1 to 16"),
        ({"num_hypotheses": 0}, "num_hypotheses", "is 0, must be 1 to 4, the beam size"),
        ({"num_hypotheses": 5}, "num_hypotheses", "is 5, must be 1 to 4, the beam size"),
        ({"length_penalty_alpha": -0.1}, "length_penalty", "is -0.1, must be 0 to 5"),
        ({"length_penalty_alpha": 5.1}, "length_penalty", "is 5.1, must be 0 to 5"),
        ({"length_penalty_alpha": math.nan}, "length_penalty", "is nan, must be 0 to 5"),
        ({"length_penalty_alpha": math.inf}, "length_penalty", "is inf, must be 0 to 5"),
        ({"max_target_tokens": 0}, "max_target_tokens", "is 0, must be 1 to 512"),
        ({"max_target_tokens": 513}, "max_target_tokens", "is 513, must be 1 to 512"),
        ({"min_target_tokens": -1}, "min_target_tokens", "is -1, must be 0 to 511, below options.max_target_tokens"),
        (
            {"min_target_tokens": 9, "max_target_tokens": 9},
            "min_target_tokens",
            "is 9, must be 0 to 8, below options.max_target_tokens",
        ),
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
        check_target_limit(TranslationOptions(**options), limit=100, model="m/1")

    assert str(caught.value) == message


def test_target_limits_within_those_of_the_model_pass() -> None:
    check_target_limit(TranslationOptions(), limit=1, model="m/1")
    check_target_limit(TranslationOptions(min_target_tokens=99, max_target_tokens=100), limit=100, model="m/1")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((), "texts: is 0 texts, must be 1 to 3 texts"),
        (("a",) * 4, "texts: is 4 texts, must be 1 to 3 texts"),
        (("a", "b" * 11), "texts[1]: is 11 characters, must be at most 10"),
        (("a" * 9,) * 3, "texts: is 27 characters, must be at most 20 over all texts"),
        (("a", "b", "\ud800"), "texts[2]: is a text with a lone surrogate, must be Unicode text"),
    ],
)
def test_texts_beyond_a_limit_are_refused(texts: tuple[str, ...], message: str) -> None:
    limits = TranslationLimits(max_texts=3, max_text_characters=10, max_request_characters=20)

    with pytest.raises(InvalidFieldError) as caught:
        check_texts(texts, limits)

    assert str(caught.value) == message


def test_characters_are_code_points() -> None:
    check_texts(("🎉" * 10,), TranslationLimits(max_text_characters=10, max_request_characters=10))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((1, 1, 1, 1), "texts: is 4 sentences, must be at most 3 over all texts"),
        ((5, 6), "texts: is 11 source tokens, must be at most 10 over all texts"),
    ],
)
def test_what_the_texts_came_apart_into_is_limited(lengths: tuple[int, ...], message: str) -> None:
    limits = TranslationLimits(max_request_sentences=3, max_request_source_tokens=10)

    with pytest.raises(InvalidFieldError) as caught:
        check_segments(_segments(*lengths), limits)

    assert str(caught.value) == message


def test_segments_within_the_limits_pass() -> None:
    check_segments(_segments(5, 5), TranslationLimits(max_request_sentences=2, max_request_source_tokens=10))


def test_an_operator_cannot_allow_more_texts_than_the_interface_promises() -> None:
    with pytest.raises(ValidationError, match="max_texts"):
        TranslationLimits(max_texts=129)


def test_every_setting_is_described() -> None:
    for settings in (TranslationLimits, TranslationDefaults):
        assert all(field.description for field in settings.model_fields.values())
