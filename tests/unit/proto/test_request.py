from typing import Any

import pytest

from dragoman.client.enums import LongSentencePolicy, NumberFormat, Priority, ProtectedKind
from dragoman.client.request import (
    DecodingOptions,
    ProtectionOptions,
    RequestSettings,
    SamplingOptions,
    Term,
    TranslationRequest,
    document_message,
    translation_message,
)
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import EN_DE, text_request

ONE_TEXT = text_request("")
WRONG: Any = ["a", 3]


def test_settings_have_the_names_of_the_message_fields() -> None:
    assert set(TranslationRequest.__annotations__) == set(pb.TranslateRequest.DESCRIPTOR.fields_by_name)
    document = {"text", *RequestSettings.__annotations__}
    assert document == set(pb.TranslateDocumentRequest.DESCRIPTOR.fields_by_name)


def test_message_has_every_setting() -> None:
    options = DecodingOptions(
        length_penalty=0.0,
        split_sentences=False,
        sampling=SamplingOptions(temperature=0.5, seed=7),
        long_sentences=LongSentencePolicy.REFUSE,
        suppressed_tokens=("▁Zwei",),
        protection=ProtectionOptions(enabled_kinds=(ProtectedKind.NUMBER,), patterns=("[[*]]",)),
        terms=(Term(source="dog", target="Hund", is_part_of_word=True),),
        number_format=NumberFormat.AS_WRITTEN,
    )
    settings: Any = {
        **EN_DE,
        "texts": ["One.", "Two."],
        "target_prefixes": ["", "Zwei"],
        "pivot_languages": ["fr"],
        "model": "tiny/3",
        "request_id": "r-1",
    }
    request: Any = {**settings, "options": options, "priority": Priority.BULK}

    assert translation_message(request) == pb.TranslateRequest(
        **settings,
        priority=pb.PRIORITY_BULK,
        options=pb.DecodingOptions(
            length_penalty=0.0,
            split_sentences=False,
            sampling=pb.SamplingOptions(temperature=0.5, seed=7),
            long_sentences=pb.LONG_SENTENCE_POLICY_REFUSE,
            suppressed_tokens=["▁Zwei"],
            protection=pb.ProtectionOptions(enabled_kinds=[pb.PROTECTED_KIND_NUMBER], patterns=["[[*]]"]),
            terms=[pb.Term(source="dog", target="Hund", is_part_of_word=True)],
            number_format=pb.NUMBER_FORMAT_AS_WRITTEN,
        ),
    )


def test_document_message_has_text_and_settings() -> None:
    message = document_message("Long text.", RequestSettings(target_language="de", request_id="r-1"))

    assert message == pb.TranslateDocumentRequest(text="Long text.", request_id="r-1", target_language="de")


def test_requests_without_an_id_get_different_ids() -> None:
    ids = {translation_message(ONE_TEXT).request_id for _ in range(2)}

    assert len(ids - {""}) == 2


@pytest.mark.parametrize("name", ["texts", "target_prefixes", "pivot_languages"])
@pytest.mark.parametrize("values", ["One.", b"One.", None, ["One.", None]])
def test_value_that_is_not_a_list_of_strings_is_rejected_by_name(name: str, values: Any) -> None:
    request: Any = {**ONE_TEXT, name: values}

    with pytest.raises(TypeError, match=name):
        translation_message(request)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"beam_size": 2}, "options"),
        (DecodingOptions(sampling=WRONG), "options.sampling"),
        (DecodingOptions(suppressed_tokens=WRONG), r"options.suppressed_tokens\[1\]"),
        (DecodingOptions(suppressed_tokens="▁Zwei"), "options.suppressed_tokens"),  # type: ignore[arg-type]
        (DecodingOptions(terms=WRONG), r"options.terms\[0\]"),
    ],
)
def test_option_of_the_wrong_type_is_rejected_by_path(options: Any, path: str) -> None:
    with pytest.raises(TypeError, match=f"^{path} is "):
        translation_message({**ONE_TEXT, "options": options})


@pytest.mark.parametrize(
    ("text", "request_id", "error", "name"),
    [
        ("One.", "für", ValueError, "request_id"),
        ("One.", "two\nlines", ValueError, "request_id"),
        (WRONG, "r-1", TypeError, "text"),
    ],
)
def test_invalid_document_is_rejected(text: Any, request_id: str, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=name):
        document_message(text, RequestSettings(target_language="de", request_id=request_id))
