import math
from collections.abc import Iterator
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dragoman.option_ranges import OptionRange, option_range, option_ranges
from dragoman.v1 import translation_pb2 as pb
from dragoman_service.datatypes import SamplingConfig, SearchConfig
from dragoman_service.errors import InvalidFieldError
from dragoman_service.request import (
    NumberFormat,
    ProtectedKind,
    ProtectionOptions,
    SamplingOptions,
    Term,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.translation.options import (
    check_request,
    fit_to_model,
    new_seed,
    search_config,
    with_default_protection,
)
from dragoman_service.translation.settings import TranslationDefaults, TranslationLimits

DEFAULTS = TranslationDefaults()
PIECES = {"a": 4, "b": 5}

# Classes whose fields have the names of a message, and the path to it.
MESSAGES: dict[type, tuple[str, Any]] = {
    TranslationOptions: ("options.", pb.DecodingOptions),
    SamplingOptions: ("options.sampling.", pb.SamplingOptions),
    ProtectionOptions: ("options.protection.", pb.ProtectionOptions),
    Term: ("options.terms.", pb.Term),
}
RENAMED = {"enabled": "is_enabled"}


def make_request(*texts: str, options: TranslationOptions | None = None, **fields: Any) -> TranslationRequest:
    return TranslationRequest(
        texts=texts or ("a",),
        options=options or TranslationOptions(),
        **{"source_language": "en", "target_language": "de", **fields},
    )


def check(request: TranslationRequest, limits: TranslationLimits | None = None) -> SearchConfig:
    return check_request(request, limits or TranslationLimits(), DEFAULTS, draw_seed=lambda: 0).search


def rejected_field(request: TranslationRequest, limits: TranslationLimits | None = None) -> str:
    with pytest.raises(InvalidFieldError) as caught:
        check(request, limits)
    return caught.value.field


def with_option(kind: type, name: str, value: Any) -> TranslationRequest:
    changed: Any = kind(**{"source": "x", name: value}) if kind is Term else kind(**{name: value})
    options = {
        TranslationOptions: changed,
        SamplingOptions: TranslationOptions(sampling=changed),
        ProtectionOptions: TranslationOptions(protection=changed),
        Term: TranslationOptions(terms=(changed,)),
    }[kind]
    return make_request(options=options)


def declared_options() -> Iterator[tuple[type, str, OptionRange]]:
    for kind, (_, message) in MESSAGES.items():
        for name, option in option_ranges(message).items():
            yield kind, RENAMED.get(name, name), option


def boundary_values(name: str, option: OptionRange) -> tuple[list[Any], list[Any]]:
    """Return values at the bounds of an option, and values beyond them."""
    valid: list[Any] = []
    invalid: list[Any] = []
    if option.max_items is not None:
        item: Any = Term(source="x") if option.type is dict else next(iter(ProtectedKind))
        item = "x" * max(option.min_characters, 1) if option.type is str and "kinds" not in name else item
        repeated = tuple(replace(item, source=f"x{i}") if option.type is dict else item for i in range(200))
        return [(), repeated[: option.max_items]], [repeated[: option.max_items + 1]]
    if option.type in (int, float):
        step = 1 if option.type is int else 0.001
        valid = [option.minimum + step * option.exclusive_minimum, option.maximum]
        invalid = [option.minimum - step * (not option.exclusive_minimum), option.maximum + step]
        invalid += [math.nan, math.inf, -math.inf] if option.type is float else []
    elif option.max_characters is not None:
        valid = ["x" * max(option.min_characters, 1), "x" * option.max_characters]
        invalid = ["x" * (option.max_characters + 1), "\ud800", *[""] * (option.min_characters > 0)]
    return valid, invalid


ALL_OPTIONS = list(declared_options())
IDS = [f"{kind.__name__}.{name}" for kind, name, _ in ALL_OPTIONS]


def test_every_declared_option_is_a_field_of_the_request() -> None:
    for kind, (_, message) in MESSAGES.items():
        declared = {RENAMED.get(name, name) for name in option_ranges(message)}
        assert {field.name for field in fields(kind)} == declared


@pytest.mark.parametrize(("kind", "name", "option"), ALL_OPTIONS, ids=IDS)
def test_options_are_accepted_within_their_range_only(kind: type, name: str, option: OptionRange) -> None:
    valid, invalid = boundary_values(name, option)
    beam: dict[str, Any] = {"beam_size": 16} if name == "num_hypotheses" else {}

    for value in valid:
        request = with_option(kind, name, value)
        check(replace(request, options=replace(request.options, **beam)))
    for value in invalid:
        path = MESSAGES[kind][0].replace("terms.", "terms[0].") + name
        assert rejected_field(with_option(kind, name, value)) == path


def test_range_is_part_of_the_error() -> None:
    with pytest.raises(InvalidFieldError, match=r"options\.beam_size.* 17.* 1 to 16"):
        check(make_request(options=TranslationOptions(beam_size=17)))


CHOSEN: dict[str, Any] = {
    "beam_size": 3,
    "num_hypotheses": 2,
    "length_penalty": 0.0,
    "min_target_tokens": 5,
    "max_target_tokens": 9,
    "no_repeat_ngram_size": 4,
    "repetition_penalty": 2.0,
    "coverage_penalty": 0.5,
    "early_stopping": True,
    "repetition_guard": False,
}


SEARCHES = {
    "declared defaults": ({}, {}, {"repetition_guard": True}),
    "defaults of the settings": (
        {},
        {"beam_size": 2, "length_penalty": 1.5},
        {"beam_size": 2, "length_penalty": 1.5, "repetition_guard": True},
    ),
    "all options": (CHOSEN, {}, CHOSEN),
    "default beam is widened": (
        {"num_hypotheses": 6},
        {"beam_size": 4, "repetition_guard": False},
        {"beam_size": 6, "num_hypotheses": 6},
    ),
    "default beam is wide enough": (
        {"num_hypotheses": 6},
        {"beam_size": 8, "repetition_guard": False},
        {"beam_size": 8, "num_hypotheses": 6},
    ),
    "default is enabled": ({}, {"early_stopping": True, "repetition_guard": False}, {"early_stopping": True}),
    "default is disabled by the request": (
        {"early_stopping": False, "repetition_guard": False},
        {"early_stopping": True},
        {},
    ),
    "default is enabled by the request": (
        {"repetition_guard": True},
        {"repetition_guard": False},
        {"repetition_guard": True},
    ),
    "sampling draws all hypotheses": (
        {"sampling": SamplingOptions(temperature=0.5, top_k=3, top_p=0.9, seed=7), "num_hypotheses": 16},
        {},
        {
            "sampling": SamplingConfig(temperature=0.5, top_k=3, top_p=0.9, seed=7),
            "num_hypotheses": 16,
            "beam_size": 16,
        },
    ),
    "sampling with a drawn seed and without guard": (
        {"sampling": SamplingOptions(), "repetition_guard": True},
        {},
        {"sampling": SamplingConfig(seed=11), "beam_size": 1},
    ),
}


@pytest.mark.parametrize(("options", "defaults", "expected"), SEARCHES.values(), ids=SEARCHES)
def test_search_has_the_options_of_the_request_then_the_defaults(
    options: dict[str, Any], defaults: dict[str, Any], expected: dict[str, Any]
) -> None:
    search = search_config(TranslationOptions(**options), TranslationDefaults(**defaults), draw_seed=lambda: 11)

    assert search == SearchConfig(**{"max_target_tokens": 512, **expected})


def test_settings_have_the_defaults_of_the_contract() -> None:
    for name in TranslationDefaults.model_fields.keys() - {"unprotected_kinds", "number_format"}:
        assert getattr(DEFAULTS, name) == option_range(f"options.{name}").default
    default = option_range("options.number_format").default
    assert default == f"NUMBER_FORMAT_{NumberFormat(DEFAULTS.number_format).name}"
    assert DEFAULTS.unprotected_kinds == ()


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ([], ()),
        (["number"], (ProtectedKind.NUMBER,)),
        (["ESCAPE", " Icu "], (ProtectedKind.ESCAPE, ProtectedKind.ICU)),
        ("number, accelerator", (ProtectedKind.NUMBER, ProtectedKind.ACCELERATOR)),
        ("", ()),
        ((ProtectedKind.URL,), (ProtectedKind.URL,)),
        *((each.name, (each,)) for each in ProtectedKind),
    ],
)
def test_unprotected_kinds_are_names_of_kinds(given: Any, kinds: tuple[ProtectedKind, ...]) -> None:
    assert TranslationDefaults(unprotected_kinds=given).unprotected_kinds == kinds


