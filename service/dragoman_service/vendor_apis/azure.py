"""Azure Translator API: `/translate`, `/detect` and `/languages` with `api-version` in the query.

Version 3.0 has its parameters in the query. In later versions (2025-05-01-preview, 2026-06-06) each input names its
targets. Errors are `{"error": {"code": ..., "message": "..."}}`. LibreTranslate has the same paths without
`api-version`.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, FailFast, Field
from pydantic.alias_generators import to_camel
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from dragoman_service.calls.handlers import TranslatedText
from dragoman_service.calls.pipeline import Call
from dragoman_service.calls.policy import DETECT_LANGUAGE, LIST_MODELS, TRANSLATE
from dragoman_service.datatypes import DetectedLanguage, Translation
from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.http_api.bodies import check_unicode, converted, json_content
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.request import TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.translation.settings import MAX_TEXTS
from dragoman_service.vendor_apis.base import NO_LANGUAGE, VendorApi, json_error
from dragoman_service.vendor_apis.dynamic_dictionary import DictionaryText, read_dictionary
from dragoman_service.vendor_apis.language_names import is_right_to_left, language_name, native_language_name
from dragoman_service.vendor_apis.parameters import AnyCase, Parameters, Text, body_fields, check_texts

_V3 = "3.0"
_GENERAL = "general"  # Azure's own model, which selects the default of the language pair
_FORMATS = {"plain": TextFormat.PLAIN, "html": TextFormat.HTML}

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.NOT_FOUND: HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
    HTTPStatus.CONFLICT: HTTPStatus.SERVICE_UNAVAILABLE,
}
_CODES: Mapping[str, int] = {
    "source_language": 400035,
    "target_language": 400036,
    "model": 400079,
    "texts": 400077,
    "text": 400077,
    "inputs": 400077,
}
"""Error codes by the field; other errors have the status and three zeros."""

_TextType = Annotated[Literal["plain", "html"], AnyCase]
_Scope = Literal["translation", "transliteration", "dictionary", "models"]


class _AzureParameters(Parameters):
    model_config = ConfigDict(alias_generator=to_camel)


class _FixedParameters(_AzureParameters):
    """Parameters whose only accepted values are what the server does in any case."""

    profanity_action: Annotated[Literal["noaction"], AnyCase] = "noaction"
    profanity_marker: Annotated[Literal["asterisk", "tag"], AnyCase] = "asterisk"
    allow_fallback: Annotated[Literal["true", "false"], AnyCase] = "true"


class V3Parameters(_FixedParameters):
    """Query of `/translate` in version 3.0."""

    api_version: str = Field(default="", alias="api-version")
    source: str = Field(default="", alias="from")
    targets: list[str] = Field(alias="to", min_length=1)
    text_type: _TextType = "plain"
    category: str = _GENERAL
    include_alignment: Annotated[bool, AnyCase] = False
    include_sentence_length: Annotated[bool, AnyCase] = False


class VersionParameters(Parameters):
    """Query of `/translate` in later versions."""

    api_version: str = Field(default="", alias="api-version")


class TargetParameters(_FixedParameters):
    """Target of an input in later versions."""

    language: str
    deployment_name: str = _GENERAL
    tone: Annotated[Literal["neutral"], AnyCase] = "neutral"
    gender: Annotated[Literal["neutral"], AnyCase] = "neutral"


class InputParameters(_AzureParameters):
    """Input of `/translate` in later versions."""

    text: Text
    language: str = ""
    text_type: _TextType = "plain"
    targets: Annotated[list[TargetParameters], FailFast()] = Field(min_length=1, max_length=MAX_TEXTS)


class BatchParameters(Parameters):
    """Body of `/translate` in later versions."""

    inputs: Annotated[list[InputParameters], FailFast()] = Field(min_length=1, max_length=MAX_TEXTS)


class LanguagesParameters(Parameters):
    """Query of `/languages`."""

    scope: Annotated[list[_Scope], BeforeValidator(lambda value: [name for name in str(value).split(",") if name])] = (
        Field(default=[])
    )


@dataclass(frozen=True, slots=True)
class _Input:
    original: str
    dictionary: DictionaryText  # the text to translate
    targets: Sequence[TranslationRequest]  # without texts


class AzureApi(VendorApi):
    """Routes of Azure Translator."""

    key_header = "ocp-apim-subscription-key"
    key_place = "the header `Ocp-Apim-Subscription-Key: KEY`"
    field_names: ClassVar[Mapping[str, str]] = {"source_language": "from", "target_language": "to", "texts": "text"}

    def routes(self) -> list[Route]:
        """Return the routes, which go before those of LibreTranslate, with rejections for other methods."""
        rejected = {
            "/transliterate": "transliteration is not supported",
            "/breaksentence": "not supported; use `includeSentenceLength` of /translate",
            "/dictionary/lookup": "dictionaries are not supported",
            "/dictionary/examples": "dictionaries are not supported",
        }
        return [
            _VersionedRoute("/translate", self.method(TRANSLATE, self._translate), methods=["POST"]),
            _VersionedRoute("/detect", self.method(DETECT_LANGUAGE, self._detect), methods=["POST"]),
            _VersionedRoute("/languages", self.method(LIST_MODELS.anonymous(), self._list_languages), methods=["GET"]),
            *(
                _VersionedRoute(path, self.rejection(HTTPStatus.BAD_REQUEST, message), methods=["POST"])
                for path, message in rejected.items()
            ),
            *self.rejections({"/translate": "POST", "/detect": "POST", "/languages": "GET"}, _VersionedRoute),
        ]

    def error_response(self, error: Problem, message: str) -> Response:
        """Return `{"error": {"code": CODE, "message": MESSAGE}}`."""
        status = _STATUSES.get(error.status, error.status) if error.members else error.status
        (field, *_) = [violation["field"] for violation in error.members.get("violations", ())] or [""]
        code = _CODES.get(field if "." in field else field.partition("[")[0], status * 1000)
        return json_error(status, {"error": {"code": code, "message": message}})

    async def _translate(self, context: HttpContext, call: Call, body: bytes) -> Response:
        v3 = None
        if context.query.get("api-version") == _V3:
            targets = [value for name, value in context.parameters if name == "to"]
            v3 = V3Parameters.parse({**context.query, "to": targets})
        else:
            VersionParameters.parse(context.query)
        parse = partial(_inputs, body, v3, max_characters=self.max_text_characters)
        inputs = await converted(parse, len(body))
        translated = await self._translated(inputs, call)
        items = [
            _item(each, [translated[index, target] for target in each.targets], v3) for index, each in enumerate(inputs)
        ]
        content = await converted(lambda: to_json(items if v3 else {"value": items}), len(body))
        num_characters = sum(len(each.original) * len(each.targets) for each in inputs)
        headers = {"x-metered-usage": str(num_characters), "x-requestid": call.request_id}
        return Response(content, headers=headers, media_type=JSON_MEDIA_TYPE)

    async def _translated(
        self, inputs: Sequence[_Input], call: Call
    ) -> dict[tuple[int, TranslationRequest], TranslatedText]:
        """Translate texts with equal targets together; return translations by index of the input and target."""
        translations: dict[tuple[int, TranslationRequest], TranslatedText] = {}
        for target in dict.fromkeys(target for each in inputs for target in each.targets):
            indices = [index for index, each in enumerate(inputs) if target in each.targets]
            texts = [inputs[index].dictionary for index in indices]
            has_dictionary = any(text.fixed_spans for text in texts)
            request = replace(
                target,
                texts=tuple(text.text for text in texts),
                fixed_spans=tuple(text.fixed_spans for text in texts) if has_dictionary else (),
            )
            translated = await self.handlers.translate_each(request, call)
            translations.update(zip(((index, target) for index in indices), translated, strict=True))
        return translations

    async def _detect(self, _context: HttpContext, call: Call, body: bytes) -> bytes:
        texts = await converted(lambda: _v3_texts(body, max_characters=self.max_text_characters), len(body))
        detected = map(_detected, await self.handlers.detect_languages(texts, call))
        return to_json([{**best, "alternatives": others} for best, *others in detected])

    async def _list_languages(self, context: HttpContext, _call: Call, _body: bytes) -> bytes:
        parameters = LanguagesParameters.parse({"scope": context.query.get("scope")})
        pairs = self.language_pairs()
        codes = sorted(pairs.keys() | set(itertools.chain.from_iterable(pairs.values())))
        groups: dict[str, object] = {
            "translation": await asyncio.to_thread(lambda: {code: _language(code) for code in codes}),
            "transliteration": {},
            "dictionary": {},
            "models": [],
        }
        return to_json({scope: groups[scope] for scope in parameters.scope or groups})


class _VersionedRoute(Route):
    """Route that matches only requests with `api-version` in the query."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request matches, and the parameters of its path."""
        is_azure = scope["type"] == "http" and b"api-version=" in scope["query_string"]
        return super().matches(scope) if is_azure else (Match.NONE, {})


