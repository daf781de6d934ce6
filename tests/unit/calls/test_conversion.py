import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service import request
from dragoman_service.bundle.architecture import Limits
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.calls import conversion
from dragoman_service.datatypes import (
    AlignmentLink,
    CrossAttention,
    Priority,
    SentenceAlignment,
    Span,
    StageTimings,
    TextHypothesis,
    TranslatedSentence,
    Translation,
    TranslationResult,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.models.model import LanguageGroup, ModelState, ModelStatus
from dragoman_service.translation.settings import TranslationLimits
from tests.unit.text.text_fakes import make_manifest


def make_request(**fields: Any) -> pb.TranslateRequest:
    return pb.TranslateRequest(**{"texts": ["Hi."], "source_language": "en", "target_language": "de", **fields})


def from_options(**fields: Any) -> request.TranslationOptions:
    return conversion.from_translate_request(make_request(options=pb.DecodingOptions(**fields))).options


def test_all_fields_of_a_request_are_converted() -> None:
    message = make_request(
        texts=["Hi.", ""],
        model="m/1",
        request_id="r1",
        options={"beam_size": 2},
        target_prefixes=["", "Ha"],
    )

    assert conversion.from_translate_request(message) == request.TranslationRequest(
        texts=("Hi.", ""),
        source_language="en",
        target_language="de",
        model="m/1",
        options=request.TranslationOptions(beam_size=2),
        target_prefixes=("", "Ha"),
    )


def test_all_options_are_converted() -> None:
    wanted = request.TranslationOptions(
        beam_size=8,
        num_hypotheses=3,
        length_penalty=0.25,
        min_target_tokens=1,
        max_target_tokens=9,
        no_repeat_ngram_size=4,
        repetition_penalty=1.25,
        coverage_penalty=0.5,
        early_stopping=True,
        repetition_guard=False,
        sampling=request.SamplingOptions(top_k=5),
        target_prefix="Ha",
        suppressed_tokens=("▁Ha", "."),
        split_sentences=False,
        long_sentences=request.LongSentencePolicy.REFUSE,
        return_scores=True,
        return_tokens=True,
        return_alignment=True,
        return_attention=request.AttentionDetail.ALL_HEADS,
        format=request.TextFormat.XML,
        protection=request.ProtectionOptions(
            is_enabled=False,
            enabled_kinds=frozenset({request.ProtectedKind.COLON}),
            disabled_kinds=frozenset({request.ProtectedKind.PATH}),
            patterns=("[[*]]",),
        ),
        terms=(request.Term(source="a", target="b", is_case_sensitive=True, is_part_of_word=True),),
        glossary="it",
        number_format=request.NumberFormat.AS_WRITTEN,
    )

    fields = dataclasses.asdict(wanted)
    assert all(fields[field.name] != field.default for field in dataclasses.fields(wanted))
    fields |= {
        "format": pb.TEXT_FORMAT_XML,
        "protection": pb.ProtectionOptions(
            enabled=False,
            enabled_kinds=[pb.PROTECTED_KIND_COLON],
            disabled_kinds=[pb.PROTECTED_KIND_PATH],
            patterns=["[[*]]"],
        ),
        "terms": [pb.Term(source="a", target="b", is_case_sensitive=True, is_part_of_word=True)],
        "long_sentences": pb.LONG_SENTENCE_POLICY_REFUSE,
        "return_attention": pb.ATTENTION_DETAIL_ALL_HEADS,
        "number_format": pb.NUMBER_FORMAT_AS_WRITTEN,
    }
    assert from_options(**fields) == wanted


def members(enum: Any, kind: Any, default: Any) -> list[tuple[int, Any]]:
    """Return the numbers of a protobuf enum, each with its member of `kind`."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    return [(0, default), *((number, kind[name.removeprefix(prefix)]) for name, number in enum.items() if number)]


SAMPLING = request.SamplingOptions(temperature=0.5, top_k=3, top_p=0.25, seed=2**63 - 1)
ZEROS = {"beam_size": 0, "length_penalty": 0.0, "min_target_tokens": 0, "no_repeat_ngram_size": 0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        (ZEROS, ZEROS),
        *((choice, choice) for choice in ({"repetition_guard": False}, {"early_stopping": False})),
        *(({name: empty}, {}) for name, empty in (("target_prefix", ""), ("suppressed_tokens", []))),
        ({"return_alignment": False, "long_sentences": pb.LONG_SENTENCE_POLICY_SPLIT}, {}),
        *(
            ({"format": number}, {"format": member})
            for number, member in members(pb.TextFormat, request.TextFormat, request.TextFormat.PLAIN)
        ),
        *(
            ({"return_attention": number}, {"return_attention": member})
            for number, member in members(pb.AttentionDetail, request.AttentionDetail, request.AttentionDetail.NONE)
        ),
        *(
            ({"number_format": number}, {"number_format": member})
            for number, member in members(pb.NumberFormat, request.NumberFormat, None)
        ),
        ({"sampling": {}}, {"sampling": request.SamplingOptions()}),
        ({"sampling": {"seed": 0, "temperature": 0}}, {"sampling": request.SamplingOptions(seed=0, temperature=0.0)}),
        ({"sampling": dataclasses.asdict(SAMPLING)}, {"sampling": SAMPLING}),
    ],
)
def test_zero_false_and_empty_values_differ_from_absent_options(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert from_options(**fields) == request.TranslationOptions(**expected)


@pytest.mark.parametrize("kind", request.ProtectedKind)
def test_each_protected_kind_has_its_number(kind: request.ProtectedKind) -> None:
    number = pb.ProtectedKind.Value(f"PROTECTED_KIND_{kind.name}")

    options = from_options(protection={"enabled_kinds": [number], "disabled_kinds": [number, number]})

    assert options.protection.enabled_kinds == options.protection.disabled_kinds == {kind}


def test_protected_kinds_of_the_contract_and_the_service_are_the_same() -> None:
    names = {name.removeprefix("PROTECTED_KIND_") for name, number in pb.ProtectedKind.items() if number}

    assert names == {kind.name for kind in request.ProtectedKind}


@pytest.mark.parametrize("name", ["enabled_kinds", "disabled_kinds"])
def test_lists_of_protected_kinds_are_limited(name: str) -> None:
    assert from_options(protection={name: [1] * 32})
    with pytest.raises(InvalidFieldError) as caught:
        from_options(protection={name: [1] * 33})

    assert caught.value.field == f"options.protection.{name}"


@pytest.mark.parametrize(("number", "priority"), members(pb.Priority, Priority, Priority.INTERACTIVE))
def test_priorities_are_converted(number: int, priority: Priority) -> None:
    assert conversion.from_priority(number) is priority


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("options.format", {"options": {"format": 99}}),
        ("options.long_sentences", {"options": {"long_sentences": -1}}),
        ("options.return_attention", {"options": {"return_attention": 4}}),
        ("options.number_format", {"options": {"number_format": 3}}),
        ("options.protection.enabled_kinds[0]", {"options": {"protection": {"enabled_kinds": [99]}}}),
        ("options.protection.disabled_kinds[1]", {"options": {"protection": {"disabled_kinds": [1, 0]}}}),
    ],
)
def test_unknown_enum_number_is_rejected(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidFieldError, match="UNSPECIFIED") as caught:
        conversion.from_translate_request(make_request(**fields))

    assert caught.value.field == field


def test_unknown_priority_is_rejected() -> None:
    with pytest.raises(InvalidFieldError, match="UNSPECIFIED") as caught:
        conversion.from_priority(99)

    assert caught.value.field == "priority"


SOURCE, TARGET = Span(start=1, end=4), Span(start=2, end=8)
ATTENTION = CrossAttention(
    source_pieces=("▁Hi", "</s>"),
    target_pieces=("▁Hi", ".", "</s>"),
    layer=1,
    weights=np.arange(12, dtype=np.float32).reshape(2, 3, 2),
)
TRANSLATION = Translation(
    hypotheses=(
        TextHypothesis(text="Hallo.", score=-1.5, tokens=("▁Hallo", "."), token_log_probs=(-0.5, -1)),
        TextHypothesis(
            text="Hi.",
            score=-2.5,
            alignment=(AlignmentLink(source=SOURCE, target=TARGET, weight=0.75),),
            attention=(ATTENTION,),
        ),
    ),
    sentences=(
        SentenceAlignment(
            source=SOURCE,
            target=TARGET,
            num_source_tokens=3,
            num_target_tokens=4,
            is_truncated=True,
            is_split=True,
        ),
    ),
    warnings=(TranslationWarning(kind=WarningKind.TRUNCATED, message="after 4 tokens", sentence_index=0),),
)
RESULT = TranslationResult(
    translations=(TRANSLATION,),
    model_name="m",
    model_version="1",
    timings=StageTimings(queue_s=0.001, encode_s=0.002, decode_s=1.5, text_s=0.25),
    num_source_tokens=3,
    num_target_tokens=4,
)


def test_all_fields_of_a_result_are_converted() -> None:
    response = conversion.to_translate_response(RESULT, request_id="r1")

    spans = {"source": {"start": 1, "end": 4}, "target": {"start": 2, "end": 8}}
    pieces = {"source_pieces": ["▁Hi", "</s>"], "target_pieces": ["▁Hi", ".", "</s>"]}
    attention = {**pieces, "num_heads": 2, "layer": 1, "weights": range(12)}
    assert response == pb.TranslateResponse(
        translations=[
            {
                "hypotheses": [
                    {"text": "Hallo.", "score": -1.5, "tokens": ["▁Hallo", "."], "token_log_probs": [-0.5, -1.0]},
                    {"text": "Hi.", "score": -2.5, "alignment": [{**spans, "weight": 0.75}], "attention": [attention]},
                ],
                "sentences": [
                    {
                        **spans,
                        "num_source_tokens": 3,
                        "num_target_tokens": 4,
                        "is_truncated": True,
                        "is_split": True,
                    }
                ],
                "warnings": [
                    {"kind": pb.WARNING_KIND_TRUNCATED, "message": "after 4 tokens", "sentence_index": 0},
                ],
            }
        ],
        model_name="m",
        model_version="1",
        timings={
            "queue": {"nanos": 1_000_000},
            "encode": {"nanos": 2_000_000},
            "decode": {"seconds": 1, "nanos": 500_000_000},
            "text": {"nanos": 250_000_000},
        },
        num_source_tokens=3,
        num_target_tokens=4,
        request_id="r1",
    )


@pytest.mark.parametrize("kind", WarningKind)
@pytest.mark.parametrize(("source", "target"), [(SOURCE, TARGET), (SOURCE, None), (None, TARGET), (None, None)])
def test_each_kind_of_warning_has_a_number_and_its_spans(
    kind: WarningKind, source: Span | None, target: Span | None
) -> None:
    warning = TranslationWarning(kind=kind, message="lost", sentence_index=None, source=source, target=target)
    translation = dataclasses.replace(TRANSLATION, warnings=(warning,))

    result = dataclasses.replace(RESULT, translations=(translation,))
    (message,) = conversion.to_translate_response(result, request_id="").translations[0].warnings

    assert pb.WarningKind.Name(message.kind) == f"WARNING_KIND_{kind.name}"
    assert message.HasField("source") == (source is not None)
    assert message.HasField("target") == (target is not None)
    assert (message.source, message.target) == (
        pb.Span(start=1, end=4) if source else pb.Span(),
        pb.Span(start=2, end=8) if target else pb.Span(),
    )


def test_new_kinds_of_warnings_are_numbered_in_order() -> None:
    numbers = [pb.WarningKind.Value(f"WARNING_KIND_{kind.name}") for kind in WarningKind]

    assert sorted(numbers) == list(range(1, len(WarningKind) + 1))
    assert numbers[numbers.index(pb.WARNING_KIND_PLACEHOLDER_LOST) + 1 :] == list(range(7, len(WarningKind) + 1))


@pytest.mark.parametrize("has_attention", [True, False])
def test_version_lists_unsupported_fields(has_attention: bool) -> None:
    manifest = make_manifest(has_attention=has_attention)

    response = conversion.to_list_models_response([_status(manifest)], TranslationLimits())

    unsupported = set(response.models[0].versions[0].unsupported_fields)
    needs_attention = {"options.coverage_penalty", "options.return_alignment", "options.return_attention"}
    assert unsupported == (set() if has_attention else needs_attention)


def _status(manifest: Manifest) -> ModelStatus:
    limits = Limits(max_source_tokens=8, max_target_tokens=8)
    languages = {"source_language": "en", "target_language": "de"}
    return ModelStatus(
        name="m",
        version="1",
        state=ModelState.READY,
        manifest=manifest.model_copy(update={"limits": limits, "scores": (), **languages}),
        precision="fp32",
        is_default=True,
        language_groups=(LanguageGroup(sources=("en",), targets=("de",), is_default=True),),
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_converted_or_rejected(raw: bytes) -> None:
    with contextlib.suppress(DecodeError, RequestError):
        message = pb.TranslateRequest.FromString(raw)
        assert isinstance(conversion.from_translate_request(message), request.TranslationRequest)
        assert isinstance(conversion.from_priority(message.priority), Priority)


def test_warning_of_a_document_sentence_has_no_index() -> None:
    sentence = TranslatedSentence(
        text="Hallo.",
        hypotheses=TRANSLATION.hypotheses,
        sentence=TRANSLATION.sentences[0],
        warnings=TRANSLATION.warnings,
        model_name="m",
        model_version="1",
        timings=RESULT.timings,
    )

    (warning,) = conversion.to_translated_sentence(sentence, index=3, request_id="r1").warnings

    assert (warning.message, warning.HasField("sentence_index")) == ("after 4 tokens", False)