@pytest.mark.parametrize("given", [["numbers"], "number,x", [7], 7, [" "], {"number": True}])
def test_unknown_kinds_are_rejected(given: Any) -> None:
    with pytest.raises(ValidationError, match="unprotected_kinds"):
        TranslationDefaults(unprotected_kinds=given)


def protected(defaults: dict[str, Any], **options: Any) -> TranslationOptions:
    return with_default_protection(TranslationOptions(**options), TranslationDefaults(**defaults))


NUMBER, ESCAPE = ProtectedKind.NUMBER, ProtectedKind.ESCAPE
LESS: dict[str, Any] = {"unprotected_kinds": ("number", "escape")}


@pytest.mark.parametrize(
    ("defaults", "protection", "disabled"),
    [
        ({}, {}, set()),
        ({}, {"disabled_kinds": frozenset({ESCAPE})}, {ESCAPE}),
        (LESS, {}, {NUMBER, ESCAPE}),
        (LESS, {"enabled_kinds": frozenset({NUMBER})}, {ESCAPE}),
        (LESS, {"enabled_kinds": frozenset({NUMBER, ESCAPE})}, set()),
        (LESS, {"disabled_kinds": frozenset({ProtectedKind.URL})}, {NUMBER, ESCAPE, ProtectedKind.URL}),
        (LESS, {"enabled_kinds": frozenset({NUMBER}), "disabled_kinds": frozenset({NUMBER})}, {NUMBER, ESCAPE}),
        *(({"unprotected_kinds": (kind.name,)}, {}, {kind}) for kind in ProtectedKind),
        *(({"unprotected_kinds": (kind.name,)}, {"enabled_kinds": frozenset({kind})}, set()) for kind in ProtectedKind),
    ],
)
def test_kinds_of_the_settings_are_unprotected_unless_the_request_enables_them(
    defaults: dict[str, Any], protection: dict[str, Any], disabled: set[ProtectedKind]
) -> None:
    options = protected(defaults, protection=ProtectionOptions(**protection))

    assert options.protection.disabled_kinds == disabled
    assert options.protection.enabled_kinds == protection.get("enabled_kinds", frozenset())


