"""Attacks on the framing of HTTP: chunks, heads, pipelines, slow clients, connections."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadtests.scenarios.bad_inputs.attacks.attack import (
    ANY,
    ORIGIN,
    REFUSED,
    TIMEOUT,
    Attack,
    Credentials,
    Make,
    Payload,
    Port,
    Way,
    as_form,
    as_json,
    bearer,
    request,
)

_JSON: Final = "Content-Type: application/json"
_FORM: Final = "Content-Type: application/x-www-form-urlencoded"
_CHUNKED: Final = "Transfer-Encoding: chunked"
_JSON_LANGUAGES: Final = {"sourceLanguage": "en", "targetLanguage": "de"}
_HELLO: Final = as_json({"texts": ["Hello."], **_JSON_LANGUAGES})
_WAITS: Final = ANY | {TIMEOUT}
"""Answers to a client that does not send, or read, all of it: silence is right as well."""


def _chunked(path: str, *, head: str = "1", is_authorized: bool = False, has_text: bool = False) -> Make:
    """Return a body in chunks of one byte, each with this head."""

    def make(size: int, credentials: Credentials) -> Payload:
        headers = [_JSON, _CHUNKED, *([bearer(credentials)] if is_authorized else [])]
        chunk = f"{head}\r\n%s\r\n"
        num_chunks = max(1, size // (len(chunk) - 1))
        content = "x" * num_chunks
        if has_text:
            text = as_json({"text": "A. " * (num_chunks // 30), **_JSON_LANGUAGES}).decode()
            content = text.ljust(num_chunks)
        body = "".join(chunk % one for one in content)
        return Payload(parts=[request("POST", path, *headers, has_length=False) + f"{body}0\r\n\r\n".encode()])

    return make


def _extended(extension: str) -> Make:
    """Return chunks of one byte, each with an extension."""

    def make(size: int, _: Credentials) -> Payload:
        chunk = f"1;{extension}\r\nx\r\n"
        head = request("POST", "/v1/translate", _JSON, _CHUNKED, has_length=False)
        return Payload(parts=[head + (chunk * max(1, size // len(chunk)) + "0\r\n\r\n").encode()])

    return make


def _endless_extension(size: int, _: Credentials) -> Payload:
    head = request("POST", "/v1/translate", _JSON, _CHUNKED, has_length=False)
    return Payload(parts=[head + b"1;" + b"a" * size + b"\r\nx\r\n0\r\n\r\n"])


def _trailers(size: int, _: Credentials) -> Payload:
    head = request("POST", "/nowhere", _JSON, _CHUNKED, has_length=False)
    return Payload(parts=[head + b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * (size // 6) + b"\r\n"])


def _endless_chunk_size(size: int, _: Credentials) -> Payload:
    head = request("POST", "/nowhere", _JSON, _CHUNKED, has_length=False)
    return Payload(parts=[head + b"0" * size + b"1\r\nx\r\n0\r\n\r\n"])


def _headers(line: str) -> Make:
    """Return a head that is filled with one line; `{i}` in it is replaced by a number."""

    def make(size: int, _: Credentials) -> Payload:
        lines = (line.replace("{i}", str(i)) for i in range(max(1, size // len(line.replace("{i}", "000")))))
        return Payload(parts=[request("GET", "/v1/models", *lines)])

    return make


def _pipelined(method: str, path: str, *headers: str, body: bytes = b"") -> Make:
    def make(size: int, credentials: Credentials) -> Payload:
        lines = [line.replace("{key}", credentials.key) for line in headers]
        return Payload(parts=[request(method, path, *lines, body=body) * size], num_answers=size)

    return make


def _target(target: str) -> Make:
    return lambda size, _: Payload(parts=[request("GET", target.replace("{x}", "&a=%41" * (size // 6)))])


def _raw(unit: bytes, *, head: bytes = b"", tail: bytes = b"") -> Make:
    """Return bytes that need not be HTTP: a head, as much of a unit as fits, a tail."""
    return lambda size, _: Payload(parts=[head + unit * (size // len(unit)) + tail])


def _fixed(content: bytes, *, num_answers: int = 1) -> Make:
    return lambda _size, _credentials: Payload(parts=[content], num_answers=num_answers)


def _slow(head: bytes, rest: bytes) -> Make:
    return lambda _size, credentials: Payload(parts=[head.replace(b"{key}", credentials.key.encode())], rest=rest)


def _upgraded(*, is_split: bool) -> Make:
    """Return a translation that offers to upgrade to HTTP/2, as curl --http2 does."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")

    def make(_: int, credentials: Credentials) -> Payload:
        whole = request("POST", "/v1/translate", _JSON, bearer(credentials), *offer, body=_HELLO)
        return Payload(parts=[whole[: -len(_HELLO)], _HELLO] if is_split else [whole])

    return make


