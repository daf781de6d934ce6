"""Language detection and pivot translation over gRPC, HTTP and the client."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from dragoman import TranslationClient
from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import refusal, running_server
from tests.tiny_bundle import SENTENCES, build_tiny_bundle

ENGLISH, GERMAN = SENTENCES[2], SENTENCES[6]
FRENCH = "Le train pour la côte part à sept heures."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for source, target in (("en", "de"), ("de", "fr"), ("fr", "de")):
        build_tiny_bundle(
            directory / f"{source}-{target}" / "1",
            name=f"{source}-{target}",
            source_language=source,
            target_language=target,
            precisions=("fp32",),
        )
    return directory


async def test_missing_source_language_is_detected(models: Path) -> None:
    async with running_server(models) as server:
        answer = await server.translate(ENGLISH, source_language="")
        same = await server.translate(ENGLISH)
        document = pb.TranslateDocumentRequest(text=ENGLISH, target_language="de")
        sentences = [each async for each in server.translation.TranslateDocument(document)]
        unserved = await refusal(server.translate(GERMAN, source_language=""))
        named = await refusal(server.translate(GERMAN, source_language="", model="en-de"))

    assert (answer.detected_language.language, answer.model_name) == ("en", "en-de")
    assert answer.detected_language.confidence > 0.9
    assert answer.translations == same.translations
    assert not same.HasField("detected_language")
    assert [each.detected_language.language for each in sentences] == ["en"]
    for refused in (unserved, named):
        assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT.name, ["source_language"])
        assert "text 0 seems to be de (1.00, not served)" in refused.message


async def test_languages_are_detected_over_grpc_and_http(models: Path) -> None:
    async with running_server(models) as server:
        request = pb.DetectLanguageRequest(texts=[ENGLISH, GERMAN, "12345"])
        detected = await server.translation.DetectLanguage(request)
        request.target_language = "fr"
        into_french = await server.translation.DetectLanguage(request)
        refused = [
            await refusal(server.translation.DetectLanguage(pb.DetectLanguageRequest(**fields)))
            for fields in ({}, {"texts": ["a" * 10_001]}, {"texts": ["a"], "target_language": "tlh"})
        ]
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{server.ports.http_port}/v1/detect"
            over_http = (await client.post(url, json={"texts": [GERMAN]})).json()

    best = [[(each.language, each.is_served) for each in one.languages][:1] for one in detected.detections]
    assert best[:2] == [[("en", True)], [("de", True)]]
    assert [each.language for each in into_french.detections[1].languages] == ["de"]
    assert into_french.detections[0].languages[0].language == "en"
    assert not into_french.detections[0].languages[0].is_served
    assert [one.fields for one in refused] == [["texts"], ["texts[0]"], ["target_language"]]
    assert over_http["detections"][0]["languages"][0]["language"] == "de"


async def test_texts_without_letters_are_unchanged_and_foreign_texts_are_rejected(models: Path) -> None:
    async with running_server(models) as server:
        unchanged = await server.translate("7", ENGLISH, " 🙂", source_language="", model="en-de")
        blank = await server.translate("", source_language="", model="en-de")
        foreign = await refusal(server.translate(ENGLISH, "7", "Привет", source_language="", model="en-de"))
        mixed = await refusal(server.translate(ENGLISH, FRENCH, source_language=""))
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{server.ports.http_port}/v1/translate"
            over_http = await client.post(
                url, json={"texts": ["Merci beaucoup"], "model": "en-de"} | {"targetLanguage": "de"}
            )

    assert [one.hypotheses[0].text for one in unchanged.translations][::2] == ["7", " 🙂"]
    assert unchanged.detected_language.language == "en"
    assert [one.text for one in blank.translations[0].hypotheses] == [""]
    assert (blank.detected_language.language, blank.detected_language.confidence) == ("en", 0)
    assert [foreign.fields, mixed.fields] == [["source_language"]] * 2
    assert "text 2 seems to be" in foreign.message
    assert foreign.message.endswith("texts in one of: en")
    assert "text 0 seems to be in en, text 1 in fr" in mixed.message
    assert (over_http.status_code, "fr (" in over_http.json()["detail"]) == (400, True)


async def test_client_detects_languages(models: Path) -> None:
    async with running_server(models) as server:

        def ask() -> tuple[str, float]:
            with TranslationClient(f"127.0.0.1:{server.port}") as client:
                (languages,) = client.detect_languages([ENGLISH])
                result = client.translate([ENGLISH], target_language="de")
                assert result.detected_language is not None
                return languages[0].language, result.detected_language.confidence

        language, confidence = await asyncio.to_thread(ask)

    assert language == "en"
    assert confidence > 0.9


async def test_texts_are_translated_through_an_allowed_pivot_language(models: Path) -> None:
    fields: dict[str, Any] = {"target_language": "fr", "pivot_languages": ["it", "de"]}
    async with running_server(models) as server:
        first = await server.translate(ENGLISH, source_language="en")
        second = await server.translate(
            first.translations[0].hypotheses[0].text, source_language="de", target_language="fr"
        )
        through = await server.translate(ENGLISH, **fields)
        detected = await server.translate(ENGLISH, source_language="", **fields)
        direct = await server.translate(GERMAN, source_language="de", **fields)
        forbidden = await refusal(server.translate(ENGLISH, target_language="fr"))
        aligned = await refusal(server.translate(ENGLISH, options=pb.DecodingOptions(return_alignment=True), **fields))
        late = await refusal(server.translate(ENGLISH, timeout_s=0.0, **fields))
        async with httpx.AsyncClient(trust_env=False) as client:
            url = f"http://127.0.0.1:{server.ports.http_port}/v1/translate"
            body = {"texts": [ENGLISH], "sourceLanguage": "en", "targetLanguage": "fr", "pivotLanguages": ["de"]}
            over_http = (await client.post(url, json=body)).json()
            document = {"text": ENGLISH, **{name: value for name, value in body.items() if name != "texts"}}
            refused = await client.post(f"{url}/document", json=document)

    assert through.pivot == pb.Pivot(language="de", model_name="en-de", model_version="1")
    assert through.model_name == "de-fr"
    assert through.translations[0].hypotheses == second.translations[0].hypotheses
    assert not through.translations[0].sentences
    assert through.num_source_tokens == first.num_source_tokens
    assert detected.translations == through.translations
    assert (detected.detected_language.language, detected.pivot.language) == ("en", "de")
    assert not direct.HasField("pivot")
    assert (forbidden.code, forbidden.reason) == (grpc.StatusCode.NOT_FOUND.name, "MODEL_NOT_FOUND")
    assert (aligned.code, aligned.fields) == (grpc.StatusCode.INVALID_ARGUMENT.name, ["options.return_alignment"])
    assert late.code == grpc.StatusCode.DEADLINE_EXCEEDED.name
    assert over_http["pivot"] == {"language": "de", "modelName": "en-de", "modelVersion": "1"}
    assert (refused.status_code, refused.json()["violations"][0]["field"]) == (400, "pivotLanguages")
