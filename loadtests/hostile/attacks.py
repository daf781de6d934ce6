"""Attacks on the speed of a server: inputs that are cheap to send and may be expensive to answer.

`attacks.toml` lists them.
"""

import base64
import io
import itertools
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.hostile.texts import CHEAP, SHAPES, Draw, repeated, shaped

CLOSED: Final = "closed"  # status if the server closed the connection without a response
TIMEOUT: Final = "timeout"  # status if the client gave up waiting
LEFT: Final = "left"  # status if the client left as planned

_REJECTED: Final = ("400", "401", "403", "404", "405", "408", "411", "413", "414", "415", "421", "422", "431", "501")
_STATUSES: Final[Mapping[str, frozenset[str]]] = {  # sets by name in `attacks.toml`
    "rejected": frozenset({*_REJECTED, "503", CLOSED}),
    "answered": frozenset({"200", "429", "503"}),
    "any": frozenset({*_REJECTED, "503", CLOSED, "200", "429", LEFT}),  # no server error and no silence
    "forbidden": frozenset({"400", "401", "403", "413", "429", "431", "503"}),
    "grpc": frozenset({"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED", LEFT}),
}
_TARGETS: Final = {  # of JSON bodies: path and authorization
    "native": ("/v1/translate", "bearer"),
    "libretranslate": ("/translate", ""),
    "deepl": ("/v2/translate", "bearer"),
    "azure": ("/translate?api-version=3.0&to=de&from=en", "bearer"),
}
_SCHEMES: Final = {"bearer": "Bearer", "deepl": "DeepL-Auth-Key"}
_FORMATS: Final = {"p": "plain", "h": "html", "x": "xml"}
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_FORM_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {  # of uploads
    "POST /v2/document": {"source_lang": "EN", "target_lang": "DE"},
    "POST /translate_file": {"source": "en", "target": "de"},
}
_GRPC_PATHS: Final = {
    "document": Method.TRANSLATE_DOCUMENT.path,
    "texts": Method.TRANSLATE.path,
    "stream": Method.TRANSLATE_STREAM.path,
    "detection": "/dragoman.v1.TranslationService/DetectLanguage",
    "google": "/google.cloud.translation.v3.TranslationService/TranslateText",
}
_BOUNDARY: Final = "9f86d081884c7d65"
_REPEAT: Final = re.compile(r"\{([^{}]+?)\*(\d+)\}")  # {x*9}
_SHAPED_CHARACTERS: Final = 61  # of a hostile text that is repeated
_TEXT_CHARACTERS: Final = 10_000  # of each text of a request
_LANGUAGES: Final[Mapping[str, Any]] = {"source_language": "en", "target_language": "de"}
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of an attacker with access to the server."""

    key: str
    key_id: str  # in the JSON Web Key Set


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Bytes for one connection."""

    parts: Sequence[bytes]
    rest: bytes = b""  # sent byte by byte, for the way `drip`
    num_answers: int = 1  # of pipelined requests
    path: str = ""  # of a gRPC call, whose message is the only part
    key: str = ""  # of that call


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Text of about any size: head, unit and close repeated equally often with middle between them, tail."""

    head: str = ""
    unit: str = ""
    middle: str = ""
    close: str = ""
    tail: str = ""
    text: str = ""  # name of a generated text instead
    shape: str = ""  # shape of hostile text instead

    def of_size(self, size: int) -> str:
        """Return the text."""
        if self.text:
            return _TEXTS[self.text](size)
        if self.shape:
            return repeated(shaped(Draw(self.shape, model=pb.ModelVersion()), _SHAPED_CHARACTERS, self.shape), size)
        opened, closed = _repeated(_expand(self.unit), _expand(self.close), size)
        return f"{self.head}{opened}{self.middle}{closed}{self.tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Manner of sending."""

    way: Literal[
        "repeat",  # each time on a new connection
        "leave",  # repeatedly, closing the connection before the response
        "drip",  # one byte of the rest at a time
        "unread",  # once, without reading the response
        "connect",  # connections are opened and closed
    ] = "repeat"
    num_connections: int = 1
    num_hosts: int = 1  # client addresses
    leave_after_s: float = 0.0  # 0: with the first part of the response
    is_once: bool = False  # one exchange per connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """A request of HTTP/1.1, or other bytes."""

    request: str = ""
    headers: Sequence[str] = ()
    auth: str = ""  # one of `_SCHEMES`
    media: str = "application/json"  # of a body
    body: str = ""
    has_length: bool = True
    is_pipelined: bool = False  # the size is the number of requests
    splits_body: bool = False  # send it separately
    raw: str | None = None  # instead of a request
    rest: str = ""
    token: Mapping[str, str] = field(default_factory=dict)  # parts of {token} that differ from the usual ones

    def payload(self, fill: Fill, size: int, credentials: Credentials) -> Payload:
        """Return the bytes."""
        filled = "" if self.is_pipelined else fill.of_size(size)
        key = credentials.key
        known = {"{key}": key, "{key_id}": key[:17], "{kid}": credentials.key_id, "{fill}": filled}
        if "{token}" in "".join((*self.headers, self.body)):
            known["{token}"] = ".".join(
                base64.urlsafe_b64encode(_render(part, known)).rstrip(b"=").decode()
                for part in {**_USUAL_TOKEN, **self.token}.values()
            )
        rest = _render(self.rest, known)
        if self.raw is not None and not self.request:
            return Payload(parts=[_render(self.raw, known)], rest=rest)
        body = _render(self.body, known)
        headers = [_render(header, known).decode("latin-1") for header in self.headers]
        has_media = not body or any(header.startswith("Content-Type:") for header in headers)
        head = _request_head(
            _render(self.request, known).decode("latin-1"),
            *([] if has_media else [f"Content-Type: {_expand(self.media)}"]),
            *_authorization(self.auth, key),
            *headers,
            length=len(body) if self.has_length and (body or self.request.startswith("POST")) else None,
        )
        count = size if self.is_pipelined else 1
        parts = [head, body] if self.splits_body else [(head + body) * count]
        return Payload(parts=parts, rest=rest, num_answers=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A form with a file, which contains the fill."""

    file: str
    request: str = "POST /translate_file"
    auth: str = "bearer"
    file_first: bool = False

    def payload(self, fill: Fill, size: int, credentials: Credentials) -> Payload:
        """Return the bytes."""
        line = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
        form = "".join(f'{line}"{name}"\r\n\r\n{value}\r\n' for name, value in _FORM_FIELDS[self.request].items())
        content = fill.of_size(size).encode()
        content = _docx(content) if self.file == "a.docx" else content
        file = f'{line}"file"; filename="{_expand(self.file)}"\r\n\r\n'.encode() + content + b"\r\n"
        parts = [file, form.encode()] if self.file_first else [form.encode(), file]
        body = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
        media = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
        head = _request_head(self.request, media, *_authorization(self.auth, credentials.key), length=len(body))
        return Payload(parts=[head + body])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of gRPC."""

    kind: str  # one of `_GRPC_PATHS`
    options: Mapping[str, Any] = field(default_factory=dict)
    format: str = "plain"
    patterns: Sequence[str] = ()
    terms: str = ""

    def payload(self, fill: Fill, size: int, credentials: Credentials) -> Payload:
        """Return the message."""
        own = {name: _expand(value) if isinstance(value, str) else value for name, value in self.options.items()}
        text_format = pb.TextFormat.Value(f"TEXT_FORMAT_{self.format.upper()}")
        options: dict[str, Any] = {**CHEAP, "format": text_format, **own}
        if self.patterns:
            options["protection"] = {"patterns": [_expand(pattern) for pattern in self.patterns]}
        if self.terms:
            sources, is_part = _TERM_SOURCES[self.terms], self.terms != "words"
            options["terms"] = [{"source": sources(n), "target": "z", "is_part_of_word": is_part} for n in range(128)]
        message: Any
        match self.kind:
            case "document":
                message = pb.TranslateDocumentRequest(text=fill.of_size(size), options=options, **_LANGUAGES)
            case "texts":
                texts = [fill.of_size(min(size, _TEXT_CHARACTERS))] * max(1, size // _TEXT_CHARACTERS)
                message = pb.TranslateRequest(texts=texts, options=options, **_LANGUAGES)
            case "stream":
                texts = [fill.of_size(size)]
                message = pb.TranslateRequest(texts=texts, options=options, request_id="a", **_LANGUAGES)
            case "detection":
                message = pb.DetectLanguageRequest(texts=[fill.of_size(size // 10)] * 10)
            case _:
                message = pb.TranslateRequest(texts=[fill.of_size(size)], **_LANGUAGES)
        return Payload(parts=[message.SerializeToString()], path=_GRPC_PATHS[self.kind], key=credentials.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack and the right responses."""

    name: str
    surface: str
    size: int  # in the unit of the attack, mostly bytes or characters
    fill: Fill
    content: Http | Upload | Call
    load: Load
    port: str = "http"  # or metrics, grpc
    expected: frozenset[str] = _STATUSES["any"]
    grows: bool = True  # compare the CPU time of several sizes
    grown_size: int = 0  # largest size of that comparison; 0: `size`
    is_short: bool = False  # part of the short mode
    is_stopped: bool = False  # send SIGTERM to the server during the attack

    def payload(self, size: int, credentials: Credentials) -> Payload:
        """Return the payload of a size."""
        return self.content.payload(self.fill, size, credentials)


def _attack(name: str, surface: str, **given: Any) -> Attack:
    is_call = given.get("kind") in _GRPC_PATHS
    own: dict[str, Any] = {"expected": ["grpc" if is_call else "any"], **given}
    if is_call:
        own["port"] = "grpc"
    own["expected"] = frozenset().union(*(_STATUSES.get(status, {status}) for status in own["expected"]))
    content = Call if is_call else Upload if "file" in own else Http
    parts: dict[str, Any] = {"fill": _taken(Fill, own), "load": _taken(Load, own), "content": _taken(content, own)}
    return Attack(name=name, surface=surface, **parts, **own)


def _taken(kind: type[_Part], given: dict[str, Any]) -> _Part:
    """Remove the fields of a dataclass; return the value that they describe."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type] # a dataclass
    return kind(**{name: given.pop(name) for name in names if name in given})


def _attacks(tables: Mapping[str, Any]) -> Iterator[Attack]:
    for surface, table in tables["surfaces"].items():
        for name, given in table["attacks"].items():
            yield _attack(name, surface, **{**table.get("defaults", {}), **given})
    body = {"body": "{fill}", "size": 4_000_000, "expected": ["rejected", "answered"]}
    for (target, (path, auth)), (name, fill) in itertools.product(_TARGETS.items(), tables["json"].items()):
        if target in ("native", "libretranslate") or name in ("objects", "escapes", "nested-lists"):
            is_libre = target == "libretranslate"
            is_short = is_libre and name == "objects"
            own = {"request": f"POST {path}", "auth": auth, "num_connections": 6 if is_libre else 2}
            own |= {"size": 900_000} if is_libre else {}  # below the limit of bodies without a key
            yield _attack(f"json-{name}-{target}", f"JSON of {target}", **{**body, **own, "is_short": is_short, **fill})
    for name, fill in tables["forms"].items():
        is_short = name == "escapes"
        form = {"request": "POST /translate", "media": "application/x-www-form-urlencoded"}
        own = {"num_connections": 12 if is_short else 4, "is_short": is_short}
        yield _attack(f"form-{name}", "forms", **form, **body, **own, **fill)
    upload = {"grows": False, "num_connections": 2, "way": "leave", "leave_after_s": 1.5}  # leaving removes the file
    for name, given in tables["files"].items():
        yield _attack(f"file-{name}", "uploaded files", **{**upload, **given})
    document = {"kind": "document", "size": 200_000, "grown_size": 80_000, "way": "leave", "leave_after_s": 1.5}
    for shape in SHAPES:
        usual = {"shape": shape, "is_short": shape in _SHORT_SHAPES, "num_connections": 2}
        yield _attack(f"{shape}-texts", "hostile texts", kind="texts", size=10_000, **usual)
        yield _attack(f"{shape}-document", "hostile texts", **document, **usual)
    for (name, given), (letter, text_format) in itertools.product(tables["documents"].items(), _FORMATS.items()):
        fill = {key: value for key, value in given.items() if key not in ("formats", "short", "stopped")}
        if letter in given["formats"]:
            is_short, is_stopped = (letter in given.get(when, "") for when in ("short", "stopped"))
            yield _attack(
                f"{name}-{text_format}",
                f"documents, {text_format}",
                **document,
                **fill,
                format=text_format,
                num_connections=8 if is_short else 2,
                is_short=is_short,
                is_stopped=is_stopped,
            )


def _repeated(unit: str, close: str, size: int) -> tuple[str, str]:
    """Repeat both equally often; {i} is a number that grows."""
    count = max(1, size // len(f"{unit}{close}".replace("{i}", "000000"))) if unit else 0
    if "{i}" not in unit + close:
        return unit * count, close * count
    numbers = [str(100_003 + 7 * number) for number in range(count)]
    opened, closed = ("".join(text.replace("{i}", number) for number in numbers) for text in (unit, close))
    return opened, closed


def _request_head(line: str, *headers: str, length: int | None) -> bytes:
    lengths = [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, *lengths, "", ""]).encode("latin-1")


def _authorization(scheme: str, key: str) -> list[str]:
    return [f"Authorization: {_SCHEMES[scheme]} {key}"] if scheme else []


def _expand(template: str) -> str:
    return _REPEAT.sub(lambda match: match[1] * int(match[2]), template)


def _render(template: str, known: Mapping[str, str]) -> bytes:
    """Fill a template; only the fill may have characters outside Latin-1."""
    text = _expand(template)
    for name, value in known.items():
        text = text.replace(name, value)
    return text.encode("latin-1") if text.isascii() or all(ord(one) < 256 for one in text) else text.encode()


_USUAL_TOKEN: Final = {
    "header": '{"alg":"RS256","kid":"{kid}"}',
    "claims": '{"sub":"a","exp":9999999999}',
    "signature": "\0" * 256,
}
_TERM_SOURCES: Final[Mapping[str, Callable[[int], str]]] = {
    "as": lambda n: "a" * (n + 1),
    "as-then-b": lambda n: "a" * (n + 1) + "b",
    "words": lambda n: f"a {'a ' * n}b",
    "abab": lambda n: "ab" * (n % 90 + 1),
    "letters": lambda n: chr(0x61 + n % 26),
    "eszett": lambda n: "ß" * (n + 1),
    "marks": lambda n: "\u0301" * (n + 1),
}


def _docx(document: bytes) -> bytes:
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    content_types = f'<Types xmlns="{types}"><Override PartName="/word/document.xml" ContentType="{main}"/></Types>'
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("[Content_Types].xml", content_types)
        opened.writestr("word/document.xml", document)
    return archive.getvalue()


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
    return "".join(f"1\r\n{character}\r\n" for character in content.ljust(num_chunks))


def _paragraphs(inner: str) -> str:
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    return f'<w:document xmlns:w="{word}"><w:body>{inner}</w:body></w:document>'


_TEXTS: Final[Mapping[str, Callable[[int], str]]] = {
    "backticks": lambda size: " ".join("`" * n for n in range(1, int((2 * size) ** 0.5))),
    "numbered-blocks": _numbered_blocks,
    "billion-laughs": _billion_laughs,
    "chunked-document": _chunked_document,
    "docx-paragraphs": lambda size: _paragraphs("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * size),
    "docx-nested": lambda size: _paragraphs("<w:p>" * size + "</w:p>" * size),
}
_TABLES: Final = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))
ATTACKS: Final[Mapping[str, Attack]] = {attack.name: attack for attack in _attacks(_TABLES)}
