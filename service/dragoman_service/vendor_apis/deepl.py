"""DeepL API: version 2, and reading languages and glossaries of version 3. Errors are `{"message": "..."}`."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from starlette.responses import Response
from starlette.routing import Route

from dragoman_service.calls.handlers import TranslatedText
from dragoman_service.calls.pipeline import Call
from dragoman_service.calls.policy import LIST_GLOSSARIES, LIST_MODELS, TRANSLATE
from dragoman_service.errors import GlossaryNotFoundError, InvalidFieldError, RequestError
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, converted
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.models.glossaries import Glossary, Pair
from dragoman_service.request import TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.vendor_apis.base import HTTP_METHODS, VendorApi, json_error
from dragoman_service.vendor_apis.language_names import dialect_name
from dragoman_service.vendor_apis.parameters import Parameters, StringList, Texts, Unsupported, as_list, body_fields

_TSV = "text/tab-separated-values"
_UNLIMITED = 1_000_000_000_000  # DeepL reports this limit for accounts without one
_FORMATS = {None: TextFormat.PLAIN, "html": TextFormat.HTML, "xml": TextFormat.XML}
_MAX_TAGS = 100
_TAG_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}")
_TAG_START = re.compile(r"<([A-Za-z_][\w.:-]*+)(?=[\s/>])")
_MARKUP = re.compile(r"<!--.*?(?:-->|\Z)|<[A-Za-z/!?][^<>]*+>", re.DOTALL)  # not counted with `tag_handling`
_UNTRANSLATED = "translate='no'"
_MAX_COUNTED_CALLERS = 20_000  # twice the maximum of a callers file
_VARIANTS: Mapping[str, Sequence[str]] = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
"""Target languages that DeepL's clients accept only with a region."""

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.UNAUTHORIZED: HTTPStatus.FORBIDDEN,
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
    HTTPStatus.CONFLICT: HTTPStatus.SERVICE_UNAVAILABLE,
}


def _language_tag(language: str) -> str:
    return language.lower().replace("_", "-")


def _tag_names(value: object) -> frozenset[str]:
    names = as_list(value)
    if not all(isinstance(name, str) for name in names) or sum(name.count(",") + 1 for name in names) > _MAX_TAGS:
        raise RequestError("ignore_tags", f"expected a list of at most {_MAX_TAGS} tag names")
    tags = frozenset(tag.strip() for name in names for tag in name.split(",")) - {""}
    if not all(map(_TAG_NAME.fullmatch, tags)):
        raise RequestError("ignore_tags", "expected names of tags")
    return tags


def _digit(value: object) -> object:
    """Convert an integer or a boolean of JSON to the string that a form contains."""
    return str(int(value)) if isinstance(value, int) else value


_Language = Annotated[str, AfterValidator(_language_tag)]


class TranslationParameters(Parameters):
    """Parameters that `/v2/translate` and `/v2/document` share."""

    target_lang: _Language
    source_lang: _Language | None = None
    formality: Literal["default", "prefer_less", "prefer_more"] = "default"  # DeepL accepts these for all languages
    tag_handling: Literal["html", "xml"] | None = None
    tag_handling_version: Literal["v1", "v2"] = "v2"
    split_sentences: Annotated[Literal["0", "1", "nonewlines"], BeforeValidator(_digit)] = "1"
    ignore_tags: Annotated[frozenset[str], BeforeValidator(_tag_names)] = frozenset()
    glossary_id: str | None = None
    glossary_ids: StringList = Field(default=[])
    model_type: Literal["quality_optimized", "prefer_quality_optimized", "latency_optimized"] | None = None
    preserve_formatting: bool = False
    outline_detection: bool = True
    show_billed_characters: bool = False
    enable_beta_languages: bool = False
    context: Unsupported = None
    splitting_tags: Unsupported = None
    non_splitting_tags: Unsupported = None

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.tag_handling is None:
            if self.ignore_tags:
                raise RequestError("ignore_tags", "requires tag_handling")
            if self.split_sentences == "nonewlines":
                raise RequestError("split_sentences", "'nonewlines' requires tag_handling")
        if not self.outline_detection:
            raise RequestError("outline_detection", "false is not supported")
        if len(self._glossaries) > 1:
            raise RequestError("glossary_ids", "more than one glossary is not supported")
        if self._glossaries and self.source_lang is None:
            raise RequestError("source_lang", "is required with a glossary")
        return self

    @property
    def _glossaries(self) -> list[str]:
        return [*([self.glossary_id] if self.glossary_id else []), *self.glossary_ids]

    def translation_request(self, texts: Sequence[str]) -> TranslationRequest:
        """Return the request of the service."""
        return TranslationRequest(
            texts=tuple(texts),
            source_language=self.source_lang or "",
            target_language=self.target_lang,
            options=TranslationOptions(
                format=_FORMATS[self.tag_handling],
                glossary="".join(self._glossaries),
                split_sentences=self.split_sentences != "0",
                beam_size=1 if self.model_type == "latency_optimized" else None,
            ),
        )