def _inputs(body: bytes, v3: V3Parameters | None, *, max_characters: int) -> list[_Input]:
    """Return the inputs of a body; `v3` is the query of version 3.0."""
    if v3:
        targets = [
            _target(v3.source, target, v3.category, v3.text_type, has_alignment=v3.include_alignment)
            for target in v3.targets
        ]
        texts = _v3_texts(body, max_characters=max_characters)
        inputs = [_input(text, v3.text_type, targets) for text in texts]
    else:
        batch = BatchParameters.parse(body_fields(body, JSON_MEDIA_TYPE), max_text_characters=max_characters)
        inputs = [
            _input(
                each.text,
                each.text_type,
                [
                    _target(each.language, target.language, target.deployment_name, each.text_type)
                    for target in each.targets
                ],
            )
            for each in batch.inputs
        ]
    num_translations = sum(len(each.targets) for each in inputs)
    if num_translations > MAX_TEXTS:
        limit = f"at most {MAX_TEXTS} over all texts and languages"
        raise InvalidFieldError("texts", f"{num_translations} translations", limit)
    return inputs


def _input(text: str, text_type: str, targets: Sequence[TranslationRequest]) -> _Input:
    return _Input(text, read_dictionary(text, is_html=text_type == "html"), targets)


def _v3_texts(body: bytes, *, max_characters: int) -> list[str]:
    content = json_content(body)
    if not isinstance(content, list):
        raise RequestError("request", 'expected a list of `{"Text": "..."}`')
    texts = check_texts("texts", [_v3_text(each) for each in content], max_characters=max_characters)
    check_unicode(texts, "texts")
    return texts