@pytest.mark.parametrize("default", NumberFormat)
@pytest.mark.parametrize("chosen", [None, *NumberFormat])
def test_number_format_of_the_request_takes_precedence(default: NumberFormat, chosen: NumberFormat | None) -> None:
    options = protected({"number_format": default.value}, number_format=chosen, beam_size=2)

    assert options == TranslationOptions(number_format=chosen or default, beam_size=2)


def test_search_does_not_depend_on_protection() -> None:
    assert search_config(TranslationOptions(), TranslationDefaults(number_format="as_written", **LESS)) == (
        search_config(TranslationOptions(), DEFAULTS)
    )


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"beam_size": 4, "num_hypotheses": 5}, "num_hypotheses", "1 to 4"),
        ({"min_target_tokens": 9, "max_target_tokens": 9}, "min_target_tokens", "0 to 8"),
        ({"sampling": SamplingOptions(), "beam_size": 1}, "beam_size", "absent"),
    ],
)
def test_contradicting_options_are_rejected(options: dict[str, Any], field: str, limit: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"{field}.* {limit}") as caught:
        search_config(TranslationOptions(**options), DEFAULTS)

    assert caught.value.field == f"options.{field}"


def test_drawn_seeds_are_valid_and_differ() -> None:
    seeds = {new_seed() for _ in range(20)}

    assert len(seeds) == 20
    assert all(map(option_range("options.sampling.seed").contains, seeds))


