import dataclasses
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from dragoman import models, results
from dragoman.enums import WarningKind
from dragoman.errors import InvalidRequestError
from dragoman.v1 import translation_pb2 as pb

TYPED_MESSAGES = [
    (results.Span, pb.Span),
    (results.AlignmentLink, pb.AlignmentLink),
    (results.CrossAttention, pb.CrossAttention),
    (results.Hypothesis, pb.Hypothesis),
    (results.Sentence, pb.Sentence),
    (results.TranslationWarning, pb.TranslationWarning),
    (results.Translation, pb.Translation),
    (results.TranslatedSentence, pb.TranslatedSentence),
    (results.DetectedLanguage, pb.DetectedLanguage),
    (results.Pivot, pb.Pivot),
    (models.LanguageGroup, pb.LanguageGroup),
    (models.LanguagePair, pb.LanguagePair),
    (models.ModelLimits, pb.ModelLimits),
    (models.EvaluationScore, pb.EvaluationScore),
    (models.ModelVersion, pb.ModelVersion),
    (models.Model, pb.Model),
]


def _field_names(ours: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(ours)}


@pytest.mark.parametrize(("ours", "wire"), TYPED_MESSAGES)
def test_the_fields_are_those_of_the_wire(ours: Any, wire: Any) -> None:
    assert _field_names(ours) == set(wire.DESCRIPTOR.fields_by_name)


def test_the_fields_of_a_result_are_those_of_the_wire_but_the_error() -> None:
    assert _field_names(results.TranslationResult) == set(pb.TranslateResponse.DESCRIPTOR.fields_by_name) - {"error"}


def test_the_stages_are_those_of_the_wire_in_seconds() -> None:
    stages = {f"{name}_s" for name in pb.StageTimings.DESCRIPTOR.fields_by_name}

    assert _field_names(results.StageTimings) == stages


def test_what_is_absent_on_the_wire_is_none() -> None:
    warning = results.TranslationWarning.from_message(pb.TranslationWarning(kind=pb.WARNING_KIND_REPETITION))
    sentence = results.TranslatedSentence.from_message(pb.TranslatedSentence(text="\n"))

    assert warning.sentence_index is None
    assert sentence.sentence is None
    assert sentence.detected_language is None


def test_an_index_of_zero_is_not_absent() -> None:
    warning = results.TranslationWarning.from_message(pb.TranslationWarning(sentence_index=0))

    assert warning.sentence_index == 0


def test_a_kind_of_warning_newer_than_the_client_is_unspecified() -> None:
    message = pb.TranslationWarning.FromString(b"\x08\xe7\x07")  # field 1, varint 999

    assert results.TranslationWarning.from_message(message).kind is WarningKind.UNSPECIFIED


def test_the_weights_of_a_target_piece_are_a_row_over_the_source() -> None:
    message = pb.CrossAttention(
        source_pieces=["▁Hi", "</s>"], target_pieces=["▁Ha", "llo", "</s>"], num_heads=2, weights=range(12)
    )

    attention = results.CrossAttention.from_message(message)

    assert attention.row(1) == (2.0, 3.0)
    assert attention.row(2, head=1) == (10.0, 11.0)


def test_an_answer_with_an_error_raises_it_when_asked_for_the_result() -> None:
    status = status_pb2.Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message="texts: is empty")

    answer = results.StreamAnswer.from_message(pb.TranslateResponse(request_id="r-1", error=status))

    with pytest.raises(InvalidRequestError, match="texts: is empty"):
        answer.result()
