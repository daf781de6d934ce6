import dataclasses
from typing import Any

import pytest

from dragoman.enums import AttentionDetail, LongSentencePolicy, Priority, TextFormat
from dragoman.requests import (
    DecodingOptions,
    RequestSettings,
    SamplingOptions,
    TranslationRequest,
    document_message,
    translation_message,
)
from dragoman.v1 import translation_pb2 as pb

EN_DE: RequestSettings = {"source_language": "en", "target_language": "de"}
ONE_TEXT: TranslationRequest = {"source_language": "en", "target_language": "de", "texts": ["One."]}


@pytest.mark.parametrize(
    ("ours", "wire"),
    [(DecodingOptions, pb.DecodingOptions), (SamplingOptions, pb.SamplingOptions)],
)
def test_the_options_are_those_of_the_wire(ours: Any, wire: Any) -> None:
    assert [field.name for field in dataclasses.fields(ours)] == [field.name for field in wire.DESCRIPTOR.fields]


def test_the_settings_are_those_of_the_wire() -> None:
    translation = set(TranslationRequest.__annotations__)
    document = {"text", *RequestSettings.__annotations__}

    assert translation == set(pb.TranslateRequest.DESCRIPTOR.fields_by_name)
    assert document == set(pb.TranslateDocumentRequest.DESCRIPTOR.fields_by_name)


def test_a_request_carries_every_setting() -> None:
    sampling = SamplingOptions(temperature=0.5, seed=7)
    options = DecodingOptions(
        sampling=sampling,
        long_sentences=LongSentencePolicy.REFUSE,
        format=TextFormat.HTML,
        return_scores=True,
        suppressed_tokens=("▁Zwei",),
        return_attention=AttentionDetail.ALL_HEADS,
    )

    message = translation_message(
        {
            **EN_DE,
            "texts": ["One.", "Two."],
            "target_prefixes": ["", "Zwei"],
            "pivot_languages": ["fr"],
            "model": "tiny/3",
            "options": options,
            "priority": Priority.BULK,
            "request_id": "r-1",
        }
    )

    assert message == pb.TranslateRequest(
        texts=["One.", "Two."],
        source_language="en",
        target_language="de",
        target_prefixes=["", "Zwei"],
        pivot_languages=["fr"],
        model="tiny/3",
        options=pb.DecodingOptions(
            sampling=pb.SamplingOptions(temperature=0.5, seed=7),
            long_sentences=pb.LONG_SENTENCE_POLICY_REFUSE,
            format=pb.TEXT_FORMAT_HTML,
            return_scores=True,
            suppressed_tokens=["▁Zwei"],
            return_attention=pb.ATTENTION_DETAIL_ALL_HEADS,
        ),
        priority=pb.PRIORITY_BULK,
        request_id="r-1",
    )


def test_an_option_of_zero_is_present_and_one_of_none_is_absent() -> None:
    options = DecodingOptions(length_penalty=0.0, split_sentences=False)

    message = translation_message({**ONE_TEXT, "options": options})

    assert message.options.HasField("length_penalty")
    assert message.options.HasField("split_sentences")
    assert not message.options.HasField("beam_size")


def test_a_document_carries_its_text_and_settings() -> None:
    message = document_message("Long text.", {**EN_DE, "request_id": "r-1"})

    assert message == pb.TranslateDocumentRequest(
        text="Long text.", source_language="en", target_language="de", request_id="r-1"
    )


def test_each_request_without_an_id_gets_its_own() -> None:
    messages = [translation_message(ONE_TEXT) for _ in range(2)]

    assert all(message.request_id for message in messages)
    assert messages[0].request_id != messages[1].request_id


@pytest.mark.parametrize("name", ["texts", "target_prefixes", "pivot_languages"])
def test_one_string_in_place_of_a_list_is_refused(name: str) -> None:
    request: Any = {**ONE_TEXT, name: "One."}

    with pytest.raises(TypeError, match=f"{name} is one string"):
        translation_message(request)


def test_one_string_in_place_of_suppressed_tokens_is_refused() -> None:
    pieces: Any = "▁Zwei"

    with pytest.raises(TypeError, match="suppressed_tokens is one string"):
        translation_message({**ONE_TEXT, "options": DecodingOptions(suppressed_tokens=pieces)})


@pytest.mark.parametrize("request_id", ["für", "two\nlines"])
def test_an_id_that_cannot_be_metadata_is_refused(request_id: str) -> None:
    with pytest.raises(ValueError, match="must be printable ASCII"):
        document_message("Long text.", {**EN_DE, "request_id": request_id})
