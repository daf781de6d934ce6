"""DeepL's API for its clients: version 2, and reading the glossaries of version 3.

Errors have DeepL's form, `{"message": "..."}`, and one of its statuses.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.routing import Route

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import GlossaryNotFoundError, InvalidFieldError
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, converted
from dragoman_service.http_api.context import JSON_MEDIA_TYPE, HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.models.glossaries import Glossary, Pair
from dragoman_service.request import RequestRecord
from dragoman_service.vendor_apis.base import (
    Translated,
    VendorApi,
    check_known,
    check_texts,
    fields_of,
    given,
    json_error,
)
from dragoman_service.vendor_apis.language_names import dialect_name

_SCHEME = "DeepL-Auth-Key"
_TSV = "text/tab-separated-values"
_UNLIMITED = 1_000_000_000_000
"""The limit that DeepL gives to accounts without one."""

_FORMATS: Mapping[str | None, pb.TextFormat] = {
    None: pb.TEXT_FORMAT_PLAIN,
    "html": pb.TEXT_FORMAT_HTML,
    "xml": pb.TEXT_FORMAT_XML,
}
_FORMALITIES = ("default", "prefer_less", "prefer_more")
"""Those that DeepL itself takes for languages in which it cannot choose."""

_MODEL_TYPES = ("quality_optimized", "prefer_quality_optimized", "latency_optimized")
_FLAGS = ("preserve_formatting", "outline_detection", "show_billed_characters", "enable_beta_languages")
_LISTS = ("text", "ignore_tags", "splitting_tags", "non_splitting_tags", "glossary_ids")
_FIELDS = (
    *("source_lang", "target_lang", "context", "split_sentences", "formality", "glossary_id"),
    *("tag_handling", "tag_handling_version", "model_type", *_FLAGS, *_LISTS),
)
_CHANGING = ["POST", "PUT", "PATCH", "DELETE"]
_GLOSSARIES = [("v2", ""), ("v2", "/{rest:path}"), ("v3", ""), ("v3", "/{rest:path}")]
_MAX_TAGS = 100
_TAG_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}")
_TAG_START = re.compile(r"<([A-Za-z_][\w.:-]*+)(?=[\s/>])")
_MARKUP = re.compile(r"<!--.*?(?:-->|\Z)|<[A-Za-z/!?][^<>]*+>", re.DOTALL)
"""Tags and comments, which are not counted where there is `tag_handling`."""

_UNTRANSLATED = "translate='no'"

_MAX_COUNTED_CALLERS = 20_000
_VARIANTS: Mapping[str, Sequence[str]] = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
"""Target languages that DeepL's clients take with a region only."""

_STATUSES: Mapping[HTTPStatus, HTTPStatus] = {
    HTTPStatus.UNAUTHORIZED: HTTPStatus.FORBIDDEN,
    HTTPStatus.UNPROCESSABLE_ENTITY: HTTPStatus.BAD_REQUEST,
    HTTPStatus.CONFLICT: HTTPStatus.SERVICE_UNAVAILABLE,
}


