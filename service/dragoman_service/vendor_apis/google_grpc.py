"""Google Cloud Translation v3: converts its messages to requests of the service and back, for gRPC and REST.

The messages are in the package google-cloud-translate. Each method has the limits and needs the permission of a method
of the service. All other methods are UNIMPLEMENTED.
"""

import asyncio
import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.cloud.translate_v3 import types as google
from google.protobuf import descriptor_pb2, descriptor_pool

from dragoman_service.calls.handlers import Handler, Handlers, TranslatedText
from dragoman_service.calls.pipeline import Call
from dragoman_service.calls.policy import DETECT_LANGUAGE, LIST_GLOSSARIES, LIST_MODELS, TRANSLATE, CallPolicy
from dragoman_service.errors import InvalidFieldError, RequestError, UnsupportedFieldError
from dragoman_service.grpc_api.servicer import UnaryMethod
from dragoman_service.http_api.routes import language_pairs
from dragoman_service.models.glossaries import Glossary
from dragoman_service.request import TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.translation.settings import MAX_TEXTS
from dragoman_service.vendor_apis.base import NO_LANGUAGE
from dragoman_service.vendor_apis.language_names import language_name
from dragoman_service.vendor_apis.parameters import check_texts

SERVICE = "google.cloud.translation.v3.TranslationService"
_FILE = "google/cloud/translation/v3/translation_service.proto"

_KEY_HEADER = "x-goog-api-key"
_POLICIES: Mapping[str, CallPolicy] = {
    name: replace(policy, key_header=_KEY_HEADER)
    for name, policy in {
        "TranslateText": TRANSLATE,
        "DetectLanguage": DETECT_LANGUAGE,
        "GetSupportedLanguages": LIST_MODELS,
        "ListGlossaries": LIST_GLOSSARIES,
        "GetGlossary": LIST_GLOSSARIES,
    }.items()
}
"""The implemented methods, each with the policy of a method of the API."""

_FORMATS = {"": TextFormat.HTML, "text/html": TextFormat.HTML, "text/plain": TextFormat.PLAIN}
_FIELDS: Mapping[str, str] = {
    "texts": "contents",
    "source_language": "source_language_code",
    "target_language": "target_language_code",
    "options.glossary": "glossary_config.glossary",
}
"""Google's name of a field of the service, for errors."""

_PARENT = re.compile(r"projects/[^/]+(?:/locations/[^/]+)?")
_RESOURCE_NAME = re.compile(r"(projects/[^/]+/locations/[^/]+)/(models|glossaries)/(.+)")
_GENERAL_MODELS = frozenset({"", "general/base", "general/nmt"})
_DETECTION_MODEL = "language-detection/default"
_MAX_PAGE = 1000
_MAX_LOCALE_CHARACTERS = 35  # of the longest tags (RFC 5646, section 4.4.1)
_ENGLISH = "en"


