"""Bytes of attacks, made from recipes in `attacks.toml`."""

import base64
import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.hostile.inputs import CHEAP, Draw, repeated, shaped
from loadtests.scenarios.bad_inputs.attacks.attack import GRPC_KINDS, Attack

_BOUNDARY: Final = "9f86d081884c7d65"
_REPEAT: Final = re.compile(r"\{([^{}]+?)\*(\d+)\}")  # {x*9}
_WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_SHAPED_CHARACTERS: Final = 61  # of a hostile text that is repeated
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


def make_payload(attack: Attack, size: int, credentials: Credentials) -> Payload:
    """Return the payload of a size, in the unit of the attack."""
    if attack.kind in GRPC_KINDS:
        return _call(attack, size, credentials)
    if attack.kind == "file":
        return _upload(attack, size, credentials)
    filled = "" if attack.is_pipelined else fill(attack, size)
    if attack.kind == "http-patterns":
        filled = ",".join(f'"{text}"' for text in _texts(attack, size))
    known = {"{key}": credentials.key, "{key_id}": credentials.key[:17], "{kid}": credentials.key_id, "{fill}": filled}
    known["{token}"] = _token(attack, known) if "{token}" in "".join((*attack.headers, attack.body)) else ""
    rest = _render(attack.rest, known)
    if attack.raw is not None and not attack.request:
        return Payload(parts=[_render(attack.raw, known)], rest=rest)
    body = _render(_pattern_body(attack) if attack.kind == "http-patterns" else attack.body, known)
    headers = [_render(header, known).decode("latin-1") for header in attack.headers]
    head = http_request(
        _render(attack.request, known).decode("latin-1"),
        *_authorization(attack.auth, credentials),
        *([f"Content-Type: {_expand(attack.media)}"] if body and not _has(headers, "content-type") else []),
        *headers,
        length=len(body) if attack.has_length and (body or attack.request.startswith("POST")) else None,
    )
    if attack.splits_body:
        return Payload(parts=[head, body], rest=rest)
    count = size if attack.is_pipelined else 1
    return Payload(parts=[(head + body) * count], rest=rest, num_answers=count)


def fill(attack: Attack, size: int) -> str:
    """Return a text of about a size."""
    if attack.text:
        return _TEXTS[attack.text](size)
    if attack.shape:
        return repeated(shaped(Draw(attack.shape, model=pb.ModelVersion()), _SHAPED_CHARACTERS, attack.shape), size)
    opened, closed = _repeated(_expand(attack.unit), _expand(attack.close), size)
    return f"{attack.head}{opened}{attack.middle}{closed}{attack.tail}"


def _repeated(unit: str, close: str, size: int) -> tuple[str, str]:
    """Repeat both equally often; {i} is a number that grows."""
    count = max(1, size // len(f"{unit}{close}".replace("{i}", "000000"))) if unit else 0
    if "{i}" not in unit + close:
        return unit * count, close * count
    numbers = [str(100_003 + 7 * number) for number in range(count)]
    return "".join(unit.replace("{i}", one) for one in numbers), "".join(close.replace("{i}", one) for one in numbers)


def _texts(attack: Attack, size: int) -> list[str]:
    return [fill(attack, min(size, _TEXT_CHARACTERS))] * max(1, size // _TEXT_CHARACTERS)


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


def _token(attack: Attack, known: Mapping[str, str]) -> str:
    parts = (attack.token_header, attack.token_claims, attack.token_signature)
    return ".".join(base64.urlsafe_b64encode(_render(part, known)).rstrip(b"=").decode() for part in parts)


def _upload(attack: Attack, size: int, credentials: Credentials) -> Payload:
    line = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    fields = "".join(f'{line}"{name}"\r\n\r\n{value}\r\n' for name, value in _FORM_FIELDS[attack.request].items())
    content = fill(attack, size).encode()
    content = _docx(content) if attack.file == "a.docx" else content
    file = f'{line}"file"; filename="{_expand(attack.file)}"\r\n\r\n'.encode() + content + b"\r\n"
    parts = [file, fields.encode()] if attack.file_first else [fields.encode(), file]
    body = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
    scheme = "deepl" if attack.auth and attack.request == "POST /v2/document" else attack.auth
    media_type = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
    head = http_request(attack.request, media_type, *_authorization(scheme, credentials), length=len(body))
    return Payload(parts=[head + body])


def _docx(document: bytes) -> bytes:
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    content_types = f'<Types xmlns="{types}"><Override PartName="/word/document.xml" ContentType="{main}"/></Types>'
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("[Content_Types].xml", content_types)
        opened.writestr("word/document.xml", document)
    return archive.getvalue()


def _call(attack: Attack, size: int, credentials: Credentials) -> Payload:
    given = {key: _expand(value) if isinstance(value, str) else value for key, value in attack.options.items()}
    options: dict[str, Any] = {**CHEAP, "format": _FORMATS[attack.format], **given}
    if attack.patterns:
        options["protection"] = {"patterns": _patterns(attack.patterns)}
    if attack.terms:
        options["terms"] = _terms(attack.terms)
    path = _OTHER_METHODS.get(attack.kind, Method.TRANSLATE.path)
    message: Any
    match attack.kind:
        case "document":
            path = Method.TRANSLATE_DOCUMENT.path
            message = pb.TranslateDocumentRequest(text=fill(attack, size), options=options, **_LANGUAGES)
        case "texts":
            message = pb.TranslateRequest(texts=_texts(attack, size), options=options, **_LANGUAGES)
        case "stream":
            path = Method.TRANSLATE_STREAM.path
            message = pb.TranslateRequest(texts=[fill(attack, size)], options=options, request_id="a", **_LANGUAGES)
        case "many-texts":
            message = pb.TranslateRequest(texts=[attack.unit] * size, options=options, **_LANGUAGES)
        case "detection":
            message = pb.DetectLanguageRequest(texts=[fill(attack, size // 10)] * 10)
        case "google":
            message = pb.TranslateRequest(texts=[fill(attack, size)], **_LANGUAGES)
        case _:
            raise ValueError(f"unknown kind {attack.kind!r}")
    return Payload(parts=[message.SerializeToString()], path=path, key=credentials.key)


def _pattern_body(attack: Attack) -> str:
    patterns = ",".join(f'"{one}"' for one in _patterns(attack.patterns))
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
    (numbers, _), (blocks, _) = _repeated("{i} ", "", size // 2), _repeated("<p><x/>a ", "", size // 2)
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
