"""Google Cloud Translation v3: converts its messages to those of the contract and back, for gRPC and for REST.

The messages are those of the package google-cloud-translate. Each method counts as a method of the contract and needs
the permission of that method. All other methods are UNIMPLEMENTED.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.cloud.translate_v3 import types as google
from google.protobuf import descriptor_pb2, descriptor_pool

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.datatypes import DetectedLanguage
from dragoman_service.errors import InvalidFieldError, RequestError, UnsupportedFieldError
from dragoman_service.http_api.routes import MODEL_SERVICE, TRANSLATION_SERVICE, language_pairs
from dragoman_service.middleware import conversion
from dragoman_service.middleware.pipeline import Backend
from dragoman_service.models.glossaries import Glossary
from dragoman_service.request import RequestRecord
from dragoman_service.vendor_apis.base import Translated, translate_each
from dragoman_service.vendor_apis.language_names import language_name

SERVICE = "google.cloud.translation.v3.TranslationService"
"""Its name on the wire."""

_FILE = "google/cloud/translation/v3/translation_service.proto"

METHODS: Mapping[str, str] = {
    f"/{SERVICE}/{method}": ours
    for method, ours in {
        "TranslateText": f"/{TRANSLATION_SERVICE}/Translate",
        "DetectLanguage": f"/{TRANSLATION_SERVICE}/DetectLanguage",
        "GetSupportedLanguages": f"/{MODEL_SERVICE}/ListModels",
        "ListGlossaries": f"/{MODEL_SERVICE}/ListGlossaries",
        "GetGlossary": f"/{MODEL_SERVICE}/ListGlossaries",
    }.items()
}
"""The methods that are answered, each with the one of ours that it counts as."""

_FORMATS: Mapping[str, pb.TextFormat] = {
    "": pb.TEXT_FORMAT_HTML,
    "text/html": pb.TEXT_FORMAT_HTML,
    "text/plain": pb.TEXT_FORMAT_PLAIN,
}
_FIELDS: Mapping[str, str] = {
    "texts": "contents",
    "source_language": "source_language_code",
    "target_language": "target_language_code",
    "options.glossary": "glossary_config.glossary",
}
"""What Google calls a field of the contract."""

_PARENT = re.compile(r"projects/[^/]+(?:/locations/[^/]+)?")
_NAMED = re.compile(r"(projects/[^/]+/locations/[^/]+)/(models|glossaries)/(.+)")
_GENERAL_MODELS = frozenset({"", "general/base", "general/nmt"})
_DETECTION_MODEL = "language-detection/default"
_MAX_PAGE = 1000
_MAX_LOCALE_CHARACTERS = 35  # of the longest tags (RFC 5646, section 4.4.1)
_ENGLISH = "en"


@dataclass(frozen=True, slots=True)
class Method:
    """One method of Google's service."""

    answer: Callable[[Any, RequestRecord], Awaitable[Any]]
    request: type[Any]
    """Class of the protobuf message that `answer` takes."""

    response: type[Any]
    """Class of the protobuf message that `answer` returns."""


