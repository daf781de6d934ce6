"""Bytes of attacks, made from recipes in `attacks.toml`."""

import base64
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.hostile.inputs import CHEAP

_BOUNDARY: Final = "9f86d081884c7d65"
_REPEAT: Final = re.compile(r"\{([^{}]+?)\*(\d+)\}")  # {x*9}
_JSON: Final = "application/json"
_WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TEXT_CHARACTERS: Final = 10_000  # of each text of a request
_LANGUAGES: Final[Mapping[str, Any]] = {"source_language": "en", "target_language": "de"}
_FORMATS: Final = {"plain": pb.TEXT_FORMAT_PLAIN, "html": pb.TEXT_FORMAT_HTML, "xml": pb.TEXT_FORMAT_XML}
_FORM_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {  # of uploads
    "POST /v2/document": {"source_lang": "EN", "target_lang": "DE"},
    "POST /translate_file": {"source": "en", "target": "de"},
}
_OTHER_METHODS: Final = {
    "detection": "/dragoman.v1.TranslationService/DetectLanguage",
    "google": "/google.cloud.translation.v3.TranslationService/TranslateText",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of an attacker with access to the server."""

    key: str
    key_id: str  # in the JSON Web Key Set


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Bytes for one connection."""

    parts: Sequence[bytes]
    rest: bytes = b""  # for `Way.DRIP`
    num_answers: int = 1  # of pipelined requests
    path: str = ""  # of a gRPC call, whose message is the only part
    key: str = ""  # of that call


Make = Callable[[int, Credentials], Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Instructions for a payload; the head of `attacks.toml` explains templates and fill."""

    kind: str = "http"  # or file, document, texts, stream, many-texts, detection, google, http-patterns
    request: str = ""
    headers: Sequence[str] = ()
    auth: str = ""  # bearer or deepl
    media: str = _JSON  # of a body
    body: str = ""
    has_length: bool = True
    is_pipelined: bool = False  # the size is the number of requests
    splits_body: bool = False  # send it separately
    raw: str | None = None  # instead of a request
    rest: str = ""
    head: str = ""
    unit: str = ""
    middle: str = ""
    close: str = ""
    tail: str = ""
    text: str = ""  # name of a generated fill
    token_header: str = '{"alg":"RS256","kid":"{kid}"}'  # noqa: S105 - a template
    token_claims: str = '{"sub":"a","exp":9999999999}'  # noqa: S105 - a template
    token_signature: str = "\0" * 256
    options: Mapping[str, Any] = field(default_factory=dict)
    format: str = "plain"
    patterns: str | Sequence[str] = ()
    terms: str = ""
    file: str = ""
    file_first: bool = False

    @property
    def is_grpc(self) -> bool:
        """Return whether it is a gRPC call."""
        return self.kind not in ("http", "http-patterns", "file")

    def fill(self, size: int) -> str:
        """Return a text of about a size."""
        if self.text:
            return _TEXTS[self.text](size)
        unit, close = _expand(self.unit), _expand(self.close)
        count = max(1, size // len(f"{unit}{close}".replace("{i}", "000000"))) if unit else 0
        numbers = (str(100_003 + 7 * number) for number in range(count)) if "{i}" in unit + close else ()
        numbered = list(numbers) or None
        opened = "".join(unit.replace("{i}", one) for one in numbered) if numbered else unit * count
        closed = "".join(close.replace("{i}", one) for one in numbered) if numbered else close * count
        return f"{self.head}{opened}{self.middle}{closed}{self.tail}"


def make_payload(recipe: Recipe, size: int, credentials: Credentials) -> Payload:
    """Return the payload of a size."""
    if recipe.is_grpc:
        return _call(recipe, size, credentials)
    if recipe.kind == "file":
        return _upload(recipe, size, credentials)
    fill = "" if recipe.is_pipelined else recipe.fill(size)
    if recipe.kind == "http-patterns":
        fill = ",".join(
            f'"{recipe.fill(min(size, _TEXT_CHARACTERS))}"' for _ in range(max(1, size // _TEXT_CHARACTERS))
        )
    known = {"{key}": credentials.key, "{key_id}": credentials.key[:17], "{kid}": credentials.key_id, "{fill}": fill}
    known["{token}"] = _token(recipe, known) if "{token}" in "".join((*recipe.headers, recipe.body)) else ""
    rest = _render(recipe.rest, known)
    if recipe.raw is not None and not recipe.request:
        return Payload(parts=[_render(recipe.raw, known)], rest=rest)
    body = _render(_pattern_body(recipe) if recipe.kind == "http-patterns" else recipe.body, known)
    headers = [_render(header, known).decode("latin-1") for header in recipe.headers]
    head = http_request(
        _render(recipe.request, known).decode("latin-1"),
        *_authorization(recipe.auth, credentials),
        *([f"Content-Type: {_expand(recipe.media)}"] if body and not _has(headers, "content-type") else []),
        *headers,
        length=len(body) if recipe.has_length and (body or recipe.request.startswith("POST")) else None,
    )
    if recipe.splits_body:
        return Payload(parts=[head, body], rest=rest)
    count = size if recipe.is_pipelined else 1
    return Payload(parts=[(head + body) * count], rest=rest, num_answers=count)


def http_request(line: str, *headers: str, length: int | None = None) -> bytes:
    """Return the head of an HTTP request, with a length if there is one."""
    lines = [f"{line} HTTP/1.1", "Host: localhost", *headers]
    return "\r\n".join([*lines, *([] if length is None else [f"Content-Length: {length}"]), "", ""]).encode("latin-1")


def _expand(template: str) -> str:
    return _REPEAT.sub(lambda match: match[1] * int(match[2]), template)


def _render(template: str, known: Mapping[str, str]) -> bytes:
    """Fill a template; only the fill may have characters outside Latin-1."""
    text = _expand(template)
    for name, value in known.items():
        text = text.replace(name, value)
    return text.encode("latin-1") if text.isascii() or all(ord(one) < 256 for one in text) else text.encode()


def _has(headers: Sequence[str], name: str) -> bool:
    return any(header.lower().startswith(f"{name}:") for header in headers)


def _authorization(scheme: str, credentials: Credentials) -> list[str]:
    schemes = {"bearer": "Bearer", "deepl": "DeepL-Auth-Key"}
    return [f"Authorization: {schemes[scheme]} {credentials.key}"] if scheme else []


def _token(recipe: Recipe, known: Mapping[str, str]) -> str:
    parts = (recipe.token_header, recipe.token_claims, recipe.token_signature)
    return ".".join(base64.urlsafe_b64encode(_render(part, known)).rstrip(b"=").decode() for part in parts)


def _upload(recipe: Recipe, size: int, credentials: Credentials) -> Payload:
    """Return the upload of a file by a form."""
    line = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    fields = "".join(f'{line}"{name}"\r\n\r\n{value}\r\n' for name, value in _FORM_FIELDS[recipe.request].items())
    content = recipe.fill(size).encode()
    content = _docx(content) if recipe.file == "a.docx" else content
    file = f'{line}"file"; filename="{_expand(recipe.file)}"\r\n\r\n'.encode() + content + b"\r\n"
    parts = [file, fields.encode()] if recipe.file_first else [fields.encode(), file]
    body = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
    scheme = "deepl" if recipe.auth and recipe.request == "POST /v2/document" else recipe.auth
    media_type = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
    head = http_request(recipe.request, media_type, *_authorization(scheme, credentials), length=len(body))
    return Payload(parts=[head + body])


def _docx(document: bytes) -> bytes:
    """Return a Word file with the XML of its text."""
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    content_types = f'<Types xmlns="{types}"><Override PartName="/word/document.xml" ContentType="{main}"/></Types>'
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("[Content_Types].xml", content_types)
        opened.writestr("word/document.xml", document)
    return archive.getvalue()


def _call(recipe: Recipe, size: int, credentials: Credentials) -> Payload:
    """Return a gRPC call."""
    given = {key: _expand(value) if isinstance(value, str) else value for key, value in recipe.options.items()}
    options: dict[str, Any] = {**CHEAP, "format": _FORMATS[recipe.format], **given}
    if recipe.patterns:
        options["protection"] = {"patterns": _patterns(recipe.patterns)}
    if recipe.terms:
        options["terms"] = _terms(recipe.terms)
    path = _OTHER_METHODS.get(recipe.kind, Method.TRANSLATE.path)
    message: Any
    match recipe.kind:
        case "document":
            path = Method.TRANSLATE_DOCUMENT.path
            message = pb.TranslateDocumentRequest(text=recipe.fill(size), options=options, **_LANGUAGES)
        case "texts":
            texts = [recipe.fill(min(size, _TEXT_CHARACTERS))] * max(1, size // _TEXT_CHARACTERS)
            message = pb.TranslateRequest(texts=texts, options=options, **_LANGUAGES)
        case "stream":
            path = Method.TRANSLATE_STREAM.path
            message = pb.TranslateRequest(texts=[recipe.fill(size)], options=options, request_id="a", **_LANGUAGES)
        case "many-texts":
            message = pb.TranslateRequest(texts=[recipe.unit] * size, options=options, **_LANGUAGES)
        case "detection":
            message = pb.DetectLanguageRequest(texts=[recipe.fill(size // 10)] * 10)
        case "google":
            message = pb.TranslateRequest(texts=[recipe.fill(size)], **_LANGUAGES)
        case _:
            raise ValueError(f"unknown kind {recipe.kind!r}")
    return Payload(parts=[message.SerializeToString()], path=path, key=credentials.key)


def _pattern_body(recipe: Recipe) -> str:
    patterns = ",".join(f'"{one}"' for one in _patterns(recipe.patterns))
    options = f'{{"protection":{{"patterns":[{patterns}]}},"maxTargetTokens":3,"beamSize":1}}'
    return f'{{"texts":[{{fill}}],"sourceLanguage":"en","targetLanguage":"de","options":{options}}}'


def _patterns(given: str | Sequence[str]) -> Sequence[str]:
    """Return listed patterns, or generated ones; `16x31`: 16 patterns with 31 wildcards that match only a beginning."""
    match given:
        case "overlapping":
            return [f"{'a' * n}*{'b' * n}c" for n in range(1, 9)]
        case "literal":
            return [f"{'a' * 40}{n}" for n in range(16)]
        case str():
            count, stars = map(int, given.split("x"))
            return [f"a*{'b*' * (stars - 1)}{chr(0x3A9 + number)}" for number in range(count)]
    return [_expand(one) for one in given]


_TERM_SOURCES: Final[Mapping[str, Callable[[int], str]]] = {
    "as": lambda n: "a" * (n + 1),
    "as-then-b": lambda n: "a" * (n + 1) + "b",
    "words": lambda n: f"a {'a ' * n}b",
    "abab": lambda n: "ab" * (n % 90 + 1),
    "letters": lambda n: chr(0x61 + n % 26),
    "eszett": lambda n: "ß" * (n + 1),
    "long": lambda n: "a" * 190 + str(n),
    "marks": lambda n: "\u0301" * (n + 1),
}


def _terms(name: str) -> list[dict[str, Any]]:
    is_part = name != "words"
    return [{"source": _TERM_SOURCES[name](n), "target": "z", "is_part_of_word": is_part} for n in range(128)]


def _numbered_blocks(size: int) -> str:
    """Return a text with all possible placeholders of tags, then many tags."""
    taken = [*(f"⟦{number}⟧" for number in range(1, 33)), *map(str, range(1900, 2030))]
    numbers, blocks = Recipe(unit="{i} ").fill(size // 2), Recipe(unit="<p><x/>a ").fill(size // 2)
    return f"{' '.join(taken)} {numbers}{blocks}"


def _billion_laughs(size: int) -> str:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    text = "&a9;" * size
    return f'<!DOCTYPE xliff [<!ENTITY a0 "a">{entities}]><xliff version="1.2"><file>{text}</file></xliff>'


def _chunked_document(size: int) -> str:
    """Return a JSON document in chunks of one byte."""
    num_chunks = max(1, size // 6)
    content = f'{{"text":"{"A. " * (num_chunks // 30)}","sourceLanguage":"en","targetLanguage":"de"}}'
    return "".join(f"1\r\n{one}\r\n" for one in content.ljust(num_chunks))


def _paragraphs(inner: str) -> str:
    return f'<w:document xmlns:w="{_WORD}"><w:body>{inner}</w:body></w:document>'


_TEXTS: Final[Mapping[str, Callable[[int], str]]] = {
    "backticks": lambda size: " ".join("`" * n for n in range(1, int((2 * size) ** 0.5))),
    "numbered-blocks": _numbered_blocks,
    "billion-laughs": _billion_laughs,
    "chunked-document": _chunked_document,
    "docx-paragraphs": lambda size: _paragraphs("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * size),
    "docx-nested": lambda size: _paragraphs("<w:p>" * size + "</w:p>" * size),
}
