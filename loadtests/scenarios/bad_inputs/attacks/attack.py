"""Attacks: content, manner of sending, and right responses. `attacks.toml` lists them."""

import enum
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.hostile.inputs import SHAPES

CLOSED: Final = "closed"  # status if the server closed the connection without a response
TIMEOUT: Final = "timeout"  # status if the client gave up waiting
LEFT: Final = "left"  # status if the client left as planned

_REFUSED: Final = ("400", "401", "403", "404", "405", "408", "411", "413", "414", "415", "421", "422", "431", "501")
_STATUSES: Final[Mapping[str, frozenset[str]]] = {  # sets by name in `attacks.toml`
    "refused": frozenset({*_REFUSED, "503", CLOSED}),
    "answered": frozenset({"200", "429", "503"}),
    "any": frozenset({*_REFUSED, "503", CLOSED, "200", "429", LEFT}),  # no server error and no silence
    "forbidden": frozenset({"400", "401", "403", "413", "429", "431", "503"}),
    "grpc": frozenset({"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "NOT_FOUND", "UNIMPLEMENTED", LEFT}),
}
_TARGETS: Final = {  # of JSON bodies: path and authorization
    "native": ("/v1/translate", "bearer"),
    "libretranslate": ("/translate", ""),
    "deepl": ("/v2/translate", "bearer"),
    "azure": ("/translate?api-version=3.0&to=de&from=en", "bearer"),
}
GRPC_KINDS: Final = ("document", "texts", "stream", "many-texts", "detection", "google")
_FORMATS: Final = {"p": "plain", "h": "html", "x": "xml"}
_SHORT_DOCUMENTS: Final = frozenset(
    ("tags-unmatched-plain", "tags-unmatched-html", "icu-quoted-heads-plain", "numbers-before-blocks-html")
)
_SHORT_SHAPES: Final = ("combining", "untranslatable")
_DOCUMENT: Final[Mapping[str, Any]] = {"size": 200_000, "grown_size": 80_000, "way": "leave", "leave_after_s": 1.5}
_STOPPED_DOCUMENTS: Final = ("tags-unmatched-html", "icu-quoted-heads-plain")


class Way(enum.Enum):
    """Manner of sending."""

    REPEAT = "repeat"  # each time on a new connection
    LEAVE = "leave"  # repeatedly, closing the connection before the response
    DRIP = "drip"  # one byte of the rest at a time
    UNREAD = "unread"  # once, without reading the response
    CONNECT = "connect"  # connections are opened and closed


class Port(enum.Enum):
    """Port of the server."""

    HTTP = "http"
    METRICS = "metrics"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Manner of sending and content of an attack; the head of `attacks.toml` explains templates and fill."""

    name: str
    surface: str
    size: int  # in the unit of the attack, mostly bytes or characters
    way: Way = Way.REPEAT
    port: Port = Port.HTTP
    expected: frozenset[str] = _STATUSES["any"]
    num_connections: int = 1
    num_hosts: int = 1  # client addresses
    leave_after_s: float = 0.0  # for `Way.LEAVE`; 0: with the first part of the response
    is_once: bool = False  # one exchange per connection
    grows: bool = True  # compare the CPU time of several sizes
    grown_size: int = 0  # largest size of that comparison; 0: `size`
    is_short: bool = False  # part of the short mode
    is_stopped: bool = False  # send SIGTERM to the server during the attack

    kind: str = "http"  # or http-patterns, file, one of `GRPC_KINDS`
    request: str = ""
    headers: Sequence[str] = ()
    auth: str = ""  # bearer or deepl
    media: str = "application/json"  # of a body
    body: str = ""
    has_length: bool = True
    is_pipelined: bool = False  # the size is the number of requests
    splits_body: bool = False  # send it separately
    raw: str | None = None  # instead of a request
    rest: str = ""  # for `Way.DRIP`
    head: str = ""
    unit: str = ""
    middle: str = ""
    close: str = ""
    tail: str = ""
    text: str = ""  # name of a generated fill
    shape: str = ""  # shape of hostile text, instead of a fill
    token_header: str = '{"alg":"RS256","kid":"{kid}"}'  # noqa: S105 - a template
    token_claims: str = '{"sub":"a","exp":9999999999}'  # noqa: S105 - a template
    token_signature: str = "\0" * 256
    options: Mapping[str, Any] = field(default_factory=dict)
    format: str = "plain"
    patterns: str | Sequence[str] = ()
    terms: str = ""
    file: str = ""
    file_first: bool = False


def _attack(name: str, surface: str, **given: Any) -> Attack:
    usual = {"port": "grpc", "expected": ["grpc"]} if given.get("kind", "http") in GRPC_KINDS else {}
    own: dict[str, Any] = {"way": "repeat", "port": "http", "expected": ["any"], **usual, **given}
    own["way"], own["port"] = Way(own["way"]), Port(own["port"])
    own["expected"] = frozenset().union(*(_STATUSES.get(one, frozenset({one})) for one in own["expected"]))
    return Attack(name=name, surface=surface, **own)


def _attacks(tables: Mapping[str, Any]) -> Iterator[Attack]:
    for surface, table in tables["surfaces"].items():
        for name, given in table["attacks"].items():
            yield _attack(name, surface, **{**table.get("defaults", {}), **given})
    body: dict[str, Any] = {"body": "{fill}", "size": 4_000_000, "expected": ["refused", "answered"]}
    for (target, (path, auth)), (name, fill) in itertools.product(_TARGETS.items(), tables["json"].items()):
        if target in ("native", "libretranslate") or name in ("objects", "members", "escapes", "nested-lists"):
            is_libre = target == "libretranslate"
            own = {"num_connections": 6 if is_libre else 2, "is_short": is_libre and name == "objects"}
            yield _attack(
                f"json-{name}-{target}", f"JSON of {target}", request=f"POST {path}", auth=auth, **body, **own, **fill
            )
    for name, fill in tables["forms"].items():
        is_short = name == "escapes"
        form = {"request": "POST /translate", "media": "application/x-www-form-urlencoded"}
        own = {"num_connections": 12 if is_short else 4, "is_short": is_short}
        yield _attack(f"form-{name}", "forms", **form, **body, **own, **fill)
    upload = {"request": "POST /translate_file", "auth": "bearer", "kind": "file", "grows": False}
    upload |= {"num_connections": 2, "way": "leave", "leave_after_s": 1.5}  # leaving removes the file
    for name, given in tables["files"].items():
        yield _attack(f"file-{name}", "uploaded files", **{**upload, **given})
    for shape in SHAPES:
        usual = {"shape": shape, "is_short": shape in _SHORT_SHAPES, "num_connections": 2}
        yield _attack(f"{shape}-texts", "hostile texts", kind="texts", size=10_000, **usual)
        yield _attack(f"{shape}-document", "hostile texts", kind="document", **_DOCUMENT, **usual)
    for (shape, fill), (letter, text_format) in itertools.product(tables["documents"].items(), _FORMATS.items()):
        if letter in fill["formats"]:
            name = f"{shape}-{text_format}"
            yield _attack(
                name,
                f"documents, {text_format}",
                kind="document",
                format=text_format,
                **_DOCUMENT,
                num_connections=8 if name in _SHORT_DOCUMENTS else 2,
                is_short=name in _SHORT_DOCUMENTS,
                is_stopped=name in _STOPPED_DOCUMENTS,
                **{key: value for key, value in fill.items() if key != "formats"},
            )


_TABLES: Final = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text(encoding="utf-8"))
ATTACKS: Final[Mapping[str, Attack]] = {attack.name: attack for attack in _attacks(_TABLES)}
