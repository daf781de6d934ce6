"""Azure Translator's API: what its own client for Python makes of the answers, version 3.0, and errors in its form."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from azure.ai.translation.text import TextTranslationClient
from azure.ai.translation.text.models import TranslateInputItem, TranslationTarget
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.security.api_keys import new_key, store
from tests.integration.running_server import PATIENCE_S, RunningServer, running_server

Result = TypeVar("Result")

KEY = new_key()
JSON = {"content-type": "application/json"}
V3 = {"api-version": "3.0", "from": "en", "to": "de"}
TEXTS = ["A man rides a bicycle.", "Two children play."]
GERMAN = "Das ist ein schöner Tag."
DE = TranslationTarget(language="de")


async def asked(server: RunningServer, ask: Callable[[TextTranslationClient], Result], key: str = "any") -> Result:
    endpoint = f"http://127.0.0.1:{server.ports.http_port}"

    def call() -> Result:
        credential = AzureKeyCredential(key)
        with TextTranslationClient(endpoint, credential, retry_total=0, enforce_https=False) as client:
            return ask(client)

    return await asyncio.to_thread(call)


@contextlib.asynccontextmanager
async def http_of(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    address = f"http://127.0.0.1:{server.ports.http_port}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http:
        yield http


async def translated(server: RunningServer, *texts: str, **options: Any) -> list[str]:
    response = await server.translate(*texts, options=pb.DecodingOptions(**options))
    return [one.hypotheses[0].text for one in response.translations]


async def test_texts_are_translated(server: RunningServer) -> None:
    answered = await asked(server, lambda client: client.translate(TEXTS, to_language=["de", "DE"], from_language="en"))

    expected = await translated(server, *TEXTS)
    assert [[one.text for one in item.translations] for item in answered] == [[text, text] for text in expected]
    assert [[one.language for one in item.translations] for item in answered] == [["de", "DE"]] * 2
    assert answered[0].translations[0].source_characters == len(TEXTS[0])


async def test_each_input_has_its_own_settings(server: RunningServer) -> None:
    html = "<p>A <b>man</b>.</p>"
    named = TranslationTarget(language="de", deployment_name="tiny/1", tone="neutral", profanity_action="NoAction")
    inputs = [
        TranslateInputItem(text=html, language="en", text_type="Html", targets=[DE]),
        TranslateInputItem(text="A man.", language="en-GB", text_type="Plain", targets=[named, DE]),
    ]

    answered = await asked(server, lambda client: client.translate(inputs))

    (as_html,), (plain,) = (
        await translated(server, html, format=pb.TEXT_FORMAT_HTML),
        await translated(server, "A man."),
    )
    assert [[one.text for one in item.translations] for item in answered] == [[as_html], [plain, plain]]


async def test_languages_are_listed(server: RunningServer) -> None:
    languages = await asked(server, lambda client: client.get_supported_languages())
    only = await asked(server, lambda client: client.get_supported_languages(scope="translation"))

    assert {
        code: (one.name, one.native_name, one.dir, one.models) for code, one in (languages.translation or {}).items()
    } == {
        "de": ("German", "Deutsch", "ltr", ["general"]),
        "en": ("English", "English", "ltr", ["general"]),
    }
    assert (languages.transliteration, only.transliteration) == ({}, None)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda c: c.translate(["A man rides.", "Bonjour tout le monde"], to_language=["de"]), "400035"),
        (lambda c: c.translate(TEXTS, to_language=["ja"], from_language="en"), "400036"),
        (lambda c: c.translate(TEXTS, to_language=["de"], from_language="fr"), "400035"),
        (lambda c: c.translate(TEXTS, to_language=[], from_language="en"), "to: is absent"),
        (lambda c: c.transliterate(["a"], language="ja", from_script="Jpan", to_script="Latn"), "transliterate"),
        (lambda c: c.get_supported_languages(scope="x"), "scope"),
    ],
)
async def test_what_cannot_be_is_an_error_of_the_client(
    server: RunningServer, ask: Callable[[TextTranslationClient], Any], said: str
) -> None:
    with pytest.raises(HttpResponseError, match=said) as raised:
        await asked(server, ask)

    assert raised.value.status_code == 400


@pytest.mark.parametrize(
    "change",
    [
        {"text": 7},
        {"text": "\ud800"},
        {"textType": "pdf"},
        {"script": "Latn"},
        {"targets": []},
        {"targets": "de"},
        {"targets": [{"language": 7}]},
        {"targets": [{"language": "de"}] * 129},
        {"targets": [{"language": "de", "tone": "formal"}]},
        {"targets": [{"language": "de", "profanityAction": "Deleted"}]},
        {"targets": [{"language": "de", "deploymentName": "none"}]},
        {"targets": [{"language": "de", "deploymentName": 7}]},
        {"targets": [{"language": "de", "referenceTextPairs": [{"source": "a", "target": "b"}]}]},
    ],
)
async def test_what_cannot_be_has_the_form_of_azure(server: RunningServer, change: dict[str, Any]) -> None:
    body = {"inputs": [{"text": "A man.", "language": "en", "targets": [{"language": "de"}], **change}]}
    async with http_of(server) as http:
        headers = {"content-type": "application/json"}
        response = await http.post("/translate?api-version=2026-06-06", content=json.dumps(body), headers=headers)

    assert (response.status_code, sorted(response.json()["error"])) == (400, ["code", "message"])


async def test_version_3_has_its_parameters_in_the_query(server: RunningServer) -> None:
    text = "  A man. Two children play. "
    async with http_of(server) as http:
        asked_for = {**V3, "to": ["de", "de"], "includeAlignment": "true", "includeSentenceLength": "true"}
        response = await http.post("/translate", params=asked_for, json=[{"Text": text}, {"text": "A."}])

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
    ("change", "body"),
    [
        ({"to": ""}, [{"Text": "A."}]),
        ({"textType": "pdf"}, [{"Text": "A."}]),
        ({"category": "none"}, [{"Text": "A."}]),
        ({"includeAlignment": "7"}, [{"Text": "A."}]),
        ({"suggestedFrom": "en"}, [{"Text": "A."}]),
        ({"profanityAction": "Marked"}, [{"Text": "A."}]),
        ({"a": [str(number) for number in range(100)]}, [{"Text": "A."}]),
        ({}, []),
        ({}, {"Text": "A."}),
        ({}, ["A."]),
        ({}, [{"Text": "A.", "Lang": "en"}]),
        ({}, [{"Text": "\ud800"}]),
        ({}, [{"\ud800": "A."}]),
        ({}, [{"Text": "A." * 5001}]),
        ({}, [{"Text": "A."}] * 129),
    ],
)
async def test_what_version_3_cannot_be_is_refused(server: RunningServer, change: dict[str, Any], body: Any) -> None:
    async with http_of(server) as http:
        response = await http.post("/translate", params={**V3, **change}, content=json.dumps(body), headers=JSON)
        other = await http.post("/dictionary/lookup", params={"api-version": "3.0"}, json=[{"Text": "A."}])

    assert [(one.status_code, one.json()["error"]["code"] // 1000) for one in (response, other)] == [(400, 400)] * 2


async def test_languages_are_detected(server: RunningServer) -> None:
    answered = await asked(server, lambda client: client.translate([*TEXTS, "7", GERMAN], to_language=["de"]))
    async with http_of(server) as http:
        texts = [{"Text": TEXTS[0]}, {"Text": "7"}]
        detected = (await http.post("/detect", params={"api-version": "3.0"}, json=texts)).json()
        wrong = await http.post("/detect", params={"api-version": "3.0"}, json=[{"Text": 7}])

    languages = [one.detected_language for one in answered]
    assert [one.language if one else "" for one in languages] == ["en", "en", "en", "de"]
    assert [one.translations[0].text for one in answered[2:]] == ["7", GERMAN]
    assert [(one["language"], one["isTranslationSupported"]) for one in detected] == [("en", True), ("und", False)]
    assert wrong.status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/translate", 405), ("POST", "/languages", 405), ("POST", "/detect/x", 404)]
)
async def test_other_methods_and_paths_have_errors_of_the_same_form(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    async with http_of(server) as http:
        response = await http.request(method, path, params=V3)

    assert response.status_code == status
    assert response.json()["error"].keys() == {"code", "message"}


async def test_texts_of_a_list_have_several_targets_on_one_connection(server: RunningServer) -> None:
    def ask(client: TextTranslationClient) -> list[list[str]]:
        answers = [client.translate(TEXTS, to_language=["de", "de-AT"], from_language="en") for _ in range(3)]
        return [[one.language for item in items for one in item.translations] for items in answers]

    assert await asked(server, ask) == [["de", "de-AT"] * 2] * 3


async def test_requests_without_a_version_are_those_of_libretranslate(server: RunningServer) -> None:
    async with http_of(server) as http:
        asked_for = {"q": "A man.", "source": "en", "target": "de"}
        responses = [await http.post("/translate", json=asked_for), await http.get("/languages")]

    assert list(responses[0].json()) == ["translatedText"]
    assert responses[1].json()[0]["code"] == "en"


async def test_a_key_and_its_limits_are_those_of_all_calls(tiny_model: Path, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(
        f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\nrequests_per_s = 1\n'
    )

    def ask(client: TextTranslationClient) -> Any:
        return client.translate(["A man."], to_language=["de"], from_language="en")

    async with running_server(tiny_model, access__callers_file=callers) as server:
        with pytest.raises(ClientAuthenticationError):
            await asked(server, ask, new_key())
        answered = await asked(server, ask, KEY)
        with pytest.raises(HttpResponseError, match="429") as raised:
            await asked(server, ask, KEY)

    assert answered[0].translations[0].text
    assert raised.value.status_code == 429