class CharacterCounts:
    """Characters of source texts that callers have had translated since the server started.

    Twice as many callers are counted as a callers file may have; of more, those that have translated last.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def add(self, caller: str, num_characters: int) -> None:
        """Count the texts of a request that was answered."""
        self._counts[caller] = self._counts.pop(caller, 0) + num_characters
        if len(self._counts) > _MAX_COUNTED_CALLERS:
            self._counts.popitem(last=False)

    def of(self, caller: str) -> int:
        """Return what is counted of a caller."""
        return self._counts.get(caller, 0)


class DeepLApi(VendorApi):
    """Answers the routes of DeepL."""

    media_types = (JSON_MEDIA_TYPE, FORM_MEDIA_TYPE)
    key_place = f"the header `Authorization: {_SCHEME} KEY`"
    field_names: ClassVar[Mapping[str, str]] = {
        "texts": "text",
        "source_language": "source_lang",
        "target_language": "target_lang",
        "options.glossary": "glossary_id",
    }

    @cached_property
    def _usage(self) -> CharacterCounts:
        return CharacterCounts()

    def routes(self) -> list[Route]:
        """Return what to add to the application."""
        read = {
            "/v2/languages": self._list_languages,
            "/v2/usage": self._tell_usage,
            "/v2/glossary-language-pairs": self._list_pairs,
            "/v2/glossaries": self._list_glossaries,
            "/v2/glossaries/{glossary}": self._get_glossary,
            "/v2/glossaries/{glossary}/entries": self._get_entries,
            "/v3/glossaries": self._list_glossaries,
            "/v3/glossaries/{glossary}": self._get_glossary,
            "/v3/glossaries/{glossary}/entries": self._get_entries,
        }
        changing = self.refusal(HTTPStatus.BAD_REQUEST, "glossaries are files of the server and cannot be changed here")
        others = self.refusal(HTTPStatus.NOT_FOUND, "this server does not offer that")
        return [
            Route("/v2/translate", self.endpoint(self._translate), methods=["POST"]),
            *(Route(path, self.endpoint(answer), methods=["GET"]) for path, answer in read.items()),
            *(Route(f"/{version}/glossaries{rest}", changing, methods=_CHANGING) for version, rest in _GLOSSARIES),
            *(Route(f"/{version}/{{rest:path}}", others, methods=["GET", *_CHANGING]) for version in ("v2", "v3")),
        ]

    def count_characters(self, caller: str, num_characters: int) -> None:
        """Add characters that were translated for a caller to its usage."""
        self._usage.add(caller, num_characters)

    def failed(self, found: Problem, message: str) -> Response:
        """Return `{"message": MESSAGE}`."""
        code = _STATUSES.get(found.status, found.status)
        if found.members.get("reason") == "MODEL_NOT_FOUND":
            code = HTTPStatus.BAD_REQUEST
        return json_error(code, {"message": message})

    async def _translate(self, context: HttpContext) -> None:
        context.take_scheme(_SCHEME)

        async def respond(record: RequestRecord, body: bytes) -> bytes:
            content_type = context.header("content-type")

            def parse() -> tuple[dict[str, Any], pb.TranslateRequest, str]:
                fields = fields_of(body, content_type, repeated=_LISTS)
                return fields, *translate_request(fields, max_characters=self.max_text_characters)

            fields, request, marker = await converted(parse, len(body))
            translated = await self.translated(request, record)

            def finish() -> tuple[int, bytes]:
                counts = counted_characters(fields)
                return sum(counts), to_json(answer(translated, fields, counts, marker))

            num_characters, content = await converted(finish, len(body))
            self._usage.add(record.caller, num_characters)
            return content

        await self.answer_translation(context, respond)

    async def _list_languages(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord, body: bytes) -> bytes:
            pairs = self.languages()
            sent = fields_of(body, context.header("content-type"), repeated=()) if body else {}
            kind = {**context.query, **sent}.get("type", "source")
            if kind == "source":
                return await asyncio.to_thread(
                    lambda: to_json([_language_item(code.upper()) for code in sorted(pairs)])
                )
            if kind != "target":
                raise InvalidFieldError("type", repr(str(kind)[:64]), "source or target")
            codes = sorted({code.upper() for targets in pairs.values() for code in targets})
            variants = [variant for code in codes for variant in _VARIANTS.get(code, (code,))]
            return await asyncio.to_thread(
                lambda: to_json([{**_language_item(code), "supports_formality": False} for code in variants])
            )

        await self._answer_reading(context, "ListModels", respond)

    async def _list_pairs(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord, _body: bytes) -> bytes:
            pairs = self.languages()
            listed = [
                {"source_lang": source, "target_lang": target}
                for source in sorted(pairs)
                for target in sorted(pairs[source])
            ]
            return to_json({"supported_languages": listed})

        await self._answer_reading(context, "ListModels", respond)

    async def _tell_usage(self, context: HttpContext) -> None:
        async def respond(record: RequestRecord, _body: bytes) -> bytes:
            return to_json({"character_count": self._usage.of(record.caller), "character_limit": _UNLIMITED})

        await self._answer_reading(context, "ListModels", respond)

    async def _list_glossaries(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord, _body: bytes) -> bytes:
            describe = _described if context.path.startswith("/v3/") else _described_in_v2
            found = [one for one in self._backend.glossaries.all() if describe is _described or len(one.terms) == 1]
            return to_json({"glossaries": [describe(glossary) for glossary in found]})

        await self._answer_reading(context, "ListGlossaries", respond)

    async def _get_glossary(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord, _body: bytes) -> bytes:
            glossary = self._glossary(context)
            return to_json((_described if context.path.startswith("/v3/") else _described_in_v2)(glossary))

        await self._answer_reading(context, "ListGlossaries", respond)

    async def _get_entries(self, context: HttpContext) -> None:
        async def respond(_record: RequestRecord, _body: bytes) -> bytes | Response:
            glossary = self._glossary(context)
            if context.path.startswith("/v2/"):
                return Response(_entries(glossary, next(iter(glossary.terms))), media_type=_TSV)
            pair = _tag(context.query.get("source_lang", "")), _tag(context.query.get("target_lang", ""))
            if pair not in glossary.terms:
                raise GlossaryNotFoundError("source_lang", " to ".join(pair), tuple(map(" to ".join, glossary.terms)))
            entries = {"entries": _entries(glossary, pair), "entries_format": "tsv"}
            return to_json({"dictionaries": [{"source_lang": pair[0], "target_lang": pair[1], **entries}]})

        await self._answer_reading(context, "ListGlossaries", respond)

    def _glossary(self, context: HttpContext) -> Glossary:
        glossary = self._backend.glossaries.get(context.path_parameters["glossary"], field="glossary_id")
        if context.path.startswith("/v2/") and len(glossary.terms) != 1:
            raise InvalidFieldError("glossary_id", "a glossary of several directions", "read by version 3 of the API")
        return glossary

    async def _answer_reading(
        self, context: HttpContext, method: str, respond: Callable[[RequestRecord, bytes], Awaitable[bytes | Response]]
    ) -> None:
        context.take_scheme(_SCHEME)
        await self.answer_reading(context, method, respond)


def translate_request(fields: Mapping[str, Any], *, max_characters: int) -> tuple[pb.TranslateRequest, str]:
    """Return the request of the contract, and the marker in the tags whose content is not translated.

    Raises:
        InvalidFieldError: names the field of DeepL that has a wrong value.
    """
    texts = check_texts("text", _list(fields, "text"), max_characters=max_characters)
    check_known(fields, _FIELDS)
    text_format = _one_of(fields, "tag_handling", tuple(_FORMATS), None)
    _refuse_what_cannot_be(fields)
    tags = _ignored_tags(fields)
    if tags and text_format is None:
        raise InvalidFieldError("ignore_tags", "given", "absent without `tag_handling`")
    marker = unused_marker(texts) if tags else ""
    if tags:
        texts = _marked(texts, tags, marker, max_characters=max_characters)
    options = pb.DecodingOptions(format=_FORMATS[text_format], glossary=_glossary_id(fields))
    splits = _one_of(fields, "split_sentences", ("0", "1", "nonewlines"), "1")
    if splits == "nonewlines" and text_format is None:
        raise InvalidFieldError("split_sentences", "'nonewlines'", "0 or 1 without `tag_handling`")
    if splits == "0":
        options.split_sentences = False
    if _one_of(fields, "model_type", _MODEL_TYPES, None) == "latency_optimized":
        options.beam_size = 1
    is_detected = given(fields, "source_lang", None) is None
    if is_detected and options.glossary:
        raise InvalidFieldError("source_lang", "absent", "a language, where there is a glossary")
    request = pb.TranslateRequest(
        texts=texts,
        source_language="" if is_detected else _language(fields, "source_lang"),
        target_language=_language(fields, "target_lang"),
        options=options,
    )
    return request, marker


def unused_marker(texts: Sequence[str]) -> str:
    """Return an attribute that no text has: `translate='no'` behind white space that stands before no other one.

    The time is linear in the length of the texts, and the marker has at most a few dozen characters.
    """
    parts = [part for text in texts for part in text.split(_UNTRANSLATED)[:-1]]
    width = (len(parts) + 1).bit_length()  # so that there are more patterns of this width than parts
    used = {part[-width:] for part in parts}
    patterns = (format(number, f"0{width}b").translate({48: " ", 49: "\t"}) for number in range(len(parts) + 1))
    return f" {next(pattern for pattern in patterns if pattern not in used)}{_UNTRANSLATED}"


def _marked(texts: Sequence[str], tags: Collection[str], marker: str, *, max_characters: int) -> list[str]:
    """Return the texts with the marker in each start tag whose name is among the tags."""
    marked = [_TAG_START.sub(lambda tag: f"{tag[0]}{marker}" if tag[1] in tags else tag[0], text) for text in texts]
    for index, (text, longer) in enumerate(zip(texts, marked, strict=True)):
        if len(longer) > max_characters:
            limit = f"at most {max_characters}, with {len(marker)} more for each start tag of `ignore_tags`"
            raise InvalidFieldError(f"text[{index}]", f"{len(text)} characters", limit)
    return marked


def answer(
    translated: Sequence[Translated], fields: Mapping[str, Any], counts: Sequence[int], marker: str
) -> dict[str, Any]:
    """Return what DeepL answers to a request; `counts` are characters of each text."""
    model_type = given(fields, "model_type", None)
    translations = []
    for count, one in zip(counts, translated, strict=True):
        source = one.detected.language if one.detected else str(given(fields, "source_lang", ""))
        answered: dict[str, Any] = {
            "detected_source_language": source.upper(),
            "text": one.text.replace(marker, "") if marker else one.text,
        }
        if _flag(fields, "show_billed_characters", default=False):
            answered["billed_characters"] = count
        if model_type:
            answered["model_type_used"] = model_type.removeprefix("prefer_")
        translations.append(answered)
    return {"translations": translations}


def counted_characters(fields: Mapping[str, Any]) -> list[int]:
    """Return how many characters of each text DeepL would bill: Unicode code points, tags of markup apart."""
    texts = _list(fields, "text")
    is_markup = given(fields, "tag_handling", None) is not None
    return [len(_MARKUP.sub("", text)) if is_markup else len(text) for text in texts]


def _refuse_what_cannot_be(fields: Mapping[str, Any]) -> None:
    _one_of(fields, "formality", _FORMALITIES, "default")
    _one_of(fields, "tag_handling_version", ("v1", "v2"), "v2")
    if given(fields, "context", None) is not None:
        raise InvalidFieldError("context", "given", "absent, as this server translates each text by itself")
    for name in ("splitting_tags", "non_splitting_tags"):
        if _list(fields, name):
            raise InvalidFieldError(name, "given", "absent: this server knows which tags split sentences")
    if not _flag(fields, "outline_detection", default=True):
        raise InvalidFieldError("outline_detection", "false", "true or absent")
    for name in _FLAGS:
        _flag(fields, name, default=False)


def _ignored_tags(fields: Mapping[str, Any]) -> set[str]:
    lists = _list(fields, "ignore_tags")
    if not all(isinstance(one, str) for one in lists) or sum(one.count(",") + 1 for one in lists) > _MAX_TAGS:
        raise InvalidFieldError("ignore_tags", "another type or too many tags", f"at most {_MAX_TAGS} names of tags")
    tags = {tag.strip() for one in lists for tag in one.split(",")} - {""}
    if not all(map(_TAG_NAME.fullmatch, tags)):
        raise InvalidFieldError("ignore_tags", "something else", "names of tags")
    return tags


def _glossary_id(fields: Mapping[str, Any]) -> str:
    ids = [*([fields["glossary_id"]] if given(fields, "glossary_id", None) else []), *_list(fields, "glossary_ids")]
    if len(ids) > 1 or not all(isinstance(one, str) for one in ids):
        raise InvalidFieldError("glossary_ids", f"{len(ids)} glossaries", "one glossary")
    return ids[0] if ids else ""


def _language(fields: Mapping[str, Any], name: str) -> str:
    language = fields.get(name)
    if not isinstance(language, str):
        raise InvalidFieldError(name, "absent or no text", "a language, such as `EN`")
    return _tag(language)


def _tag(language: str) -> str:
    return language.lower().replace("_", "-")


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list, or one item of it."""
    value = given(fields, name, [])
    return value if isinstance(value, list) else [value]


