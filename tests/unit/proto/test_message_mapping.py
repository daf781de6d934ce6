import dataclasses
import enum
from typing import Any

import grpc
import pytest

from dragoman.client import enums, models, request, results
from dragoman.client.calls import read_stream_answer
from dragoman.client.errors import InvalidRequestError
from dragoman.client.message_mapping import from_message
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import MODEL, RESULT
from tests.unit.proto.scripted_server import status_of

DIFFERENT_NAMES = {
    "TranslationResult": set(pb.TranslateResponse.DESCRIPTOR.fields_by_name) - {"error"},
    "StageTimings": {f"{name}_s" for name in pb.StageTimings.DESCRIPTOR.fields_by_name},
}
DATACLASSES = [
    value
    for module in (models, request, results)
    for value in vars(module).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value is not results.StreamAnswer
]
ENUMS = [
    value for value in vars(enums).values() if isinstance(value, enum.EnumMeta) and value.__module__ == enums.__name__
]


@pytest.mark.parametrize("cls", DATACLASSES, ids=lambda cls: cls.__name__)
def test_dataclass_has_the_fields_of_its_message(cls: Any) -> None:
    names = DIFFERENT_NAMES.get(cls.__name__) or set(getattr(pb, cls.__name__).DESCRIPTOR.fields_by_name)

    assert {field.name for field in dataclasses.fields(cls)} == names


@pytest.mark.parametrize("cls", [cls for cls in ENUMS if len(cls)], ids=lambda cls: cls.__name__)
def test_enum_has_the_names_and_numbers_of_the_contract(cls: Any) -> None:
    wire = getattr(pb, cls.__name__)
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")

    assert {prefix + member.name: member.value for member in cls} | {wire.Name(0): 0} == dict(wire.items())


def test_hard_kinds_are_those_that_the_contract_lists() -> None:
    hard = {"PLACEHOLDER_LOST", "EMPTY_TRANSLATION", "INVALID_OUTPUT", "NUMBER_CHANGED", "IDENTIFIER_CHANGED"}

    assert {kind.name for kind in enums.WarningKind if kind.is_hard} == hard | {"SYMBOL_CHANGED", "MARKUP_CHANGED"}


@pytest.mark.parametrize("number", [*range(1, 21), 21, 99, 2**31 - 1])
def test_warnings_of_newer_servers_have_an_unspecified_kind(number: int) -> None:
    kind: Any = number
    warning = from_message(results.TranslationWarning, pb.TranslationWarning(kind=kind))

    assert warning.kind.value == (number if number < 21 else 0)


def test_message_becomes_typed_values() -> None:
    (translation,) = RESULT.translations
    (hypothesis,), (sentence,), (warning,) = translation.hypotheses, translation.sentences, translation.warnings

    assert (hypothesis.text, hypothesis.score, hypothesis.token_log_probs) == ("Hallo.", -0.5, (-0.25, -0.125, -0.5))
    assert hypothesis.alignment == (
        results.AlignmentLink(source=results.Span(start=0, end=5), target=results.Span(start=0, end=6), weight=0.75),
    )
    assert (sentence.num_source_tokens, sentence.is_truncated, sentence.score) == (3, False, 0.5)
    assert (warning.kind, warning.sentence_index) == (enums.WarningKind.TRUNCATED, 0)
    assert (warning.source, warning.target) == (results.Span(start=1, end=4), None)
    assert RESULT.timings == results.StageTimings(queue_s=0.001, encode_s=0, decode_s=1, text_s=0)
    assert RESULT.detected_language == results.DetectedLanguage(language="en", confidence=0.75, is_served=True)
    assert (MODEL.versions[0].precision, MODEL.versions[0].limits.max_texts) == (enums.Precision.INT8, 128)
    assert MODEL.versions[0].labels == ("canary", "stable")


def test_result_is_a_sequence_of_translations() -> None:
    assert (RESULT[0], RESULT[-1:], len(RESULT)) == (RESULT.translations[0], RESULT.translations, 1)
    assert [(translation.text, translation.score) for translation in RESULT] == [("Hallo.", -0.5)]


def test_absent_fields_are_none_and_unknown_enum_numbers_unspecified() -> None:
    warning = from_message(results.TranslationWarning, pb.TranslationWarning.FromString(b"\x08\xe7\x07"))  # kind 999
    sentence = from_message(results.TranslatedSentence, pb.TranslatedSentence(text="\n"))

    assert (warning.kind, warning.sentence_index) == (enums.WarningKind.UNSPECIFIED, None)
    assert (warning.source, warning.target) == (None, None)
    assert (sentence.sentence, sentence.detected_language, RESULT.pivot) == (None, None, None)
    with pytest.raises(ValueError, match="999"):
        enums.Priority(999)  # of a request


def test_row_of_attention_holds_the_weights_of_a_target_piece() -> None:
    message = pb.CrossAttention(
        source_pieces=["▁Hi", "</s>"], target_pieces=["▁Ha", "llo", "</s>"], num_heads=2, weights=range(12)
    )
    attention = from_message(results.CrossAttention, message)

    assert attention.row(1) == (2.0, 3.0)
    assert attention.row(2, head=1) == (10.0, 11.0)


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [(["en", "de"], ["de", "en"], [("en", "de"), ("de", "en")]), (["en"], ["en"], [("en", "en")])],
)
def test_pairs_of_language_group(sources: list[str], targets: list[str], expected: list[tuple[str, str]]) -> None:
    group = from_message(models.LanguageGroup, pb.LanguageGroup(source_languages=sources, target_languages=targets))

    assert [(pair.source_language, pair.target_language) for pair in group.pairs()] == expected


def test_failed_stream_answer_raises_its_error() -> None:
    status = status_of(grpc.StatusCode.INVALID_ARGUMENT)
    answer = read_stream_answer(pb.TranslateResponse(request_id="r-1", error=status))

    with pytest.raises(InvalidRequestError) as caught:
        answer.result()
    assert (answer.request_id, caught.value.request_id) == ("r-1", "r-1")
