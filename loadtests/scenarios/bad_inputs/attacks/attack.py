"""An attack: which bytes are sent, how they are sent, and which answers are right."""

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlencode

from google.protobuf.message import Message

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.scenarios.bad_inputs.inputs import CHEAP

LANGUAGES: Final[Mapping[str, Any]] = {"source_language": "en", "target_language": "de"}
ORIGIN: Final = "localhost"
"""The header `Host` of requests."""

CLOSED: Final = "closed"
"""Status of an exchange that the server ended without an answer."""

TIMEOUT: Final = "timeout"
"""Status of an exchange that had no answer when its client gave up."""

LEFT: Final = "left"
"""Status of an exchange that its client ended, as planned, before the answer was complete."""

_REFUSED: Final = ("400", "401", "403", "404", "405", "408", "411", "413", "414", "415", "421", "422", "431", "501")
REFUSED: Final = frozenset({*_REFUSED, "503", CLOSED})
ANSWERED: Final = frozenset({"200", "429", "503"})
ANY: Final = REFUSED | ANSWERED | {LEFT}
"""Everything but a server error and silence."""

ANY_OF_GRPC: Final = frozenset({"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED", LEFT})


class Way(enum.Enum):
    """How the bytes of an attack are sent."""

    REPEAT = "again and again, each time on a new connection"
    LEAVE = "again and again by clients that close the connection before the answer"
    DRIP = "one byte of the rest at a time"
    UNREAD = "once, and the answer is not read"
    CONNECT = "nothing: connections are opened and closed"


class Port(enum.Enum):
    """What listens there."""

    HTTP = "http"
    METRICS = "metrics"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What an attacker with access to the server has."""

    key: str
    key_id: str  # of the JSON Web Key Set


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What one connection sends."""

    parts: Sequence[bytes]  # each sent for itself
    rest: bytes = b""  # sent byte by byte (`Way.DRIP`)
    num_answers: int = 1  # of pipelined requests
    method: Method | str = ""  # of a call over gRPC, whose message is the only part
    key: str = ""  # of that call


Make = Callable[[int, Credentials], Payload]
"""Returns the bytes of an attack, given a size in the unit of the attack (mostly bytes or characters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack."""

    name: str
    surface: str
    make: Make = field(repr=False)
    size: int
    way: Way = Way.REPEAT
    port: Port = Port.HTTP
    expected: frozenset[str] = ANY
    num_connections: int = 1
    num_hosts: int = 1  # addresses that the connections come from
    leave_after_s: float = 0.0  # (`Way.LEAVE`) 0: with the first part of the answer
    is_once: bool = False  # one exchange on each connection is all of it
    grows: bool = True  # whether the work is compared at several sizes
    grown_size: int = 0  # the largest size of that comparison; 0: `size`
    is_short: bool = False  # also in the short mode
    is_stopped: bool = False  # whether the server gets SIGTERM while the attack goes on


def request(method: str, path: str, *headers: str, body: bytes = b"", has_length: bool = True) -> bytes:
    """Return an HTTP request; `has_length` adds the length of a body."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {ORIGIN}", *headers]
    if has_length and (body or method == "POST"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def bearer(credentials: Credentials) -> str:
    """Return the header with the API key."""
    return f"Authorization: Bearer {credentials.key}"


def post(path: str, *headers: str, body: bytes, media_type: str = "application/json") -> Payload:
    """Return a request with a body."""
    return Payload(parts=[request("POST", path, f"Content-Type: {media_type}", *headers, body=body)])


def as_json(value: object) -> bytes:
    """Return a value as JSON; surrogates stay escaped."""
    return json.dumps(value).encode()


def as_form(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return fields as a form."""
    return urlencode(list(fields)).encode()


def translate(**fields: Any) -> Payload:
    """Return a gRPC request for the translation of texts; `fields` replace the usual ones."""
    return of_message(pb.TranslateRequest(**{**LANGUAGES, "options": CHEAP, **fields}))


def document(text: str, **fields: Any) -> Payload:
    """Return a gRPC request for the translation of a document; `fields` replace the usual ones."""
    return of_message(pb.TranslateDocumentRequest(**{"text": text, **LANGUAGES, "options": CHEAP, **fields}))


def of_message(message: Message, method: Method | str = "") -> Payload:
    """Return the gRPC request with a message, by default to the method that its type is named after."""
    method = method or Method(type(message).__name__.removesuffix("Request"))
    return Payload(parts=[message.SerializeToString()], method=method)


def with_key(payload: Payload, credentials: Credentials) -> Payload:
    """Return a gRPC request with the API key."""
    return replace(payload, key=credentials.key)


def repeated(unit: str, size: int) -> str:
    """Return a text of at most so many characters: one unit again and again; `{i}` in it is replaced by a number."""
    count = max(1, size // len(unit.replace("{i}", "000000")))
    return "".join(unit.replace("{i}", str(100_003 + 7 * i)) for i in range(count)) if "{i}" in unit else unit * count