class GoogleTranslation:
    """Answers the methods of Google's service with those of the contract."""

    name = SERVICE
    methods = METHODS

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        wrapped: dict[str, tuple[Callable[[Any, RequestRecord], Awaitable[Any]], Any, Any]] = {
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
        self.by_name: Mapping[str, Method] = {
            name: Method(answer, request.pb(), response.pb()) for name, (answer, request, response) in wrapped.items()
        }
        """The methods by the last part of their path."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the methods with a server, and describe the service for reflection."""
        self._describe()
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method.answer, method.request.FromString, method.response.SerializeToString
            )
            for name, method in self.by_name.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_registered_method_handlers(SERVICE, handlers)

    def _describe(self) -> None:
        """Add the service to the protobuf descriptors: google-cloud-translate describes messages only."""
        package, _, name = SERVICE.rpartition(".")
        file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=package, syntax="proto3")
        service = file.service.add(name=name)
        for method_name, method in self.by_name.items():
            messages = [method.request.DESCRIPTOR, method.response.DESCRIPTOR]
            file.dependency.extend(sorted({message.file.name for message in messages}.difference(file.dependency)))
            request, response = (f".{message.full_name}" for message in messages)
            service.method.add(name=method_name, input_type=request, output_type=response)
        descriptor_pool.Default().Add(file)

    async def _translate_text(self, request: Any, record: RequestRecord) -> Any:
        with _fields_of_google():
            wanted = translate_request(request)
            translated = await translate_each(self._backend, wanted, record)
            response = google.TranslateTextResponse.pb()(translations=_translations(request, translated))
            if request.HasField("glossary_config"):
                wanted.options.glossary = _resource(request.glossary_config.glossary, "glossaries", "glossary")
                with_terms = await translate_each(self._backend, wanted, record)
                response.glossary_translations.extend(_translations(request, with_terms))
                for one in response.glossary_translations:
                    one.glossary_config.CopyFrom(request.glossary_config)
            return response

    async def _detect_language(self, request: Any, record: RequestRecord) -> Any:
        _check_parent(request.parent)
        if request.model and _resource(request.model, "models", "model") != _DETECTION_MODEL:
            raise InvalidFieldError("model", repr(request.model[:64]), f"absent, or .../models/{_DETECTION_MODEL}")
        if request.mime_type not in _FORMATS:
            raise InvalidFieldError("mime_type", "something else", "text/plain or text/html")
        with _fields_of_google():
            texts, _ = conversion.from_detect_language_request(pb.DetectLanguageRequest(texts=[request.content]))
            (detected,) = await self._backend.translator.detect_languages(texts, record)
        languages = detected or (DetectedLanguage(language="und", confidence=0.0),)
        return google.DetectLanguageResponse.pb()(
            languages=[{"language_code": one.language, "confidence": one.confidence} for one in languages]
        )

    async def _get_languages(self, request: Any, _record: RequestRecord) -> Any:
        _check_parent(request.parent)
        model = model_name(request.model)
        models = self._backend.models
        pairs = language_pairs(models.get_model(conversion.from_model_name(model)) if model else models.list_models())
        targets = set().union(*pairs.values())
        locale = request.display_language_code
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

    async def _list_glossaries(self, request: Any, _record: RequestRecord) -> Any:
        _check_parent(request.parent)
        if request.filter:
            raise UnsupportedFieldError("filter")
        found = self._backend.glossaries.all()
        size = min(request.page_size, _MAX_PAGE) if request.page_size > 0 else _MAX_PAGE
        names = [one.name for one in found]
        start = names.index(request.page_token) if request.page_token in names else 0
        following = names[start + size : start + size + 1]
        return google.ListGlossariesResponse.pb()(
            glossaries=[_glossary(one, request.parent) for one in found[start : start + size]],
            next_page_token=following[0] if following else "",
        )

    async def _get_glossary(self, request: Any, _record: RequestRecord) -> Any:
        name = _resource(request.name, "glossaries", "name")
        return _glossary(self._backend.glossaries.get(name, field="name"), request.name.partition("/glossaries/")[0])


async def language_names(tags: Iterable[str], locale: str) -> dict[str, str]:
    """Return names of languages in the language of a locale, in English if the locale is not known."""
    in_locale = locale if len(locale) <= _MAX_LOCALE_CHARACTERS else _ENGLISH
    return await asyncio.to_thread(lambda: {tag: language_name(tag, locale=in_locale) for tag in tags})


def translate_request(request: Any) -> pb.TranslateRequest:
    """Return the request of the contract, without the glossary; RequestError names the field that cannot be."""
    _check_parent(request.parent)
    if request.mime_type not in _FORMATS:
        raise InvalidFieldError("mime_type", "something else", "text/plain or text/html")
    if request.HasField("glossary_config") and not request.source_language_code:
        raise InvalidFieldError("source_language_code", "absent", "a language, where there is a glossary")
    if request.transliteration_config.enable_transliteration:
        raise UnsupportedFieldError("transliteration_config")
    if request.glossary_config.contextual_translation_enabled:
        raise UnsupportedFieldError("glossary_config.contextual_translation_enabled")
    return pb.TranslateRequest(
        texts=request.contents,
        source_language=request.source_language_code,
        target_language=request.target_language_code,
        model=model_name(request.model),
        options=pb.DecodingOptions(format=_FORMATS[request.mime_type]),
    )


def _translations(request: Any, translated: Sequence[Translated]) -> list[Any]:
    place = request.parent if "/locations/" in request.parent else f"{request.parent}/locations/global"
    make = google.Translation.pb()
    return [
        make(
            translated_text=one.text,
            model=f"{place}/models/{one.model}" if one.model else "",
            detected_language_code=one.detected.language if one.detected else "",
        )
        for one in translated
    ]


def _check_parent(parent: str) -> None:
    if not _PARENT.fullmatch(parent):
        raise InvalidFieldError("parent", repr(parent[:64]), "projects/PROJECT, or projects/PROJECT/locations/LOCATION")


def model_name(name: str) -> str:
    """Return the name of a model in the contract; empty for the general models of Google, which select the default."""
    model = _resource(name, "models", "model") if name else ""
    return "" if model in _GENERAL_MODELS else model


def _resource(name: str, collection: str, field: str) -> str:
    """Return the last part of the full name of a resource."""
    match = _NAMED.fullmatch(name)
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
def _fields_of_google() -> Iterator[None]:
    """Let errors name the fields of Google's request."""
    try:
        yield
    except RequestError as error:
        name, bracket, index = error.field.partition("[")
        error.field = f"{_FIELDS.get(name, name)}{bracket}{index}"
        error.args = (f"{error.field}: {error.description}",)
        raise