class GoogleTranslation:
    """Answers the methods of Google's service."""

    name = SERVICE

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._max_characters = handlers.limits.max_text_characters
        wrapped: dict[str, tuple[Handler, Any, Any]] = {
            "TranslateText": (self._translate_text, google.TranslateTextRequest, google.TranslateTextResponse),
            "DetectLanguage": (self._detect_language, google.DetectLanguageRequest, google.DetectLanguageResponse),
            "GetSupportedLanguages": (
                self._get_languages,
                google.GetSupportedLanguagesRequest,
                google.SupportedLanguages,
            ),
            "ListGlossaries": (self._list_glossaries, google.ListGlossariesRequest, google.ListGlossariesResponse),
            "GetGlossary": (self._get_glossary, google.GetGlossaryRequest, google.Glossary),
        }
        self.methods: Mapping[str, UnaryMethod] = {
            name: UnaryMethod(policy=_POLICIES[name], handler=handler, request=request.pb())
            for name, (handler, request, _) in wrapped.items()
        }
        self._responses = {name: response.pb() for name, (_, _, response) in wrapped.items()}

    def add_descriptors(self) -> None:
        """Add the service to the protobuf descriptors: google-cloud-translate contains only messages."""
        package, _, name = SERVICE.rpartition(".")
        file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=package, syntax="proto3")
        service = file.service.add(name=name)
        for method_name, method in self.methods.items():
            messages = [method.request.DESCRIPTOR, self._responses[method_name].DESCRIPTOR]
            file.dependency.extend(sorted({message.file.name for message in messages}.difference(file.dependency)))
            request, response = (f".{message.full_name}" for message in messages)
            service.method.add(name=method_name, input_type=request, output_type=response)
        descriptor_pool.Default().Add(file)

    async def _translate_text(self, message: Any, call: Call) -> Any:
        with _google_field_names():
            request = translation_request(message, max_characters=self._max_characters)
            translated = await self._handlers.translate_each(request, call)
            check_languages_differ(request, translated)
            response = google.TranslateTextResponse.pb()(translations=_translations(message, translated))
            if message.HasField("glossary_config"):
                name = _resource(message.glossary_config.glossary, "glossaries", "glossary")
                request = replace(request, options=replace(request.options, glossary=name))
                with_terms = await self._handlers.translate_each(request, call)
                response.glossary_translations.extend(_translations(message, with_terms))
                for translation in response.glossary_translations:
                    translation.glossary_config.CopyFrom(message.glossary_config)
            return response

    async def _detect_language(self, message: Any, call: Call) -> Any:
        _check_parent(message.parent)
        if message.model and _resource(message.model, "models", "model") != _DETECTION_MODEL:
            raise InvalidFieldError("model", repr(message.model[:64]), f"absent, or .../models/{_DETECTION_MODEL}")
        _check_mime_type(message.mime_type)
        texts = check_texts("content", [message.content], max_characters=self._max_characters)
        with _google_field_names():
            (languages,) = await self._handlers.detect_languages(texts, call)
        return google.DetectLanguageResponse.pb()(
            languages=[
                {"language_code": language.language, "confidence": language.confidence}
                for language in languages or [NO_LANGUAGE]
            ]
        )

    async def _get_languages(self, message: Any, _call: Call) -> Any:
        _check_parent(message.parent)
        model = model_name(message.model)
        pairs = language_pairs(self._handlers.models.get_model(model) if model else self._handlers.models.list_models())
        targets = set().union(*pairs.values())
        locale = message.display_language_code
        names = await language_names(pairs.keys() | targets, locale) if locale else {}
        return google.SupportedLanguages.pb()(
            languages=[
                {
                    "language_code": code,
                    "display_name": names.get(code, ""),
                    "support_source": code in pairs,
                    "support_target": code in targets,
                }
                for code in sorted(pairs.keys() | targets)
            ]
        )

    async def _list_glossaries(self, message: Any, _call: Call) -> Any:
        _check_parent(message.parent)
        if message.filter:
            raise UnsupportedFieldError("filter")
        glossaries = self._handlers.glossaries.all()
        size = min(message.page_size, _MAX_PAGE) if message.page_size > 0 else _MAX_PAGE
        names = [glossary.name for glossary in glossaries]
        start = bisect_left(names, message.page_token)  # the named glossary may have been removed
        following = names[start + size : start + size + 1]
        return google.ListGlossariesResponse.pb()(
            glossaries=[_glossary(glossary, message.parent) for glossary in glossaries[start : start + size]],
            next_page_token=following[0] if following else "",
        )

    async def _get_glossary(self, message: Any, _call: Call) -> Any:
        name = _resource(message.name, "glossaries", "name")
        return _glossary(self._handlers.glossaries.get(name, field="name"), message.name.partition("/glossaries/")[0])


async def language_names(tags: Iterable[str], locale: str) -> dict[str, str]:
    """Return names of languages in the language of a locale, in English if the locale is unknown."""
    in_locale = locale if len(locale) <= _MAX_LOCALE_CHARACTERS else _ENGLISH
    return await asyncio.to_thread(lambda: {tag: language_name(tag, locale=in_locale) for tag in tags})


