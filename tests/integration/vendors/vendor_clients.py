"""The client libraries of the vendors with one interface."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import deepl
import grpc
import httpx
from azure.ai.translation.text import TextTranslationClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from deep_translator import LibreTranslator  # type: ignore[import-untyped]
from deep_translator.exceptions import AuthorizationException, ServerException  # type: ignore[import-untyped]
from google.api_core import exceptions
from google.auth import api_key
from google.auth.credentials import AnonymousCredentials
from google.cloud import translate_v2  # type: ignore[attr-defined]
from google.cloud import translate_v3 as google
from google.cloud.translate_v3.services.translation_service.transports import TranslationServiceGrpcTransport

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer

Result = TypeVar("Result")

PARENT = "projects/shop/locations/global"
TEXTS = ("A man rides a bicycle.", "Two children play.")
PATHS = {
    "deepl": "/v2/translate",
    "azure": "/translate?api-version=2026-06-06",
    "azure 3.0": "/translate?api-version=3.0&from=en&to=de",
    "libretranslate": "/translate",
    "google v2": "/language/translate/v2",
    "google v3": f"/v3/{PARENT}:translateText",
}
Detected = list[tuple[str, str]]
"""Translation and source language of each text."""


@dataclass(frozen=True)
class VendorClient:
    """A client library; `translate` and `detect` block and use the key if it is not empty."""

    translate: Callable[[RunningServer, Sequence[str], str, str], list[str]]  # server, texts, target language, key
    detect: Callable[[RunningServer, Sequence[str]], Detected]
    rejected: type[Exception]
    invalid_key: type[Exception]
    rate_limited: type[Exception]


def body_of(vendor: str, text: str = "A.", target: str = "de") -> Any:
    """Return the body of a request to the path of a vendor from English; the path of Azure 3.0 has the target."""
    if vendor == "deepl":
        return {"text": [text], "source_lang": "EN", "target_lang": target.upper()}
    if vendor == "azure":
        return {"inputs": [{"text": text, "language": "en", "targets": [{"language": target}]}]}
    if vendor == "azure 3.0":
        return [{"Text": text}]
    if vendor == "google v3":
        return {"contents": [text], "sourceLanguageCode": "en", "targetLanguageCode": target}
    return {"q": text, "source": "en", "target": target}


async def translated(server: RunningServer, *texts: str, **options: Any) -> list[str]:
    """Return translations of the native API."""
    response = await server.translate(*texts, options=pb.DecodingOptions(**options))
    return [each.hypotheses[0].text for each in response.translations]


async def with_deepl(server: RunningServer, call: Callable[[deepl.DeepLClient], Result], key: str = "any") -> Result:
    def run() -> Result:
        with contextlib.closing(deepl.DeepLClient(key, server_url=server.url)) as client:
            return call(client)

    return await asyncio.to_thread(run)


async def with_azure(server: RunningServer, call: Callable[[TextTranslationClient], Result]) -> Result:
    return await asyncio.to_thread(lambda: call(azure_client(server)))


def azure_client(server: RunningServer, key: str = "any") -> TextTranslationClient:
    credential = AzureKeyCredential(key)
    return TextTranslationClient(server.url, credential, retry_total=0, enforce_https=False)


def google_rest_client(server: RunningServer, key: str = "") -> google.TranslationServiceClient:
    options = {"api_endpoint": server.url, **({"api_key": key} if key else {})}
    credentials = None if key else AnonymousCredentials()  # type: ignore[no-untyped-call]
    return google.TranslationServiceClient(transport="rest", client_options=options, credentials=credentials)


def google_v2_client(server: RunningServer, key: str = "") -> Any:
    credentials = api_key.Credentials(key) if key else AnonymousCredentials()  # type: ignore[no-untyped-call]
    return translate_v2.Client(credentials=credentials, client_options={"api_endpoint": server.url})


def google_grpc_client(server: RunningServer) -> google.TranslationServiceClient:
    channel = grpc.insecure_channel(server.target)
    return google.TranslationServiceClient(transport=TranslationServiceGrpcTransport(channel=channel))


def _deepl(server: RunningServer, texts: Sequence[str], source: str | None, target: str, key: str) -> Detected:
    with contextlib.closing(deepl.DeepLClient(key or "any", server_url=server.url)) as client:
        results = client.translate_text(list(texts), source_lang=source, target_lang=target)
    assert isinstance(results, list)
    return [(each.text, each.detected_source_lang.lower()) for each in results]


def _azure(server: RunningServer, texts: Sequence[str], source: str | None, target: str, key: str) -> Detected:
    with azure_client(server, key or "any") as client:
        items = client.translate(list(texts), to_language=[target], from_language=source)
    return [
        (item.translations[0].text, item.detected_language.language if item.detected_language else "") for item in items
    ]


def _libretranslate(server: RunningServer, texts: Sequence[str], target: str, key: str) -> list[str]:
    client = LibreTranslator(source="en", api_key=key or "any", custom_url=f"{server.url}/")
    client._target = target  # the constructor accepts only languages of its own list
    return [client.translate(text) for text in texts]


def _libretranslate_detected(server: RunningServer, texts: Sequence[str]) -> Detected:
    fields = {"q": list(texts), "source": "auto", "target": "de"}
    answer = httpx.post(f"{server.url}/translate", json=fields, timeout=TEST_TIMEOUT_S, trust_env=False)
    if answer.status_code != 200:
        raise ServerException(answer.status_code, answer.text)
    languages = [each["language"] for each in answer.json()["detectedLanguage"]]
    return list(zip(answer.json()["translatedText"], languages, strict=True))


def _google_v3(
    client: google.TranslationServiceClient, texts: Sequence[str], source: str, target: str, key: str = ""
) -> Detected:
    request = {
        "parent": PARENT,
        "contents": texts,
        "source_language_code": source,
        "target_language_code": target,
        "mime_type": "text/plain",
    }
    metadata = [("x-goog-api-key", key)] if key else []
    response = client.translate_text(request=request, metadata=metadata, retry=None)
    return [(each.translated_text, each.detected_language_code) for each in response.translations]


def _google_v2(server: RunningServer, texts: Sequence[str], source: str | None, target: str, key: str) -> Detected:
    client = google_v2_client(server, key)
    items = client.translate(list(texts), target_language=target, source_language=source, format_="text")
    return [(item["translatedText"], item.get("detectedSourceLanguage", "")) for item in items]


def _first(items: Detected) -> list[str]:
    return [text for text, _ in items]


CLIENTS = {
    "deepl": VendorClient(
        lambda server, texts, target, key: _first(_deepl(server, texts, "EN", target, key)),
        lambda server, texts: _deepl(server, texts, None, "DE", ""),
        deepl.DeepLException,
        deepl.AuthorizationException,
        deepl.TooManyRequestsException,
    ),
    "azure": VendorClient(
        lambda server, texts, target, key: _first(_azure(server, texts, "en", target, key)),
        lambda server, texts: _azure(server, texts, None, "de", ""),
        HttpResponseError,
        ClientAuthenticationError,
        HttpResponseError,
    ),
    "libretranslate": VendorClient(
        _libretranslate, _libretranslate_detected, ServerException, AuthorizationException, ServerException
    ),
    "google v2": VendorClient(
        lambda server, texts, target, key: _first(_google_v2(server, texts, "en", target, key)),
        lambda server, texts: _google_v2(server, texts, None, "de", ""),
        exceptions.ClientError,
        exceptions.BadRequest,
        exceptions.TooManyRequests,
    ),
    "google v3 rest": VendorClient(
        lambda server, texts, target, key: _first(_google_v3(google_rest_client(server, key), texts, "en", target)),
        lambda server, texts: _google_v3(google_rest_client(server), texts, "", "de"),
        exceptions.ClientError,
        exceptions.Unauthorized,
        exceptions.TooManyRequests,
    ),
    "google v3 grpc": VendorClient(
        lambda server, texts, target, key: _first(_google_v3(google_grpc_client(server), texts, "en", target, key)),
        lambda server, texts: _google_v3(google_grpc_client(server), texts, "", "de"),
        exceptions.ClientError,
        exceptions.Unauthenticated,
        exceptions.ResourceExhausted,
    ),
}
