"""Azure Translator API: inputs of later versions with Azure's own client, and version 3.0."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from azure.ai.translation.text import TextTranslationClient
from azure.ai.translation.text.models import TranslateInputItem, TranslationTarget
from azure.core.exceptions import HttpResponseError

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import RunningServer
from tests.integration.vendors.vendor_clients import TEXTS, translated, with_azure

V3 = {"api-version": "3.0", "from": "en", "to": "de"}
DE = TranslationTarget(language="de")


async def test_texts_have_several_targets_on_one_connection(server: RunningServer) -> None:
    def translate(client: TextTranslationClient) -> list[Any]:
        return [client.translate(list(TEXTS), to_language=["de", "de-AT"], from_language="en") for _ in range(3)]

    answers = await with_azure(server, translate)

    expected = await translated(server, *TEXTS)
    for items in answers:
        assert [[each.text for each in item.translations] for item in items] == [[text, text] for text in expected]
        assert [[each.language for each in item.translations] for item in items] == [["de", "de-AT"]] * 2
        assert items[0].translations[0].source_characters == len(TEXTS[0])


async def test_each_input_has_its_own_settings(server: RunningServer) -> None:
    html = "<p>A <b>man</b>.</p>"
    named = TranslationTarget(language="de", deployment_name="tiny/1", tone="neutral", profanity_action="NoAction")
    inputs = [
        TranslateInputItem(text=html, language="en", text_type="Html", targets=[DE]),
        TranslateInputItem(text="A man.", language="en-GB", text_type="Plain", targets=[named, DE]),
    ]

    items = await with_azure(server, lambda client: client.translate(inputs))

    (as_html,) = await translated(server, html, format=pb.TEXT_FORMAT_HTML)
    (plain,) = await translated(server, "A man.")
    assert [[each.text for each in item.translations] for item in items] == [[as_html], [plain, plain]]


async def test_languages_are_listed(server: RunningServer) -> None:
    languages = await with_azure(server, lambda client: client.get_supported_languages())
    only = await with_azure(server, lambda client: client.get_supported_languages(scope="translation"))

    described = {
        code: (each.name, each.native_name, each.dir, each.models)
        for code, each in (languages.translation or {}).items()
    }
    assert described == {
        "de": ("German", "Deutsch", "ltr", ["general"]),
        "en": ("English", "English", "ltr", ["general"]),
    }
    assert (languages.transliteration, only.transliteration) == ({}, None)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda c: c.translate(["A man rides.", "Bonjour tout le monde"], to_language=["de"]), "400035"),
        (lambda c: c.translate(list(TEXTS), to_language=["ja"], from_language="en"), "400036"),
        (lambda c: c.translate(list(TEXTS), to_language=["de"], from_language="fr"), "400035"),
        (lambda c: c.translate(["A."] * 129, to_language=["de"], from_language="en"), "400077"),
        (lambda c: c.translate(["A." * 5001], to_language=["de"], from_language="en"), "400077"),
        (lambda c: c.transliterate(["a"], language="ja", from_script="Jpan", to_script="Latn"), "400000"),
        (lambda c: c.get_supported_languages(scope="x"), "400000"),
    ],
)
async def test_error_has_the_code_of_azure(
    server: RunningServer, call: Callable[[TextTranslationClient], Any], code: str
) -> None:
    with pytest.raises(HttpResponseError, match=code) as raised:
        await with_azure(server, call)

    assert raised.value.status_code == 400


async def test_version_3_has_its_parameters_in_the_query(server: RunningServer, http: httpx.AsyncClient) -> None:
    text = "  A man. Two children play. "
    parameters = {**V3, "to": ["de", "de"], "includeAlignment": "true", "includeSentenceLength": "True"}
    response = await http.post("/translate", params=parameters, json=[{"Text": text}, {"text": "A."}])

    items = response.json()
    first, second = items[0]["translations"]
    assert response.headers["x-metered-usage"] == "60"
    assert len(items) == 2
    assert first == second
    assert [first["text"]] == await translated(server, text)
    lengths = first["sentLen"]
    assert (sum(lengths["srcSentLen"]), sum(lengths["transSentLen"])) == (len(text), len(first["text"]))
    assert len(lengths["srcSentLen"]) == len(lengths["transSentLen"]) == 2
    spans = [
        tuple(int(part) for part in link.replace("-", ":").split(":")) for link in first["alignment"]["proj"].split()
    ]
    assert spans
    assert all(0 <= a <= b < len(text) and 0 <= c <= d < len(first["text"]) for a, b, c, d in spans)


@pytest.mark.parametrize(
    "change",
    [
        {"to": ""},
        {"textType": "pdf"},
        {"category": "none"},
        {"includeAlignment": "7"},
        {"suggestedFrom": "en"},
        {"profanityAction": "Marked"},
        {"a": [str(number) for number in range(200)]},
        {"to": ["de"] * 129},
    ],
)
async def test_version_3_rejects_invalid_parameters(http: httpx.AsyncClient, change: dict[str, Any]) -> None:
    response = await http.post("/translate", params={**V3, **change}, json=[{"Text": "A."}])

    assert (response.status_code, response.json()["error"]["code"] // 1000) == (400, 400)


async def test_version_3_detects_languages(http: httpx.AsyncClient) -> None:
    texts = [{"Text": TEXTS[0]}, {"Text": "7"}]
    detected = (await http.post("/detect", params={"api-version": "3.0"}, json=texts)).json()
    invalid = await http.post("/detect", params={"api-version": "3.0"}, json=[{"Text": 7}])

    assert [(each["language"], each["isTranslationSupported"]) for each in detected] == [("en", True), ("und", False)]
    assert invalid.status_code == 400


async def test_request_without_api_version_is_handled_as_libretranslate(http: httpx.AsyncClient) -> None:
    translation = await http.post("/translate", json={"q": "A man.", "source": "en", "target": "de"})
    languages = await http.get("/languages")

    assert list(translation.json()) == ["translatedText"]
    assert languages.json()[0]["code"] == "en"