def fitted(options: TranslationOptions, *, max_target_tokens: int = 100) -> SearchConfig:
    model: Any = SimpleNamespace(tokenizer=SimpleNamespace(token_id=PIECES.get), max_target_tokens=max_target_tokens)
    return fit_to_model(SearchConfig(), options, model, name="m/1", has_attention=True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_target_tokens": 101}, "options.max_target_tokens"),
        ({"min_target_tokens": 100}, "options.min_target_tokens"),
        ({"suppressed_tokens": ("a", "c", "d")}, "options.suppressed_tokens[1]"),
    ],
)
def test_options_beyond_a_limit_of_the_model_are_rejected_with_its_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldError, match="m/1") as caught:
        fitted(TranslationOptions(**options))

    assert caught.value.field == field


def test_options_within_the_limits_of_the_model_are_accepted() -> None:
    assert fitted(TranslationOptions(), max_target_tokens=1) == SearchConfig()
    assert fitted(TranslationOptions(min_target_tokens=99, max_target_tokens=100)) == SearchConfig()
    assert fitted(TranslationOptions(suppressed_tokens=("b", "a", "b"))) == SearchConfig(
        suppressed_tokens=frozenset({4, 5})
    )


@pytest.mark.parametrize(
    ("texts", "fields", "field"),
    [
        (("a",) * 4, {}, "texts"),
        (("a", "b" * 11), {}, "texts[1]"),
        (("a" * 9,) * 3, {}, "texts"),
        (("a", "b", "\ud800"), {}, "texts[2]"),
        (("a", "b"), {"target_prefixes": ("c",)}, "target_prefixes"),
        (("a", "b"), {"target_prefixes": ("", "c" * 1001)}, "target_prefixes[1]"),
        (("a", "b"), {"target_prefixes": ("\udfff", "")}, "target_prefixes[0]"),
        (("a",), {"source_language": "x" * 36}, "source_language"),
        (("a",), {"target_language": ""}, "target_language"),
        (("a",), {"model": "x" * 129}, "model"),
        (("a",), {"pivot_languages": ("de",) * 9}, "pivot_languages"),
        (("a",), {"pivot_languages": ("de", "")}, "pivot_languages[1]"),
        (("a",), {"texts": ()}, "texts"),
    ],
)
def test_texts_and_other_fields_beyond_a_limit_are_rejected(
    texts: tuple[str, ...], fields: dict[str, Any], field: str
) -> None:
    limits = TranslationLimits(max_texts=3, max_text_characters=10, max_request_characters=20)

    assert rejected_field(replace(make_request(*texts), **fields), limits) == field


def test_too_long_text_is_directed_to_documents() -> None:
    limits = TranslationLimits(max_text_characters=10, max_document_characters=99)

    with pytest.raises(InvalidFieldError, match=r"TranslateDocument .* 99"):
        check(make_request("a" * 11), limits)


def test_limits_count_code_points() -> None:
    limits = TranslationLimits(max_text_characters=10, max_request_characters=11)

    check(make_request("🎉" * 10, "b", target_prefixes=("é" * 1000, "")), limits)


def test_settings_cannot_exceed_the_contract() -> None:
    with pytest.raises(ValidationError, match="max_texts"):
        TranslationLimits(max_texts=129)
    with pytest.raises(ValidationError, match="beam_size"):
        TranslationDefaults(beam_size=17)


def test_stars_are_limited_over_all_patterns() -> None:
    patterns = tuple(f"{name}*]*]" for name in "abcd")

    check(make_request(options=TranslationOptions(protection=ProtectionOptions(patterns=patterns))))
    more = TranslationOptions(protection=ProtectionOptions(patterns=(*patterns, "e*")))
    assert rejected_field(make_request(options=more)) == "options.protection.patterns"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(
            ({"protection": ProtectionOptions(patterns=("ok", pattern))}, "protection.patterns[1]")
            for pattern in ("*a", "a**", "a b")
        ),
        ({"terms": (Term(source=" x"),)}, "terms[0].source"),
        ({"terms": (Term(source="x"), Term(source="x", target="y"))}, "terms[1].source"),
    ],
)
def test_invalid_patterns_and_sources_of_terms_are_rejected(options: dict[str, Any], field: str) -> None:
    assert rejected_field(make_request(options=TranslationOptions(**options))) == f"options.{field}"