def _both_lengths(*, order: Sequence[str]) -> Make:
    body = b"0\r\n\r\n" + request("GET", "/healthz")
    head = request("POST", "/nowhere", _JSON, *order, has_length=False)
    return _fixed(head + body, num_answers=1)


def _cross_site(path: str, fields: Mapping[str, str], *headers: str) -> Make:
    def make(_: int, credentials: Credentials) -> Payload:
        lines = [line.replace("{key}", credentials.key) for line in headers]
        form = {name: value.replace("{key}", credentials.key) for name, value in fields.items()}
        return Payload(parts=[request("POST", path, _FORM, *lines, body=as_form(form.items()))])

    return make


def _document_of_events(size: int, credentials: Credentials) -> Payload:
    text = "The weather is nice today. " * (size // 27)
    body = as_json({"text": text, **_JSON_LANGUAGES})
    return Payload(parts=[request("POST", "/v1/translate/document", _JSON, bearer(credentials), body=body)])


def _attacks(surface: str, table: Mapping[str, tuple[Make, int, Mapping[str, Any]]]) -> list[Attack]:
    return [
        Attack(**{"name": name, "surface": surface, "make": make, "size": size, **others})
        for name, (make, size, others) in table.items()
    ]


_FLOOD: Final = {"num_connections": 6, "is_short": True}
_ONCE: Final = {"grows": False, "is_once": True, "is_short": True}
_KEPT: Final = {"grows": False, "way": Way.DRIP, "num_connections": 200, "expected": _WAITS}
_LIBRE_FIELDS: Final = {"q": "Hello", "source": "en", "target": "de", "api_key": "{key}"}
_DEEPL_FIELDS: Final = {"text": "Hello", "source_lang": "EN", "target_lang": "DE"}
_DEEPL_KEY: Final = "Authorization: DeepL-Auth-Key {key}"
_METRICS: Final = {"port": Port.METRICS}
_RIGHT: Final = frozenset({"200"})
_DENIED: Final = frozenset({"403"})

CONNECTIONS: Final[Sequence[Attack]] = [
    *_attacks(
        "chunks",
        {
            "chunks-nowhere": (_chunked("/nowhere"), 1_000_000, {"is_short": True}),
            "chunks-nowhere-6": (_chunked("/nowhere"), 1_000_000, {**_FLOOD, "grows": False, "is_stopped": True}),
            "chunks-models-6": (_chunked("/v1/models"), 1_000_000, {**_FLOOD, "grows": False, "is_short": False}),
            "chunks-translate": (_chunked("/v1/translate"), 1_000_000, {}),
            "chunks-authorized": (_chunked("/v1/translate", is_authorized=True), 1_000_000, {}),
            "chunks-authorized-6": (
                _chunked("/v1/translate/document", is_authorized=True, has_text=True),
                1_000_000,
                {**_FLOOD, "grows": False},
            ),
            "chunks-document": (_chunked("/v1/translate/document", is_authorized=True, has_text=True), 500_000, {}),
            "chunks-deepl": (_chunked("/v2/translate"), 1_000_000, {}),
            "chunks-azure": (_chunked("/translate?api-version=3.0"), 1_000_000, {}),
            "chunks-libretranslate": (_chunked("/translate"), 1_000_000, {"is_short": True}),
            "chunks-metrics-port": (_chunked("/metrics"), 1_000_000, _METRICS),
            "chunks-healthz-6": (_chunked("/healthz"), 1_000_000, {**_METRICS, **_FLOOD, "grows": False}),
            "chunks-leading-zeros": (_chunked("/nowhere", head="0000001"), 1_000_000, {}),
            "chunk-extensions": (_extended("a" * 15_000), 4_000_000, {**_FLOOD}),
            "chunk-extensions-short": (_extended("a=b"), 1_000_000, {"num_connections": 6}),
            "chunk-extensions-many": (_extended("a=b;" * 500), 1_000_000, {"num_connections": 6}),
            "chunk-extension-megabyte": (_endless_extension, 1_000_000, {}),
            "chunk-size-of-zeros": (_endless_chunk_size, 1_000_000, {}),
            "trailers": (_trailers, 15_000, {}),
            "trailers-megabyte": (_trailers, 1_000_000, {"expected": REFUSED}),
        },
    ),
    *_attacks(
        "heads",
        {
            "headers-1500-small": (_headers("a: b"), 8_000, {**_FLOOD}),
            "headers-distinct": (_headers("a{i}: b"), 12_000, {"num_connections": 6}),
            "header-long": (_headers("x: " + "y" * 15_000), 15_003, {"grows": False}),
            "headers-cookies": (_headers("Cookie: a{i}=b"), 14_000, {}),
            "headers-folded": (_headers("x: y\r\n z\r\n\t"), 14_000, {}),
            "headers-hosts": (_headers("Host: localhost"), 14_000, {}),
            "headers-accept": (_headers("Accept: text/plain;q=0.5, */*"), 14_000, {}),
            "headers-forwarded": (_headers("X-Forwarded-For: 127.0.0.1, 127.0.0.1"), 14_000, {}),
            "head-too-large": (_headers("a: b"), 1_000_000, {"expected": REFUSED}),
            "head-without-end": (_raw(b"a", head=b"GET / HTTP/1.1\r\nx: "), 1_000_000, {"expected": REFUSED}),
            "target-long": (_target("/v1/models?a=b{x}"), 15_000, {}),
            "target-of-slashes": (
                lambda size, _: Payload(parts=[request("GET", "/v1" + "/" * size + "models")]),
                15_000,
                {},
            ),
            "target-of-dots": (
                lambda size, _: Payload(parts=[request("GET", "/v1" + "/.." * (size // 3))]),
                15_000,
                {},
            ),
            "blank-lines": (_raw(b"\r\n", tail=request("GET", "/v1/models")), 1_000_000, {}),
            "bare-line-feeds": (_raw(b"a: b\n", head=b"GET /v1/models HTTP/1.1\n", tail=b"\n"), 14_000, {}),
            "length-of-digits": (
                lambda size, _: Payload(
                    parts=[request("POST", "/x", f"Content-Length: {'9' * size}", has_length=False)]
                ),
                15_000,
                {"expected": REFUSED},
            ),
            "methods": (_raw(b"A", tail=b" / HTTP/1.1\r\n\r\n"), 15_000, {"expected": REFUSED}),
        },
    ),
    *_attacks(
        "pipelines",
        {
            "pipeline-healthz": (
                _pipelined("GET", "/healthz"),
                2_000,
                {**_METRICS, "num_connections": 4, "is_short": True},
            ),
            "pipeline-metrics": (_pipelined("GET", "/metrics"), 100, {**_METRICS, "num_connections": 4}),
            "pipeline-not-found": (_pipelined("GET", "/nowhere"), 2_000, {"num_connections": 4, "expected": REFUSED}),
            "pipeline-posts": (_pipelined("POST", "/v1/translate", _JSON, body=_HELLO), 500, {"num_connections": 4}),
            "pipeline-translations": (
                _pipelined("POST", "/v1/translate", _JSON, "Authorization: Bearer {key}", body=_HELLO),
                100,
                {"num_connections": 2, "grows": False},
            ),
            "pipeline-unread": (
                _pipelined("GET", "/metrics"),
                2_000,
                {**_METRICS, "grows": False, "way": Way.UNREAD, "num_connections": 10, "expected": _WAITS},
            ),
            "metrics-flood": (_pipelined("GET", "/metrics"), 1, {**_METRICS, "grows": False, "num_connections": 4}),
        },
    ),
    *_attacks(
        "slow clients",
        {
            "slow-heads": (_slow(b"GET /v1/models HTTP/1.1\r\nx: ", b"y" * 1000), 1, {**_KEPT, "is_short": True}),
            "slow-heads-metrics": (_slow(b"GET /metrics HTTP/1.1\r\nx: ", b"y" * 1000), 1, {**_KEPT, **_METRICS}),
            "slow-bodies": (
                _slow(
                    request(
                        "POST",
                        "/v1/translate",
                        _JSON,
                        "Authorization: Bearer {key}",
                        "Content-Length: 9999",
                        has_length=False,
                    ),
                    b" " * 1000,
                ),
                1,
                {**_KEPT, "is_short": True, "is_stopped": True},
            ),
            "slow-bodies-libretranslate": (
                _slow(request("POST", "/translate", _JSON, "Content-Length: 99999", has_length=False), b" " * 1000),
                1,
                _KEPT,
            ),
            "slow-chunks": (
                _slow(request("POST", "/translate", _JSON, _CHUNKED, has_length=False), b"1\r\nx\r\n" * 100),
                1,
                _KEPT,
            ),
            "idle-connections": (_slow(request("GET", "/v1/models"), b""), 1, _KEPT),
            "silent-connections": (_slow(b"", b""), 1, _KEPT),
            "connections-flood": (_fixed(b""), 1, {"grows": False, "way": Way.CONNECT, "num_connections": 2}),
            "events-unread": (
                _document_of_events,
                20_000,
                {"grows": False, "way": Way.UNREAD, "num_connections": 40, "expected": _WAITS, "is_short": True},
            ),
            "metrics-unread": (
                _pipelined("GET", "/metrics"),
                1,
                {**_METRICS, "grows": False, "way": Way.UNREAD, "num_connections": 100, "expected": _WAITS},
            ),
            "body-after-refusal": (
                lambda size, _: Payload(parts=[request("POST", "/nowhere", _JSON, body=b" " * size)]),
                8_000_000,
                {"num_connections": 4, "grown_size": 4_000_000},
            ),
            "body-too-large": (
                lambda size, _: Payload(
                    parts=[
                        request("POST", "/translate", _JSON, "Content-Length: 999999999", has_length=False),
                        b" " * size,
                    ]
                ),
                8_000_000,
                {"grows": False, "num_connections": 2, "expected": REFUSED},
            ),
        },
    ),
    *_attacks(
        "protocols",
        {
            "upgrade-whole": (_upgraded(is_split=False), 1, {**_ONCE, "expected": _RIGHT}),
            "upgrade-split": (_upgraded(is_split=True), 1, {**_ONCE, "expected": _RIGHT}),
            "length-and-chunks": (
                _both_lengths(order=["Content-Length: 5", _CHUNKED]),
                1,
                {**_ONCE, "expected": frozenset({"400"})},
            ),
            "chunks-and-length": (
                _both_lengths(order=[_CHUNKED, "Content-Length: 5"]),
                1,
                {**_ONCE, "expected": frozenset({"400"})},
            ),
            "two-lengths": (
                _both_lengths(order=["Content-Length: 5", "Content-Length: 6"]),
                1,
                {"grows": False, "expected": REFUSED},
            ),
            "two-encodings": (
                _both_lengths(order=["Transfer-Encoding: xchunked", _CHUNKED]),
                1,
                {"grows": False, "expected": REFUSED},
            ),
            "websocket": (
                _fixed(
                    request(
                        "GET",
                        "/v1/models",
                        "Connection: Upgrade",
                        "Upgrade: websocket",
                        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
                        "Sec-WebSocket-Version: 13",
                    )
                ),
                1,
                {"grows": False, "num_connections": 4},
            ),
            "http2-preface": (
                _fixed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
                1,
                {"grows": False, "expected": REFUSED},
            ),
            "tls-hello": (
                _raw(bytes(100), head=bytes.fromhex("16030100a5010000a10303")),
                1000,
                {"grows": False, "expected": REFUSED},
            ),
            "expect-continue": (
                _slow(
                    request(
                        "POST", "/translate", _JSON, "Expect: 100-continue", "Content-Length: 99", has_length=False
                    ),
                    b"",
                ),
                1,
                {**_KEPT, "num_connections": 50},
            ),
        },
    ),
    *_attacks(
        "cross-site forms",
        {
            "form-of-other-origin": (
                _cross_site("/translate", _LIBRE_FIELDS, "Origin: https://evil.example"),
                1,
                {**_ONCE, "expected": _DENIED},
            ),
            "form-of-no-origin": (
                _cross_site("/translate", _LIBRE_FIELDS, "Origin: null"),
                1,
                {**_ONCE, "expected": _DENIED},
            ),
            "form-cross-site": (
                _cross_site("/translate", _LIBRE_FIELDS, "Sec-Fetch-Site: cross-site"),
                1,
                {**_ONCE, "expected": _DENIED},
            ),
            "form-same-site": (
                _cross_site("/translate", _LIBRE_FIELDS, "Sec-Fetch-Site: same-site"),
                1,
                {**_ONCE, "expected": _DENIED},
            ),
            "form-of-other-origin-deepl": (
                _cross_site("/v2/translate", _DEEPL_FIELDS, _DEEPL_KEY, "Origin: https://evil.example"),
                1,
                {**_ONCE, "expected": _DENIED},
            ),
            "form-of-own-origin": (
                _cross_site("/translate", _LIBRE_FIELDS, f"Origin: http://{ORIGIN}", "Sec-Fetch-Site: same-origin"),
                1,
                {**_ONCE, "expected": _RIGHT},
            ),
        },
    ),
]
"""Attacks that need no text."""
