import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service import datatypes, request
from dragoman_service.bundle.architecture import Limits
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.middleware import conversion
from dragoman_service.models.model import LanguageGroup, ModelState, ModelStatus
from dragoman_service.translation.options import TranslationLimits
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


def test_absent_options_have_defaults() -> None:
    assert conversion.from_translate_request(make_request()).options == request.TranslationOptions()


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
    }
    assert from_options(**fields) == wanted


def test_zero_differs_from_absent() -> None:
    options = from_options(beam_size=0, length_penalty=0.0, min_target_tokens=0, no_repeat_ngram_size=0)

    assert (options.beam_size, options.length_penalty, options.min_target_tokens) == (0, 0.0, 0)
    assert options.no_repeat_ngram_size == 0


@pytest.mark.parametrize("option", ["repetition_guard", "early_stopping"])
def test_false_differs_from_absent(option: str) -> None:
    for choice in (False, True):
        assert getattr(from_options(**{option: choice}), option) is choice
    assert getattr(from_options(), option) is None


@pytest.mark.parametrize("priority", [pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_INTERACTIVE])
def test_default_priority_is_interactive(priority: pb.Priority) -> None:
    assert conversion.from_priority(priority) is datatypes.Priority.INTERACTIVE


@pytest.mark.parametrize("number", pb.TextFormat.values())
def test_all_formats_are_converted(number: pb.TextFormat) -> None:
    name = pb.TextFormat.Name(number).removeprefix("TEXT_FORMAT_").replace("UNSPECIFIED", "PLAIN")

    assert from_options(format=number).format is request.TextFormat[name]


@pytest.mark.parametrize(
    "fields",
    [
        {"target_prefix": ""},
        {"suppressed_tokens": []},
        {"long_sentences": pb.LONG_SENTENCE_POLICY_SPLIT},
        {"format": pb.TEXT_FORMAT_PLAIN},
        {"return_alignment": False},
        {"return_attention": pb.ATTENTION_DETAIL_NONE},
    ],
    ids=str,
)
def test_explicit_default_equals_absent(fields: dict[str, Any]) -> None:
    assert from_options(**fields) == request.TranslationOptions()


@pytest.mark.parametrize("detail", pb.AttentionDetail.values())
def test_all_attention_details_are_converted(detail: pb.AttentionDetail) -> None:
    name = pb.AttentionDetail.Name(detail).removeprefix("ATTENTION_DETAIL_").replace("UNSPECIFIED", "NONE")

    assert from_options(return_attention=detail).return_attention is request.AttentionDetail[name]


def test_all_sampling_options_are_converted() -> None:
    sampling = request.SamplingOptions(temperature=0.5, top_k=3, top_p=0.25, seed=2**63 - 1)

    assert from_options(sampling=pb.SamplingOptions(**dataclasses.asdict(sampling))).sampling == sampling


def test_empty_sampling_options_differ_from_absent() -> None:
    assert from_options(sampling=pb.SamplingOptions()).sampling == request.SamplingOptions()
    assert from_options(sampling=pb.SamplingOptions(seed=0, temperature=0)).sampling == request.SamplingOptions(
        seed=0, temperature=0.0
    )


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("options.format", {"options": {"format": 99}}),
        ("options.long_sentences", {"options": {"long_sentences": -1}}),
        ("options.return_attention", {"options": {"return_attention": 4}}),
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "r" * 129),
        ("request_id", "zwölf"),
        ("request_id", "a\nb"),
    ],
)
def test_invalid_request_id_is_rejected(field: str, value: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        conversion.from_translate_request(make_request(**{field: value}))

    assert caught.value.field == field


RESULT = datatypes.TranslationResult(
    translations=(
        datatypes.Translation(
            hypotheses=(
                datatypes.TextHypothesis(text="Hallo.", score=-1.5, tokens=("▁Hallo", "."), token_log_probs=(-0.5, -1)),
                datatypes.TextHypothesis(
                    text="Hi.",
                    score=-2.5,
                    alignment=(
                        datatypes.AlignmentLink(
                            source=datatypes.Span(start=1, end=4), target=datatypes.Span(start=2, end=8), weight=0.75
                        ),
                    ),
                    attention=(
                        datatypes.CrossAttention(
                            source_pieces=("▁Hi", "</s>"),
                            target_pieces=("▁Hi", ".", "</s>"),
                            layer=1,
                            weights=np.arange(12, dtype=np.float32).reshape(2, 3, 2),
                        ),
                    ),
                ),
            ),
            sentences=(
                datatypes.SentenceAlignment(
                    source=datatypes.Span(start=1, end=4),
                    target=datatypes.Span(start=2, end=8),
                    num_source_tokens=3,
                    num_target_tokens=4,
                    is_truncated=True,
                    is_split=True,
                ),
            ),
            warnings=(
                datatypes.TranslationWarning(
                    kind=datatypes.WarningKind.TRUNCATED, message="after 4 tokens", sentence_index=0
                ),
            ),
        ),
    ),
    model_name="m",
    model_version="1",
    timings=datatypes.StageTimings(queue_s=0.001, encode_s=0.002, decode_s=1.5, text_s=0.25),
    num_source_tokens=3,
    num_target_tokens=4,
)


def test_all_fields_of_a_result_are_converted() -> None:
    response = conversion.to_translate_response(RESULT, request_id="r1")

    span = {"start": 2, "end": 8}
    assert response == pb.TranslateResponse(
        translations=[
            {
                "hypotheses": [
                    {"text": "Hallo.", "score": -1.5, "tokens": ["▁Hallo", "."], "token_log_probs": [-0.5, -1.0]},
                    {
                        "text": "Hi.",
                        "score": -2.5,
                        "alignment": [{"source": {"start": 1, "end": 4}, "target": span, "weight": 0.75}],
                        "attention": [
                            {
                                "source_pieces": ["▁Hi", "</s>"],
                                "target_pieces": ["▁Hi", ".", "</s>"],
                                "num_heads": 2,
                                "layer": 1,
                                "weights": list(range(12)),
                            }
                        ],
                    },
                ],
                "sentences": [
                    {
                        "source": {"start": 1, "end": 4},
                        "target": span,
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


def test_sentence_index_zero_of_a_warning_is_present() -> None:
    response = conversion.to_translate_response(RESULT, request_id="r1")

    assert response.translations[0].warnings[0].HasField("sentence_index")


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


def test_all_priorities_are_converted() -> None:
    assert set(map(conversion.from_priority, pb.Priority.values())) == set(datatypes.Priority)


@given(st.binary(max_size=200))
def test_any_bytes_are_converted_or_rejected(raw: bytes) -> None:
    with contextlib.suppress(DecodeError, RequestError):
        message = pb.TranslateRequest.FromString(raw)
        assert isinstance(conversion.from_translate_request(message), request.TranslationRequest)
        assert isinstance(conversion.from_priority(message.priority), datatypes.Priority)


def test_warning_of_a_document_sentence_has_no_index() -> None:
    (translation,) = RESULT.translations
    sentence = datatypes.TranslatedSentence(
        text="Hallo.",
        hypotheses=translation.hypotheses,
        sentence=translation.sentences[0],
        warnings=translation.warnings,
        model_name="m",
        model_version="1",
        timings=RESULT.timings,
    )

    (warning,) = conversion.to_translated_sentence(sentence, index=3, request_id="r1").warnings

    assert warning.message == "after 4 tokens"
    assert not warning.HasField("sentence_index")
