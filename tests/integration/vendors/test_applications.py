"""Requests as applications send them, by their source code; the table in docs/guides/migrating.md lists them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.running_server import http_client, running_server

KEY = {"authorization": "DeepL-Auth-Key any"}
EXTENSION = {"origin": "moz-extension://5a1c-22", "sec-fetch-site": "cross-site"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
TEXT = "A man rides a bicycle."


@pytest.fixture(scope="module")
async def http(tiny_model: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_server(tiny_model, http__allowed_origins=["moz-extension:"]) as server,
        http_client(server) as http,
    ):
        yield http


TRANSLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "Weblate, DeepL": (
        "/v2/translate",
        {
            "headers": KEY,
            "json": {
                "text": ['Press <x id="6"></x> to save.', "Two."],
                "source_lang": "EN",
                "target_lang": "DE",
                "formality": "default",
                "tag_handling": "xml",
                "ignore_tags": ["x"],
            },
        },
    ),
    "Weblate, LibreTranslate": ("/translate", {"data": {"api_key": "", "q": TEXT, "source": "en", "target": "de"}}),
    "Mastodon, DeepL": (
        "/v2/translate",
        {
            "headers": KEY,
            "data": {"text": [f"<p>{TEXT}</p>"], "source_lang": "EN", "target_lang": "de", "tag_handling": "html"},
        },
    ),
    "Mastodon, LibreTranslate": (
        "/translate",
        {"json": {"q": [f"<p>{TEXT}</p>"], "source": "auto", "target": "de", "format": "html", "api_key": None}},
    ),
    "Mastodon, DeepL, unknown source": (
        "/v2/translate",
        {"headers": {**KEY, **FORM}, "content": f"text={TEXT}&source_lang&target_lang=de&tag_handling=html"},
    ),
    "OmegaT, DeepL": (
        "/v2/translate",
        {"headers": KEY, "data": {"text": TEXT, "target_lang": "DE-DE", "source_lang": "EN", "split_sentences": "0"}},
    ),
    "Calibre, DeepL": (
        "/v2/translate",
        {"headers": KEY, "data": {"text": f"{TEXT} <m id=00001 />", "target_lang": "DE"}},
    ),
    "kiss-translator, DeepL": (
        "/v2/translate",
        {"headers": {**KEY, **EXTENSION}, "json": {"text": [TEXT], "target_lang": "DE", "source_lang": "EN"}},
    ),
    "kiss-translator, Azure": (
        "/translate?from=&to=de&api-version=3.0",
        {"headers": {"authorization": "Bearer any", **EXTENSION}, "json": [{"Text": TEXT}]},
    ),
}


@pytest.mark.parametrize("application", TRANSLATIONS)
async def test_translation_request_of_an_application_is_answered(http: httpx.AsyncClient, application: str) -> None:
    path, request = TRANSLATIONS[application]
    response = await http.post(path, **request)

    assert response.status_code == 200, response.text
    assert ("<m id=00001 />" in response.json()["translations"][0]["text"]) if "Calibre" in application else True
    assert ("access-control-allow-origin" in response.headers) == ("kiss" in application)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/languages?type=source",
        "/v2/languages?type=target",
        "/v2/languages?enable_beta_languages=1&type=source",
        "/v2/glossaries",
        "/v2/usage",
        "/languages",
    ],
)
async def test_other_requests_of_applications_are_answered(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path, headers=KEY)).status_code == 200


async def test_weblate_uploads_no_glossary(http: httpx.AsyncClient) -> None:
    # For a listed pair, Weblate uploads the glossary of the project. If that fails, it translates nothing.
    pairs = (await http.get("/v2/glossary-language-pairs", headers=KEY)).json()

    assert pairs == {"supported_languages": []}


async def test_key_of_tolgee_in_the_form_is_rejected(http: httpx.AsyncClient) -> None:
    form = {"auth_key": "any", "text": TEXT, "source_lang": "EN", "target_lang": "DE", "formality": "default"}
    response = await http.post("/v2/translate", data=form)

    assert (response.status_code, response.json()["message"].partition(":")[0]) == (400, "auth_key")
