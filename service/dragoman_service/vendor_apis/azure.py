"""Azure Translator's API for its clients: `/translate`, `/detect` and `/languages` with `api-version`.

It takes two versions of requests: 3.0, whose parameters are in the query, and later ones (2025-05-01-preview,
2026-06-06), whose inputs name their targets. Errors have Azure's form, `{"error": {"code": ..., "message": "..."}}`.
LibreTranslate has the same paths, without `api-version`.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import InvalidFieldError
from dragoman_service.http_api.bodies import check_unicode, converted, json_content
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.request import MAX_TEXTS, RequestRecord
from dragoman_service.vendor_apis.base import Translated, VendorApi, check_known, check_texts, json_error
from dragoman_service.vendor_apis.language_names import is_right_to_left, language_name, native_language_name

_V3 = "3.0"
_KEY_HEADER = "ocp-apim-subscription-key"
_GENERAL = "general"
"""Azure's own model, which stands for the default of the language pair."""

_FORMATS: Mapping[str, pb.TextFormat] = {"plain": pb.TEXT_FORMAT_PLAIN, "html": pb.TEXT_FORMAT_HTML}
_V3_PARAMETERS = ("api-version", "from", "to", "textType", "category", "includeAlignment", "includeSentenceLength")
_V3_FIXED: Mapping[str, Sequence[str]] = {
    "profanityAction": ("noaction",),
    "profanityMarker": ("asterisk", "tag"),
    "allowFallback": ("true", "false"),
}
"""Parameters that may have these values only, as they choose what the server does anyway."""

_TARGET_FIXED: Mapping[str, Sequence[str]] = {**_V3_FIXED, "tone": ("neutral",), "gender": ("neutral",)}
_PATHS: Mapping[str, Sequence[str]] = {"/translate": ("POST",), "/detect": ("POST",), "/languages": ("GET",)}
"""The methods of each path."""

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.NOT_FOUND: HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
    HTTPStatus.CONFLICT: HTTPStatus.SERVICE_UNAVAILABLE,
}
_CODES: Mapping[str, int] = {"source_language": 400035, "target_language": 400036, "model": 400079, "texts": 400077}
"""By the field that a request must change; other errors have three zeros behind the status."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What is the same for all texts of one call of ours."""

    source: str
    target: str
    model: str
    text_format: pb.TextFormat


@dataclass(frozen=True, slots=True)
class _Input:
    """A text and what it is to become."""

    text: str
    targets: Sequence[_Settings]


@dataclass(frozen=True, slots=True)
class _Extras:
    """What version 3.0 adds to each translation if asked."""

    has_alignment: bool = False
    has_lengths: bool = False