def _one_of(fields: Mapping[str, Any], name: str, choices: Sequence[str | None], default: str | None) -> str | None:
    value = given(fields, name, default)
    if isinstance(value, bool):  # 0 and 1 in JSON
        value = str(int(value))
    value = str(value) if isinstance(value, int) else value
    if value is not default and (not isinstance(value, str) or value not in choices):
        raise InvalidFieldError(name, "something else", f"one of {', '.join(filter(None, choices))}")
    return value


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = given(fields, name, default)
    if isinstance(value, bool | int) and value in (0, 1):
        return bool(value)
    if value in ("0", "1", "false", "true"):
        return value in ("1", "true")
    raise InvalidFieldError(name, "something else", "true or false")


def _language_item(code: str) -> dict[str, Any]:
    return {"language": code, "name": dialect_name(code)}


def _described(glossary: Glossary) -> dict[str, Any]:
    dictionaries = [
        {"source_lang": source, "target_lang": target, "entry_count": len(terms)}
        for (source, target), terms in glossary.terms.items()
    ]
    return {**_named(glossary), "dictionaries": dictionaries}


def _described_in_v2(glossary: Glossary) -> dict[str, Any]:
    ((source, target), terms), *_ = glossary.terms.items()
    return {**_named(glossary), "ready": True, "source_lang": source, "target_lang": target, "entry_count": len(terms)}


def _named(glossary: Glossary) -> dict[str, str]:
    created = datetime.fromtimestamp(glossary.modified_s, UTC).isoformat(timespec="microseconds")
    return {"glossary_id": glossary.name, "name": glossary.name, "creation_time": created}


def _entries(glossary: Glossary, pair: Pair) -> str:
    return "\n".join(f"{term.source}\t{term.target or term.source}" for term in glossary.terms[pair])
