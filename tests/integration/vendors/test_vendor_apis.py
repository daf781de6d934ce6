"""Scenarios that all vendor APIs share: translation, detection, keys and errors, with the vendors' own clients."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import deepl
import httpx
import pytest

from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import RunningServer, http_client, running_server, write_callers
from tests.integration.vendors.vendor_clients import (
    CLIENTS,
    PATHS,
    TEXTS,
    VendorClient,
    body_of,
    translated,
)

KEY = new_key()
GERMAN = "Das ist ein schöner Tag."
MAX_TEXTS = 128

INVALID: dict[str, list[tuple[Any, str]]] = {
    "deepl": [
        ({"text": ["A."] * (MAX_TEXTS + 1)}, "text"),
        ({"text": ["A.", 7]}, "text[1]"),
        ({"text": ["\ud800"]}, "text[0]"),
        ({"target_lang": None}, "target_lang"),
        ({"formality": "more"}, "formality"),
        ({"context": "About dogs."}, "context"),
        ({"splitting_tags": ["p"]}, "splitting_tags"),
        ({"outline_detection": False}, "outline_detection"),
        ({"split_sentences": "nonewlines"}, "split_sentences"),
        ({"ignore_tags": ["x"]}, "ignore_tags"),
        ({"glossary_ids": ["it", "both"]}, "glossary_ids"),
        ({"source_lang": "", "glossary_id": "it"}, "source_lang"),
        ({"auth_key": "x"}, "auth_key"),
    ],
    "azure": [
        ({"text": 7}, "text"),
        ({"text": "\ud800"}, "inputs[0].text"),
        ({"textType": "pdf"}, "inputs[0].textType"),
        ({"script": "Latn"}, "inputs[0].script"),
        ({"targets": []}, "inputs[0].targets"),
        ({"targets": [{"language": 7}]}, "inputs[0].targets[0].language"),
        ({"targets": [{"language": "de", "tone": "formal"}]}, "inputs[0].targets[0].tone"),
        ({"targets": [{"language": "de", "profanityAction": "Deleted"}]}, "inputs[0].targets[0].profanityAction"),
        ({"targets": [{"language": "de"}] * (MAX_TEXTS + 1)}, "inputs[0].targets"),
    ],
    "azure 3.0": [
        ([], "text"),
        ([{"Text": "A."}] * (MAX_TEXTS + 1), "text"),
        ([{"Text": "A." * 5001}], "text"),
        ([{"Text": "\ud800"}], "text[0]"),
        ([{"Text": "A.", "Lang": "en"}], "request"),
        (["A."], "request"),
        ({"Text": "A."}, "request"),
    ],
    "libretranslate": [
        ({"q": "x" * 10_001}, "q"),
        ({"q": ["A.", 7]}, "q[1]"),
        ({"source": None}, "source"),
        ({"target": "\ud800"}, "target"),
        ({"format": "pdf"}, "format"),
        ({"alternatives": 99}, "alternatives"),
        ({"\ud800": "red"}, "request"),
    ],
    "google v2": [
        ({"q": []}, "q"),
        ({"q": ["A.", 7]}, "q[1]"),
        ({"target": None}, "target"),
        ({"format": "rtf"}, "format"),
        ({"cid": ["x"]}, "cid"),
        ({"alt": "xml"}, "alt"),
        ({"other": "x"}, "other"),
    ],
    "google v3": [
        ({"contents": ["A."] * (MAX_TEXTS + 1)}, "contents"),
        ({"contents": ["A.", 7]}, "contents[1]"),
        ({"contents": ["\ud800"]}, "contents[0]"),
        ({"labels": {"a": 7}}, "labels"),
        ({"glossaryConfig": {"glossary": ["x"]}}, "glossary_config.glossary"),
        ({"targetLanguageCode": ""}, "target_language_code"),
        ({"parent": "projects/another"}, "parent"),
        ({"other": 1}, "other"),
    ],
}

UNSERVED: dict[str, list[tuple[str, str, int]]] = {
    "deepl": [("GET", "/v2/translate", 404), ("POST", "/v2/write/rephrase", 404)],
    "azure": [
        ("GET", "/translate?api-version=3.0", 405),
        ("POST", "/languages?api-version=3.0", 405),
        ("POST", "/detect/x?api-version=3.0", 404),
        ("POST", "/breaksentence?api-version=3.0", 400),
    ],
    "libretranslate": [
        ("GET", "/translate", 405),
        ("PUT", "/detect", 405),
        ("POST", "/languages", 405),
        ("POST", "/health", 405),
        ("POST", "/suggest", 403),
        ("GET", "/spec", 404),
        ("POST", "/translate/more", 404),
        ("GET", "/frontend/settings/more", 404),
    ],
}
FORMS = {"deepl": {"message"}, "azure": {"error"}, "libretranslate": {"error"}}


def message_of(vendor: str, body: Any) -> str:
    """Return the message of an error body; fails if the body has another form than the vendor's."""
    if vendor == "deepl":
        assert body.keys() == {"message"}
        message = body["message"]
    elif vendor == "libretranslate":
        assert body.keys() == {"error"}
        message = body["error"]
    elif vendor.startswith("azure"):
        assert body["error"].keys() == {"code", "message"}
        assert body["error"]["code"] // 1000 == 400
        message = body["error"]["message"]
    else:
        error = body["error"]
        message = error["message"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
        assert error["errors"] == [{"message": message, "domain": "global", "reason": "invalid"}]
        (violation,) = [each for detail in error["details"] for each in detail.get("fieldViolations", ())]
        assert message.startswith(f"{violation['field']}: ")
    assert isinstance(message, str)
    return message


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> VendorClient:
    return CLIENTS[request.param]


async def test_client_gets_translations_and_detected_languages(server: RunningServer, client: VendorClient) -> None:
    texts = [*TEXTS, "7 🙂", GERMAN, "Hotel"]

    named = await asyncio.to_thread(client.translate, server, TEXTS, "de", "")
    detected = await asyncio.to_thread(client.detect, server, texts)

    first, second = await translated(server, *TEXTS)
    assert named == [first, second]
    assert [text for text, _ in detected] == [first, second, "7 🙂", GERMAN, "Hotel"]
    assert [language for _, language in detected] == ["en", "en", "en", "de", "de"]


async def test_client_reports_languages_that_are_not_served(server: RunningServer, client: VendorClient) -> None:
    with pytest.raises(client.rejected):
        await asyncio.to_thread(client.translate, server, TEXTS, "ja", "")
    with pytest.raises(client.rejected, match="fr"):
        await asyncio.to_thread(client.detect, server, ["A man rides.", "Bonjour tout le monde"])


async def test_keys_and_rate_limits_apply(
    tiny_model: Path, tmp_path: Path, client: VendorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)
    callers = write_callers(tmp_path, {"shop": KEY}, requests_per_s=1)

    async with running_server(tiny_model, access__callers_file=callers, grpc__google_translation=True) as server:
        with pytest.raises(client.invalid_key):
            await asyncio.to_thread(client.translate, server, TEXTS[:1], "de", new_key())
        answered = await asyncio.to_thread(client.translate, server, TEXTS[:1], "de", KEY)
        with pytest.raises(client.rate_limited):
            await asyncio.to_thread(client.translate, server, TEXTS[:1], "de", KEY)

    assert answered[0]


@pytest.mark.parametrize("vendor", INVALID)
async def test_invalid_field_is_named_in_the_form_of_the_vendor(server: RunningServer, vendor: str) -> None:
    async with http_client(server, headers={"content-type": "application/json"}) as http:
        for change, field in INVALID[vendor]:
            body = body_of(vendor)
            if vendor == "azure":
                body["inputs"][0] |= change
            else:
                body = change if vendor == "azure 3.0" else body | change
            response = await http.post(PATHS[vendor], content=json.dumps(body))

            assert response.status_code == 400, (change, response.text)
            assert message_of(vendor, response.json()).startswith(f"{field}: "), response.text


@pytest.mark.parametrize("vendor", PATHS)
async def test_body_that_is_not_json_is_rejected(server: RunningServer, vendor: str) -> None:
    async with http_client(server, headers={"content-type": "application/json"}) as http:
        for content in (b"{", b'"A."', b'{"a": 1, "a": 2}'):
            response = await http.post(PATHS[vendor], content=content)

            assert response.status_code == 400
            assert message_of(vendor, response.json())


@pytest.mark.parametrize("vendor", PATHS)
async def test_text_in_the_target_language_is_unchanged_and_rejected_by_google(
    http: httpx.AsyncClient, vendor: str
) -> None:
    response = await http.post(PATHS[vendor].replace("to=de", "to=en"), json=body_of(vendor, target="en"))

    if vendor.startswith("google"):
        assert response.status_code == 400
        assert message_of(vendor, response.json()).startswith("target")
    else:
        assert response.status_code == 200
        assert '"A."' in response.text


async def test_compressed_body_is_rejected_with_the_header(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    for path in PATHS.values():
        response = await http.post(path, content=gzip.compress(b"{}"), headers=headers)

        assert (response.status_code, response.headers["accept-encoding"]) == (415, "identity"), path
        assert "content-encoding: " in response.text


@pytest.mark.parametrize("vendor", UNSERVED)
async def test_other_methods_and_paths_are_rejected_in_the_form_of_the_vendor(
    http: httpx.AsyncClient, vendor: str
) -> None:
    for method, path, status in UNSERVED[vendor]:
        response = await http.request(method, path)

        assert (response.status_code, response.json().keys()) == (status, FORMS[vendor]), (method, path)
        assert ("allow" in response.headers) == (status == 405)


async def test_draining_server_names_the_reason_in_a_header(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server, http_client(server) as http:
        await server.app.drain()
        vendors = ("deepl", "azure", "libretranslate")
        answers = [await http.post(PATHS[vendor], json=body_of(vendor)) for vendor in vendors]

    assert [(each.status_code, each.headers["x-error-reason"]) for each in answers] == [(503, "DRAINING")] * 3