class AzureApi(VendorApi):
    """Answers the routes of Azure Translator."""

    key_place = "the header `Ocp-Apim-Subscription-Key: KEY`"
    field_names: ClassVar[Mapping[str, str]] = {"source_language": "from", "target_language": "to", "texts": "text"}

    def routes(self) -> list[Route]:
        """Return what to add to the application, before the routes of LibreTranslate."""
        refused = {
            "/transliterate": "this server does not transliterate",
            "/breaksentence": "this server does not break sentences: see `includeSentenceLength`",
            "/dictionary/lookup": "this server has no dictionary",
            "/dictionary/examples": "this server has no dictionary",
        }
        return [
            _VersionedRoute("/translate", self.endpoint(self._translate), methods=["POST"]),
            _VersionedRoute("/detect", self.endpoint(self._detect), methods=["POST"]),
            _VersionedRoute("/languages", self.endpoint(self._list_languages), methods=["GET"]),
            *(
                _VersionedRoute(path, self.refusal(HTTPStatus.BAD_REQUEST, message), methods=["POST"])
                for path, message in refused.items()
            ),
            *self.refusals(_PATHS, _VersionedRoute),
        ]

    def failed(self, found: Problem, message: str) -> Response:
        """Return `{"error": {"code": CODE, "message": MESSAGE}}`."""
        status = _STATUSES.get(found.status, found.status) if found.members else found.status
        fields = [violation["field"].partition("[")[0] for violation in found.members.get("violations", ())]
        code = _CODES.get(fields[0], status * 1000) if fields else status * 1000
        return json_error(status, {"error": {"code": code, "message": message}})

    async def _translate(self, context: HttpContext) -> None:
        _authorize(context)

        async def respond(record: RequestRecord, body: bytes) -> Response:
            is_v3 = context.query.get("api-version") == _V3
            read = _inputs_of_v3 if is_v3 else _inputs
            inputs = await converted(lambda: read(context, body, max_characters=self.max_text_characters), len(body))
            extras = _extras(context) if is_v3 else _Extras()
            translated = await self._translated(inputs, extras, record)
            answered = [
                _item(one, extras, [translated[index, target] for target in one.targets], is_v3=is_v3)
                for index, one in enumerate(inputs)
            ]
            headers = {"x-metered-usage": str(sum(len(one.text) * len(one.targets) for one in inputs))}
            content = await converted(lambda: to_json(answered if is_v3 else {"value": answered}), len(body))
            return Response(content, headers={**headers, "x-requestid": record.request_id}, media_type=JSON_MEDIA_TYPE)

        await self.answer_translation(context, respond)

    async def _translated(
        self, inputs: Sequence[_Input], extras: _Extras, record: RequestRecord
    ) -> dict[tuple[int, _Settings], Translated]:
        """Translate the texts that have the same settings at once; return translations by input and settings."""
        found: dict[tuple[int, _Settings], Translated] = {}
        wanted = dict.fromkeys(target for one in inputs for target in one.targets)
        for settings in wanted:
            indices = [index for index, one in enumerate(inputs) if settings in one.targets]
            request = pb.TranslateRequest(
                texts=[inputs[index].text for index in indices],
                source_language=settings.source,
                target_language=settings.target,
                model=settings.model,
                options=pb.DecodingOptions(format=settings.text_format, return_alignment=extras.has_alignment),
            )
            translated = await self.translated(request, record)
            found.update(zip(((index, settings) for index in indices), translated, strict=True))
        return found

    async def _detect(self, context: HttpContext) -> None:
        _authorize(context)

        async def respond(record: RequestRecord, body: bytes) -> bytes:
            texts = await converted(lambda: _texts_of_v3(body, max_characters=self.max_text_characters), len(body))
            found = [_detected(languages) for languages in await self.detected(texts, record)]
            return to_json([{**best, "alternatives": others} for best, *others in found])

        await self.answer_translation(context, respond, method="DetectLanguage")

    async def _list_languages(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord) -> bytes:
            scopes = [scope for scope in context.query.get("scope", "").split(",") if scope]
            for scope in scopes:
                if scope not in {"translation", "transliteration", "dictionary", "models"}:
                    raise InvalidFieldError("scope", "something else", "translation, transliteration or dictionary")
            pairs = self.languages()
            codes = sorted(pairs.keys() | set(itertools.chain.from_iterable(pairs.values())))
            described = await asyncio.to_thread(lambda: {code: _described(code) for code in codes})
            groups: dict[str, object] = {
                "translation": described,
                "transliteration": {},
                "dictionary": {},
                "models": [],
            }
            return to_json({scope: groups[scope] for scope in scopes or groups})

        await self.answer_open(context, "ListModels", respond)


class _VersionedRoute(Route):
    """Matches requests whose query has a version of Azure's API."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a request is meant, and what its path holds."""
        is_azure = scope["type"] == "http" and b"api-version=" in scope["query_string"]
        return super().matches(scope) if is_azure else (Match.NONE, {})


def _authorize(context: HttpContext) -> None:
    if key := context.header(_KEY_HEADER):
        context.authorize(key)


def _inputs_of_v3(context: HttpContext, body: bytes, *, max_characters: int) -> list[_Input]:
    query = context.query
    check_known(query, (*_V3_PARAMETERS, *_V3_FIXED))
    _check_fixed(query, _V3_FIXED)
    settings = _settings(
        query.get("from"), context.query_values("to"), [query.get("category", _GENERAL)], query.get("textType", "plain")
    )
    return _checked([_Input(text, settings) for text in _texts_of_v3(body, max_characters=max_characters)])


def _texts_of_v3(body: bytes, *, max_characters: int) -> list[str]:
    content = json_content(body)
    if not isinstance(content, list):
        raise InvalidFieldError("request", "not a list", 'a list of `{"Text": "..."}`')
    texts = check_texts("texts", [_text_of_v3(one) for one in content], max_characters=max_characters)
    check_unicode(texts, "texts")
    return texts


def _text_of_v3(one: object) -> str:
    text = (
        next((value for name, value in one.items() if name.lower() == "text"), None) if isinstance(one, dict) else None
    )
    if not isinstance(text, str) or not isinstance(one, dict) or len(one) > 1:
        raise InvalidFieldError("request", "a list of something else", 'a list of `{"Text": "..."}`')
    return text


def _extras(context: HttpContext) -> _Extras:
    flags = [context.query.get(name, "false").lower() for name in ("includeAlignment", "includeSentenceLength")]
    if not set(flags) <= {"true", "false"}:
        raise InvalidFieldError("includeAlignment", "something else", "true or false")
    return _Extras(*(flag == "true" for flag in flags))


def _inputs(context: HttpContext, body: bytes, *, max_characters: int) -> list[_Input]:
    check_known(context.query, ("api-version",))
    content = json_content(body)
    check_unicode(content)
    inputs = content.get("inputs") if isinstance(content, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(one, dict) for one in inputs):
        raise InvalidFieldError("inputs", "no list of objects", "one")
    checked = _checked([_input(one) for one in inputs])
    check_texts("texts", [one.text for one in checked], max_characters=max_characters)
    return checked


