import pytest
from pydantic import ValidationError

from service.datatypes import AttentionDetail, SearchConfig, Segment, TranslationOptions, TranslationRequest
from service.errors import InvalidFieldError
from service.translate.options import (
    TranslationDefaults,
    TranslationLimits,
    check_attention,
    check_request,
    check_segments,
)


def _segments(*lengths: int, num_hypotheses: int = 1) -> list[Segment]:
    search = SearchConfig(num_hypotheses=num_hypotheses)
    return [Segment(source_ids=(5,) * length, search=search) for length in lengths]


def _request(*texts: str, prefix: str = "", prefixes: tuple[str, ...] = ()) -> TranslationRequest:
    options = TranslationOptions(target_prefix=prefix)
    return TranslationRequest(
        texts=texts, source_language="en", target_language="de", options=options, target_prefixes=prefixes
    )


def _check(request: TranslationRequest, limits: TranslationLimits | None = None) -> None:
    check_request(request, limits or TranslationLimits(), TranslationDefaults(), draw_seed=lambda: 0)


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
        _check(_request(*texts), limits)

    assert str(caught.value) == message


def test_characters_are_code_points() -> None:
    _check(_request("🎉" * 10), TranslationLimits(max_text_characters=10, max_request_characters=10))


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
        check_segments(_segments(*lengths), TranslationOptions(), limits)

    assert str(caught.value) == message


def test_segments_within_the_limits_pass() -> None:
    limits = TranslationLimits(max_request_sentences=2, max_request_source_tokens=10)

    check_segments(_segments(5, 5), TranslationOptions(), limits)


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
def test_a_prefix_beyond_a_limit_is_refused(request_: TranslationRequest, message: str) -> None:
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
    check_attention(_segments(limit // 2, limit // 4, num_hypotheses=1), options)
    check_attention(_segments(limit // 4, num_hypotheses=4), options)

    with pytest.raises(InvalidFieldError) as caught:
        check_attention(_segments(limit // 4, 1, num_hypotheses=4), options)

    value = f"{limit // 4 + 1} source tokens times 4 hypotheses"
    assert str(caught.value) == f"texts: is {value}, must be at most {limit} with {name}"


def test_without_attention_nothing_is_limited_by_it() -> None:
    check_attention(_segments(100_000, num_hypotheses=16), TranslationOptions())
    check_attention([], ALL_HEADS)


def test_an_operator_cannot_allow_more_texts_than_the_interface_promises() -> None:
    with pytest.raises(ValidationError, match="max_texts"):
        TranslationLimits(max_texts=129)


def test_every_setting_is_described() -> None:
    for settings in (TranslationLimits, TranslationDefaults):
        assert all(field.description for field in settings.model_fields.values())