class TextParameters(TranslationParameters):
    """Parameters of `/v2/translate`."""

    text: Texts

    def num_characters(self) -> list[int]:
        """Return the number of characters of each text that DeepL would bill: all, or all outside of tags."""
        return [len(_MARKUP.sub("", text)) if self.tag_handling else len(text) for text in self.text]


class LanguagesParameters(Parameters):
    """Parameters of `/v2/languages`."""

    type: Literal["source", "target"] = "source"


class ResourceParameters(Parameters):
    """Parameters of `/v3/languages`."""

    resource: Literal["translate_text", "translate_document", "glossary"]
    include: Any = None  # also languages in beta, of which this server has none


class CharacterCounts:
    """Characters of source texts that were translated for each caller since the server started.

    If there are too many callers, the count of the caller with the oldest last request is dropped.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def add(self, caller: str, num_characters: int) -> None:
        """Count the texts of an answered request."""
        self._counts[caller] = self._counts.pop(caller, 0) + num_characters
        if len(self._counts) > _MAX_COUNTED_CALLERS:
            self._counts.popitem(last=False)

    def of(self, caller: str) -> int:
        """Return the count of a caller."""
        return self._counts.get(caller, 0)


class DeepLApi(VendorApi):
    """Routes of DeepL."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE)
    key_place = "the header `Authorization: DeepL-Auth-Key KEY`"
    key_scheme = "DeepL-Auth-Key"
    field_names: ClassVar[Mapping[str, str]] = {
        "texts": "text",
        "source_language": "source_lang",
        "target_language": "target_lang",
        "options.glossary": "glossary_id",
    }

    @cached_property
    def usage(self) -> CharacterCounts:
        """Translated characters of each caller."""
        return CharacterCounts()

    def routes(self) -> list[Route]:
        """Return the routes, with rejections for all other paths below `/v2` and `/v3`."""
        list_glossaries, get_glossary, get_entries = (
            self.method(LIST_GLOSSARIES, handler)
            for handler in (self._list_glossaries, self._get_glossary, self._get_entries)
        )
        changing = self.rejection(
            HTTPStatus.BAD_REQUEST, "glossaries are files on the server and cannot be changed by requests"
        )
        others = self.rejection(HTTPStatus.NOT_FOUND, "not offered by this server")
        routes = [
            Route("/v2/translate", self.method(TRANSLATE, self._translate), methods=["POST"]),
            Route("/v2/languages", self.method(LIST_MODELS, self._list_languages), methods=["GET"]),
            Route("/v3/languages", self.method(LIST_MODELS, self._list_resource_languages), methods=["GET"]),
            Route("/v2/usage", self.method(LIST_MODELS, self._get_usage), methods=["GET"]),
            Route("/v2/glossary-language-pairs", self.method(LIST_MODELS, self._list_pairs), methods=["GET"]),
        ]
        for path in ("/v2/glossaries", "/v3/glossaries"):
            routes += [
                Route(path, list_glossaries, methods=["GET"]),
                Route(f"{path}/{{glossary}}", get_glossary, methods=["GET"]),
                Route(f"{path}/{{glossary}}/entries", get_entries, methods=["GET"]),
                *(Route(f"{path}{rest}", changing, methods=HTTP_METHODS[1:]) for rest in ("", "/{rest:path}")),
            ]
        return [
            *routes,
            *(Route(f"/{version}/{{rest:path}}", others, methods=HTTP_METHODS) for version in ("v2", "v3")),
        ]

    def error_response(self, error: Problem, message: str) -> Response:
        """Return `{"message": MESSAGE}`."""
        code = _STATUSES.get(error.status, error.status)
        if error.members.get("reason") == "MODEL_NOT_FOUND":
            code = HTTPStatus.BAD_REQUEST
        return json_error(code, {"message": message})

    async def _translate(self, context: HttpContext, call: Call, body: bytes) -> bytes:
        def parse() -> tuple[TextParameters, TranslationRequest, str]:
            fields = body_fields(body, context.header("content-type"))
            parameters = TextParameters.parse(fields, max_text_characters=self.max_text_characters)
            return parameters, *marked_request(parameters, max_characters=self.max_text_characters)

        parameters, request, marker = await converted(parse, len(body))
        translated = await self.handlers.translate_each(request, call)

        def serialize() -> tuple[int, bytes]:
            counts = parameters.num_characters()
            return sum(counts), to_json(translations(translated, parameters, counts, marker))

        num_characters, content = await converted(serialize, len(body))
        self.usage.add(call.caller, num_characters)
        return content

    async def _list_languages(self, context: HttpContext, _call: Call, body: bytes) -> bytes:
        pairs = self.language_pairs()
        fields = body_fields(body, context.header("content-type")) if body else {}
        parameters = LanguagesParameters.parse({"type": {**context.query, **fields}.get("type")})
        if parameters.type == "source":
            return await asyncio.to_thread(lambda: to_json([_language(code.upper()) for code in sorted(pairs)]))
        codes = sorted({code.upper() for targets in pairs.values() for code in targets})
        variants = [variant for code in codes for variant in _VARIANTS.get(code, (code,))]
        return await asyncio.to_thread(
            lambda: to_json([{**_language(code), "supports_formality": False} for code in variants])
        )

    async def _list_resource_languages(self, context: HttpContext, _call: Call, _body: bytes) -> bytes:
        query = {"resource": context.query.get("product", ""), **context.query}  # `product` before May 2026
        ResourceParameters.parse({name: value for name, value in query.items() if name != "product"})
        pairs = self.language_pairs()
        codes = {code.upper() for targets in pairs.values() for code in targets}
        targets = {variant for code in codes for variant in _VARIANTS.get(code, (code,))}
        sources = {code.upper() for code in pairs}
        return await asyncio.to_thread(
            lambda: to_json([_resource_language(code, sources, targets) for code in sorted(sources | targets)])
        )

    async def _list_pairs(self, _context: HttpContext, _call: Call, _body: bytes) -> bytes:
        # Clients such as Weblate create a glossary for a listed pair, and translate nothing if that fails.
        return to_json({"supported_languages": []})

    async def _get_usage(self, _context: HttpContext, call: Call, _body: bytes) -> bytes:
        return to_json({"character_count": self.usage.of(call.caller), "character_limit": _UNLIMITED})

    async def _list_glossaries(self, context: HttpContext, _call: Call, _body: bytes) -> bytes:
        is_v2 = _is_v2(context)
        glossaries = [each for each in self.handlers.glossaries.all() if not is_v2 or len(each.terms) == 1]
        return to_json({"glossaries": [_described(glossary, is_v2=is_v2) for glossary in glossaries]})

    async def _get_glossary(self, context: HttpContext, _call: Call, _body: bytes) -> bytes:
        return to_json(_described(self._glossary(context), is_v2=_is_v2(context)))

    async def _get_entries(self, context: HttpContext, _call: Call, _body: bytes) -> bytes | Response:
        glossary = self._glossary(context)
        if _is_v2(context):
            return Response(_entries(glossary, next(iter(glossary.terms))), media_type=_TSV)
        source, target = (context.query.get(name, "") for name in ("source_lang", "target_lang"))
        requested = _language_tag(source), _language_tag(target)
        pair = glossary.find(*requested)
        if pair is None:
            raise GlossaryNotFoundError("source_lang", " to ".join(requested), tuple(map(" to ".join, glossary.terms)))
        entries = {"entries": _entries(glossary, pair), "entries_format": "tsv"}
        return to_json({"dictionaries": [{"source_lang": pair[0], "target_lang": pair[1], **entries}]})

    def _glossary(self, context: HttpContext) -> Glossary:
        glossary = self.handlers.glossaries.get(context.path_parameters["glossary"], field="glossary_id")
        if _is_v2(context) and len(glossary.terms) != 1:
            raise RequestError("glossary_id", "the glossary has several directions: use version 3 of the API")
        return glossary


