import math

import pytest

from dragoman.option_ranges import OptionRange, option_range, option_ranges
from dragoman.v1 import translation_pb2 as pb

OPTIONS = {**option_ranges(pb.DecodingOptions), **option_ranges(pb.SamplingOptions)}
NUMBERS = [option for option in OPTIONS.values() if option.type in (int, float)]


@pytest.mark.parametrize(
    ("path", "type_", "minimum", "maximum", "default"),
    [
        ("options.beam_size", int, 1, 16, 4),
        ("options.length_penalty", float, 0, 5, 0.6),
        ("options.sampling.temperature", float, 0.01, 10, 1),
        ("options.sampling.seed", int, 0, 2**63 - 1, None),
    ],
)
def test_range_of_number(path: str, type_: type, minimum: float, maximum: float, default: float | None) -> None:
    option = option_range(path)

    assert (option.type, option.minimum, option.maximum, option.default) == (type_, minimum, maximum, default)
    assert type(option.minimum) is type(option.maximum) is type_


def test_lengths_of_lists_and_strings() -> None:
    texts, patterns = option_range("texts"), option_range("options.protection.patterns")

    assert (texts.is_list, texts.min_items, texts.max_items, texts.max_characters) == (True, 1, 128, None)
    assert (patterns.max_items, patterns.min_characters, patterns.max_characters) == (16, 2, 64)
    assert option_range("model").max_items is None


def test_unknown_path_is_rejected() -> None:
    with pytest.raises(KeyError):
        option_range("options.beam_width")


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.name)
def test_every_number_has_bounds_and_a_meaning_of_absence(option: OptionRange) -> None:
    assert option.contains(option.maximum)
    assert option.contains(option.minimum) is not option.exclusive_minimum
    assert not option.contains(option.minimum - 1)
    assert not option.contains(math.nextafter(option.maximum, math.inf) + 1)
    assert not option.contains(math.nan)
    assert option.default is not None or option.if_absent
    if option.default is not None:
        assert isinstance(option.default, int | float)
        assert option.contains(option.default)


def test_every_enum_has_a_default_and_every_number_can_be_absent() -> None:
    for message in (pb.TranslateRequest, pb.DecodingOptions, pb.SamplingOptions):
        for field in message.DESCRIPTOR.fields:
            option = option_ranges(message)[field.name]
            if field.enum_type is not None and not field.is_repeated:
                assert option.default in field.enum_type.values_by_name
            if option.type in (int, float):
                assert field.has_presence, field.full_name


@pytest.mark.parametrize(
    ("path", "description"),
    [
        ("options.beam_size", "1 to 16; default 4, or `num_hypotheses` if that is larger"),
        ("options.sampling.top_k", "1 to 1000; default: all tokens"),
        ("options.sampling.top_p", "above 0, at most 1; default 1"),
        ("options.sampling.temperature", "0.01 to 10; default 1"),
        ("options.sampling.seed", "0 to 2^63 - 1; default: a new seed for each request"),
        ("options.repetition_guard", "default true"),
        ("options.format", "default TEXT_FORMAT_PLAIN"),
        ("options.protection.patterns", "at most 16 items; 2 to 64 characters"),
    ],
)
def test_description_of_option(path: str, description: str) -> None:
    assert option_range(path).description == description