def _v3_text(item: object) -> object:
    if not isinstance(item, dict) or [name.lower() for name in item] != ["text"]:
        raise RequestError("request", 'expected a list of `{"Text": "..."}`')
    return next(iter(item.values()))


def _target(source: str, target: str, model: str, text_type: str, *, has_alignment: bool = False) -> TranslationRequest:
    return TranslationRequest(
        texts=(),
        source_language=source,
        target_language=target,
        model="" if model == _GENERAL else model,
        options=TranslationOptions(format=_FORMATS[text_type], return_alignment=has_alignment),
    )


def _item(text: _Input, translated: Sequence[TranslatedText], v3: V3Parameters | None) -> dict[str, Any]:
    item: dict[str, Any] = {}
    if detected := translated[0].detected:
        item["detectedLanguage"] = {"language": detected.language, "score": round(detected.confidence, 2)}
    item["translations"] = [
        {"to": target.target_language, **_v3_translation(text, each.translation, v3)}
        if v3
        else {"language": target.target_language, "text": each.best, "sourceCharacters": len(text.original)}
        for target, each in zip(text.targets, translated, strict=True)
    ]
    return item


def _v3_translation(text: _Input, translation: Translation, query: V3Parameters) -> dict[str, Any]:
    best, position = translation.hypotheses[0], text.dictionary.original_position
    item: dict[str, Any] = {"text": best.text}
    if query.include_alignment:
        links = (
            f"{position(link.source.start)}:{position(link.source.end - 1)}-{link.target.start}:{link.target.end - 1}"
            for link in best.alignment
        )
        item["alignment"] = {"proj": " ".join(links)}
    if query.include_sentence_length:
        item["sentLen"] = {
            "srcSentLen": _lengths(
                [position(sentence.source.start) for sentence in translation.sentences], len(text.original)
            ),
            "transSentLen": _lengths([sentence.target.start for sentence in translation.sentences], len(best.text)),
        }
    return item


def _lengths(starts: Sequence[int], end: int) -> list[int]:
    """Return the lengths of the sentences that begin at `starts`; they add up to `end`."""
    bounds = [0, *starts[1:], end]
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def _detected(languages: Sequence[DetectedLanguage]) -> list[dict[str, Any]]:
    """Return the candidates for a text; the language is `und` if detection failed."""
    return [
        {
            "language": language.language,
            "score": round(language.confidence, 2),
            "isTranslationSupported": language.is_served,
            "isTransliterationSupported": False,
        }
        for language in languages or [NO_LANGUAGE]
    ]


def _language(code: str) -> dict[str, object]:
    direction = "rtl" if is_right_to_left(code) else "ltr"
    names = {"name": language_name(code), "nativeName": native_language_name(code)}
    return {**names, "dir": direction, "models": [_GENERAL]}