def marked_request(parameters: TextParameters, *, max_characters: int) -> tuple[TranslationRequest, str]:
    """Return the request of the service, and the marker that was added to the start tags of `ignore_tags`.

    Raises:
        InvalidFieldError: if a text is too long with its markers.
    """
    texts, tags = parameters.text, parameters.ignore_tags
    marker = unused_marker(texts) if tags else ""
    if tags:
        texts = _marked(texts, tags, marker, max_characters=max_characters)
    return parameters.translation_request(texts), marker


def unused_marker(texts: Sequence[str]) -> str:
    """Return the attribute `translate='no'` after white space that precedes it in no text.

    The time is linear in the length of the texts, and the marker has at most a few dozen characters.
    """
    parts = [part for text in texts for part in text.split(_UNTRANSLATED)[:-1]]
    width = (len(parts) + 1).bit_length()  # more patterns of this width than parts
    used = {part[-width:] for part in parts}
    patterns = (format(number, f"0{width}b").translate({48: " ", 49: "\t"}) for number in range(len(parts) + 1))
    return f" {next(pattern for pattern in patterns if pattern not in used)}{_UNTRANSLATED}"


def _marked(texts: Sequence[str], tags: Collection[str], marker: str, *, max_characters: int) -> list[str]:
    marked = [_TAG_START.sub(lambda tag: f"{tag[0]}{marker}" if tag[1] in tags else tag[0], text) for text in texts]
    for index, (text, longer) in enumerate(zip(texts, marked, strict=True)):
        if len(longer) > max_characters:
            limit = f"at most {max_characters}, including {len(marker)} for each start tag of `ignore_tags`"
            raise InvalidFieldError(f"text[{index}]", f"{len(text)} characters", limit)
    return marked