def translation_request(message: Any, *, max_characters: int) -> TranslationRequest:
    """Return the request of the service, without the glossary; RequestError names the first invalid field."""
    _check_parent(message.parent)
    _check_mime_type(message.mime_type)
    if message.HasField("glossary_config") and not message.source_language_code:
        raise RequestError("source_language_code", "is required with a glossary")
    if message.transliteration_config.enable_transliteration:
        raise UnsupportedFieldError("transliteration_config")
    if message.glossary_config.contextual_translation_enabled:
        raise UnsupportedFieldError("glossary_config.contextual_translation_enabled")
    if not message.target_language_code:
        raise RequestError("target_language_code", "is required")
    texts = check_texts("contents", list(message.contents[: MAX_TEXTS + 1]), max_characters=max_characters)
    return TranslationRequest(
        texts=tuple(texts),
        source_language=message.source_language_code,
        target_language=message.target_language_code,
        model=model_name(message.model),
        options=TranslationOptions(format=_FORMATS[message.mime_type]),
    )


def _translations(message: Any, translated: Sequence[TranslatedText]) -> list[Any]:
    parent = message.parent if "/locations/" in message.parent else f"{message.parent}/locations/global"
    make = google.Translation.pb()
    return [
        make(
            translated_text=text.best,
            model=f"{parent}/models/{text.model}" if text.model else "",
            detected_language_code=text.detected.language if text.detected else "",
        )
        for text in translated
    ]


def check_languages_differ(request: TranslationRequest, translated: Sequence[TranslatedText]) -> None:
    """Raise RequestError if the request names the same language twice and no model is served for it, as Google does."""
    if request.source_language and any(text.translation.is_unchanged for text in translated):
        raise RequestError("target_language", "must differ from the source language")


def _check_mime_type(mime_type: str) -> None:
    if mime_type not in _FORMATS:
        raise InvalidFieldError("mime_type", repr(mime_type[:64]), "text/plain or text/html")


def _check_parent(parent: str) -> None:
    if not _PARENT.fullmatch(parent):
        raise InvalidFieldError("parent", repr(parent[:64]), "projects/PROJECT, or projects/PROJECT/locations/LOCATION")


def model_name(name: str) -> str:
    """Return the name of a model of this server; empty for Google's general models, which select the default."""
    model = _resource(name, "models", "model") if name else ""
    return "" if model in _GENERAL_MODELS else model


def _resource(name: str, collection: str, field: str) -> str:
    """Return the last part of the name of a resource, such as `projects/p/locations/l/models/m`."""
    match = _RESOURCE_NAME.fullmatch(name)
    if match is None or match[2] != collection:
        raise InvalidFieldError(field, repr(name[:64]), f"projects/PROJECT/locations/LOCATION/{collection}/NAME")
    return match[3]


def _glossary(glossary: Glossary, parent: str) -> Any:
    described = google.Glossary.pb()(
        name=f"{parent}/glossaries/{glossary.name}",
        display_name=glossary.name,
        entry_count=sum(map(len, glossary.terms.values())),
    )
    if len(glossary.terms) == 1:
        ((source, target),) = glossary.terms
        described.language_pair.source_language_code = source
        described.language_pair.target_language_code = target
    else:
        codes = sorted({code for pair in glossary.terms for code in pair})
        described.language_codes_set.language_codes.extend(codes)
    for time in (described.submit_time, described.end_time):
        time.FromSeconds(int(glossary.modified_s))
    return described


@contextlib.contextmanager
def _google_field_names() -> Iterator[None]:
    """Make errors name the fields of Google's request."""
    try:
        yield
    except RequestError as error:
        name, bracket, index = error.field.partition("[")
        error.field = f"{_FIELDS.get(name, name)}{bracket}{index}"
        error.args = (f"{error.field}: {error.description}",)
        raise