def _input(one: Mapping[str, Any]) -> _Input:
    one = _present(one)
    check_known(one, ("text", "language", "textType", "targets"))
    targets = one.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, dict) for target in targets):
        raise InvalidFieldError("targets", "no list of objects", "one")
    for target in map(_present, targets):
        check_known(target, ("language", "deploymentName", *_TARGET_FIXED))
        _check_fixed(target, _TARGET_FIXED)
    if not isinstance(one.get("text"), str):
        raise InvalidFieldError("text", "absent or no text", "a text")
    languages = [target.get("language") for target in targets]
    models = [target.get("deploymentName") or _GENERAL for target in targets]
    return _Input(one["text"], _settings(one.get("language"), languages, models, one.get("textType", "plain")))


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _settings(
    source: object, targets: Iterable[object], models: Sequence[object], text_type: object
) -> tuple[_Settings, ...]:
    """Return the settings of each target; there is one model for all, or one for each."""
    if not isinstance(source, str | None):
        raise InvalidFieldError("from", "no text", "a language, such as `en`")
    text_format = _FORMATS.get(text_type.lower()) if isinstance(text_type, str) else None
    if text_format is None:
        raise InvalidFieldError("textType", "something else", "plain or html")
    found = []
    for target, model in zip(targets, itertools.cycle(models), strict=False):
        if not isinstance(target, str):
            raise InvalidFieldError("to", "absent or no text", "a language, such as `de`")
        if not isinstance(model, str):
            raise InvalidFieldError("deploymentName", "no text", "the name of a model")
        found.append(_Settings(source or "", target, "" if model == _GENERAL else model, text_format))
    if not found:
        raise InvalidFieldError("to", "absent", "a language, such as `de`")
    return tuple(found)


def _check_fixed(fields: Mapping[str, Any], fixed: Mapping[str, Sequence[str]]) -> None:
    for name, choices in fixed.items():
        if name in fields and str(fields[name]).lower() not in choices:
            raise InvalidFieldError(name, "something that this server does not do", f"one of {', '.join(choices)}")


def _checked(inputs: list[_Input]) -> list[_Input]:
    num_translations = sum(len(one.targets) for one in inputs)
    if not 1 <= num_translations <= MAX_TEXTS:
        limit = f"1 to {MAX_TEXTS} over all texts and languages"
        raise InvalidFieldError("texts", f"{num_translations} translations", limit)
    return inputs


def _item(one: _Input, extras: _Extras, translated: Sequence[Translated], *, is_v3: bool) -> dict[str, Any]:
    """Return what Azure answers to one text."""
    answered: dict[str, Any] = {}
    if detected := translated[0].detected:
        answered["detectedLanguage"] = {"language": detected.language, "score": round(detected.confidence, 2)}
    pairs = zip(one.targets, translated, strict=True)
    answered["translations"] = [_answer(one, target, extras, each.translation, is_v3=is_v3) for target, each in pairs]
    return answered


def _detected(languages: Sequence[pb.DetectedLanguage]) -> list[dict[str, Any]]:
    """Return what Azure says of the languages of a text; of one that nothing is told by that it is undetermined."""
    return [
        {
            "language": one.language,
            "score": round(one.confidence, 2),
            "isTranslationSupported": one.is_served,
            "isTransliterationSupported": False,
        }
        for one in languages or [pb.DetectedLanguage(language="und")]
    ]


def _answer(
    one: _Input, settings: _Settings, extras: _Extras, translation: pb.Translation, *, is_v3: bool
) -> dict[str, Any]:
    best = translation.hypotheses[0]
    if not is_v3:
        return {"language": settings.target, "text": best.text, "sourceCharacters": len(one.text)}
    answered: dict[str, Any] = {"text": best.text, "to": settings.target}
    if extras.has_alignment:
        links = (
            f"{link.source.start}:{link.source.end - 1}-{link.target.start}:{link.target.end - 1}"
            for link in best.alignment
        )
        answered["alignment"] = {"proj": " ".join(links)}
    if extras.has_lengths:
        answered["sentLen"] = {
            "srcSentLen": _lengths([sentence.source.start for sentence in translation.sentences], len(one.text)),
            "transSentLen": _lengths([sentence.target.start for sentence in translation.sentences], len(best.text)),
        }
    return answered


def _lengths(starts: Sequence[int], end: int) -> list[int]:
    """Return the lengths of the sentences of a text that begin there; they add up to it."""
    bounds = [0, *starts[1:], end]
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def _described(code: str) -> dict[str, object]:
    direction = "rtl" if is_right_to_left(code) else "ltr"
    names = {"name": language_name(code), "nativeName": native_language_name(code)}
    return {**names, "dir": direction, "models": [_GENERAL]}