def translations(
    translated: Sequence[TranslatedText], parameters: TextParameters, num_characters: Sequence[int], marker: str
) -> dict[str, Any]:
    """Return the response of `/v2/translate`; `num_characters` are counts of each text."""
    items = []
    for text, count in zip(translated, num_characters, strict=True):
        source = text.detected.language if text.detected else parameters.source_lang or ""
        item: dict[str, Any] = {
            "detected_source_language": source.upper(),
            "text": text.best.replace(marker, "") if marker else text.best,
        }
        if parameters.show_billed_characters:
            item["billed_characters"] = count
        if parameters.tag_handling:
            item["tag_handling_version"] = parameters.tag_handling_version
        if parameters.model_type:
            item["model_type_used"] = parameters.model_type.removeprefix("prefer_")
        items.append(item)
    return {"translations": items}


def _is_v2(context: HttpContext) -> bool:
    return context.path.startswith("/v2/")


def _language(code: str) -> dict[str, Any]:
    return {"language": code, "name": dialect_name(code)}


def _resource_language(code: str, sources: Collection[str], targets: Collection[str]) -> dict[str, Any]:
    language, *others = code.lower().split("-")
    lang = "-".join([language, *(other.title() if len(other) == 4 else other.upper() for other in others)])
    features = ("tag_handling", "glossary", *(("auto_detection",) if code in sources else ()))
    return {
        "lang": lang,
        "name": dialect_name(code),
        "usable_as_source": code in sources,
        "usable_as_target": code in targets,
        "status": "stable",
        "features": {name: {"status": "stable"} for name in features},
    }


def _described(glossary: Glossary, *, is_v2: bool) -> dict[str, Any]:
    created = datetime.fromtimestamp(glossary.modified_s, UTC).isoformat(timespec="microseconds")
    dictionaries = [
        {"source_lang": source, "target_lang": target, "entry_count": len(terms)}
        for (source, target), terms in glossary.terms.items()
    ]
    described = {"glossary_id": glossary.name, "name": glossary.name, "creation_time": created}
    return {**described, "ready": True, **dictionaries[0]} if is_v2 else {**described, "dictionaries": dictionaries}


def _entries(glossary: Glossary, pair: Pair) -> str:
    return "\n".join(f"{term.source}\t{term.target or term.source}" for term in glossary.terms[pair])
