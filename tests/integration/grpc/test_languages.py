"""Language detection, pivot translation and named glossaries."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, http_client, rejection, running_server
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


@pytest.fixture(scope="module")
async def multilingual(models: Path) -> AsyncIterator[RunningServer]:
    async with running_server(models) as server:
        yield server


async def test_missing_source_language_is_detected_or_rejected(multilingual: RunningServer) -> None:
    detected = await multilingual.translate(ENGLISH, source_language="")
    named = await multilingual.translate(ENGLISH)
    mixed = await multilingual.translate(ENGLISH, GERMAN, source_language="")
    german = await multilingual.translate(GERMAN, source_language="", model="en-de")
    rejected = [
        await rejection(multilingual.translate(*texts, source_language="", model=model))
        for texts, model in [
            ([FRENCH], "en-de"),
            ([ENGLISH, "7", "Привет"], "en-de"),
            ([ENGLISH, FRENCH], ""),
        ]
    ]

    assert (detected.detected_language.language, detected.model_name) == ("en", "en-de")
    assert detected.detected_language.confidence > 0.9
    assert detected.translations == named.translations
    assert not named.HasField("detected_language")
    assert {(error.code, *error.fields) for error in rejected} == {("INVALID_ARGUMENT", "source_language")}
    messages = [error.message for error in rejected]
    assert "text 0 seems to be fr (1.00, not served)" in messages[0]
    assert "text 2 seems to be" in messages[1]
    assert messages[1].endswith("texts in one of: en")
    assert "text 0 seems to be in en, text 1 in fr" in messages[2]
    assert mixed.detected_language.language == "en"
    assert [(each.hypotheses[0].text == GERMAN, each.is_unchanged) for each in mixed.translations] == [
        (False, False),
        (True, True),
    ]
    assert (german.translations[0].is_unchanged, german.model_name) == (True, "")
    assert (german.detected_language.language, german.detected_language.is_served) == ("de", False)


async def test_languages_are_detected_over_grpc_and_http(multilingual: RunningServer) -> None:
    async with http_client(multilingual) as http:
        request = pb.DetectLanguageRequest(texts=[ENGLISH, GERMAN, "12345"])
        detected = (await multilingual.translation.DetectLanguage(request)).detections
        request.target_language = "fr"
        into_french = (await multilingual.translation.DetectLanguage(request)).detections
        rejected = [
            await rejection(multilingual.translation.DetectLanguage(pb.DetectLanguageRequest(**fields)))
            for fields in ({}, {"texts": ["a" * 10_001]}, {"texts": ["a"], "target_language": "tlh"})
        ]
        over_http = (await http.post("/v1/detect", json={"texts": [GERMAN]})).json()

    best = [[(each.language, each.is_served) for each in one.languages][:1] for one in (*detected, *into_french)]
    assert best == [[("en", True)], [("de", True)], [], [("en", False)], [("de", True)], []]
    assert [each.language for each in into_french[1].languages] == ["de"]
    assert [error.fields for error in rejected] == [["texts"], ["texts[0]"], ["target_language"]]
    assert over_http["detections"][0]["languages"][0]["language"] == "de"


async def test_texts_are_translated_through_an_allowed_pivot_language(multilingual: RunningServer) -> None:
    fields: dict[str, Any] = {"target_language": "fr", "pivot_languages": ["it", "de"]}
    body = {"sourceLanguage": "en", "targetLanguage": "fr", "pivotLanguages": ["de"]}
    async with http_client(multilingual) as http:
        first = await multilingual.translate(ENGLISH)
        in_german = first.translations[0].hypotheses[0].text
        second = await multilingual.translate(in_german, source_language="de", target_language="fr")
        through = await multilingual.translate(ENGLISH, **fields)
        detected = await multilingual.translate(ENGLISH, source_language="", **fields)
        direct = await multilingual.translate(GERMAN, source_language="de", **fields)
        forbidden = await rejection(multilingual.translate(ENGLISH, target_language="fr"))
        aligned = await rejection(
            multilingual.translate(ENGLISH, options=pb.DecodingOptions(return_alignment=True), **fields)
        )
        over_http = (await http.post("/v1/translate", json={"texts": [ENGLISH], **body})).json()
        document = await http.post("/v1/translate/document", json={"text": ENGLISH, **body})

    assert through.pivot == pb.Pivot(language="de", model_name="en-de", model_version="1")
    assert through.model_name == "de-fr"
    assert through.translations[0].hypotheses == second.translations[0].hypotheses
    assert not through.translations[0].sentences
    assert through.num_source_tokens == first.num_source_tokens
    assert detected.translations == through.translations
    assert (detected.detected_language.language, detected.pivot.language) == ("en", "de")
    assert not direct.HasField("pivot")
    assert (forbidden.code, forbidden.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert (aligned.code, aligned.fields) == ("INVALID_ARGUMENT", ["options.return_alignment"])
    assert over_http["pivot"] == {"language": "de", "modelName": "en-de", "modelVersion": "1"}
    assert (document.status_code, document.json()["violations"][0]["field"]) == (400, "pivotLanguages")


async def test_glossaries_are_listed_and_combined_with_terms(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\nman\tMann\n")
    (tmp_path / "shop.tsv").write_text("en\tfr\nman\thomme\n")
    async with running_server(tiny_model, models__glossaries_directory=tmp_path) as server:
        options = pb.DecodingOptions(glossary="it", terms=[pb.Term(source="man", target="Kerl")])
        response = await server.translate("A man rides a bicycle.", options=options)
        listed = await server.model_service.ListGlossaries(pb.ListGlossariesRequest())
        over_http = await server.get("/v1/glossaries")
        other_pair, too_long = [
            await rejection(server.translate("A man.", options=pb.DecodingOptions(glossary=name)))
            for name in ("shop", "x" * 129)
        ]

    text = response.translations[0].hypotheses[0].text
    assert (text.count("Velo"), text.count("Kerl"), text.count("Mann")) == (1, 1, 0)
    assert [
        (glossary.name, [(pair.target_language, pair.num_terms) for pair in glossary.pairs])
        for glossary in listed.glossaries
    ] == [("it", [("de", 2)]), ("shop", [("fr", 1)])]
    assert '"name":"shop"' in over_http[1]
    for error in (other_pair, too_long):
        assert (error.code, error.fields) == ("INVALID_ARGUMENT", ["options.glossary"])


async def test_glossary_is_reloaded(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"models__glossaries_directory": tmp_path, "models__poll_interval_s": 0.01}
    async with running_server(tiny_model, **settings) as server:
        (tmp_path / "it.tsv").write_text("en\tde\na\tb\tc")
        await server.until_sample(1, "dragoman_glossary_failures_total")
        (tmp_path / "it.new").write_text("en\tde\nbicycle\tVelo")
        (tmp_path / "it.new").rename(tmp_path / "it.tsv")
        async with asyncio.timeout(TEST_TIMEOUT_S):
            while not (await server.model_service.ListGlossaries(pb.ListGlossariesRequest())).glossaries:
                await asyncio.sleep(0.001)
        response = await server.translate("bicycle", options=pb.DecodingOptions(glossary="it"))

    assert "Velo" in response.translations[0].hypotheses[0].text
