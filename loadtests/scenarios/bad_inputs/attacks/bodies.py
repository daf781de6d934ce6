"""Attacks on what reads bodies, keys and ids: JSON, forms, multipart, tokens, the APIs of other vendors."""

import base64
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadtests.scenarios.bad_inputs.attacks.attack import (
    ANSWERED,
    ANY,
    REFUSED,
    Attack,
    Credentials,
    Make,
    Payload,
    as_form,
    as_json,
    bearer,
    post,
    repeated,
    request,
)

_MEGABYTES: Final = 4_000_000
"""Just below the largest body, `grpc.max_message_bytes`."""

_FORM: Final = "application/x-www-form-urlencoded"
_REJECTED: Final = frozenset({"400", "413"})
_FORBIDDEN: Final = frozenset({"400", "401", "403", "413", "429", "431", "503"})
_NATIVE: Final = {"sourceLanguage": "en", "targetLanguage": "de"}

Fill = Callable[[int], str]
"""Returns JSON or a form of about so many bytes."""


def _nested(opening: str, closing: str, *, inner: str = "") -> Fill:
    def fill(size: int) -> str:
        depth = size // len(opening + closing)
        return opening * depth + inner + closing * depth

    return fill


_JSON_FILLS: Final[Mapping[str, Fill]] = {
    "objects": lambda size: "[" + "{}," * (size // 3) + "{}]",
    "lists": lambda size: "[" + "[]," * (size // 3) + "[]]",
    "numbers": lambda size: "[" + "0," * (size // 2) + "0]",
    "strings": lambda size: "[" + '"",' * (size // 3) + "0]",
    "members": lambda size: "{" + repeated('"{i}":0,', size) + '"a":0}',
    "repeated-member": lambda size: "{" + '"q":0,' * (size // 6) + '"q":0}',
    "nested-lists": _nested("[", "]"),
    "nested-objects": _nested('{"a":', "}", inner="0"),
    "escapes": lambda size: '{"q":"' + "\\u00e4" * (size // 6) + '"}',
    "surrogates": lambda size: '{"q":"' + "\\ud83d" * (size // 6) + '"}',
    "digits": lambda size: '{"q":' + "9" * size + "}",
    "fraction": lambda size: '{"q":0.' + "9" * size + "e1}",
    "spaces": lambda size: " " * size + "{}",
    "unclosed-string": lambda size: '{"q":"' + "a" * size,
    "backslashes": lambda size: '{"q":"' + "\\\\" * (size // 2) + '"}',
}
_FORM_FILLS: Final[Mapping[str, Fill]] = {
    "escapes": lambda size: "q=" + "%C3%A4" * (size // 6),
    "bad-escapes": lambda size: "q=" + "%zz" * (size // 3),
    "pluses": lambda size: "q=" + "+" * size,
    "fields": lambda size: repeated("a{i}=&", size),
    "ampersands": lambda size: "&" * size,
    "texts": lambda size: "q=a&text=a&" * (size // 11),
    "semicolons": lambda size: "q=a;" * (size // 4),
    "equals": lambda size: "=" * size,
}


def _body(path: str, fill: Fill, *, media_type: str = "application/json", is_authorized: bool = False) -> Make:
    def make(size: int, credentials: Credentials) -> Payload:
        headers = [bearer(credentials)] if is_authorized else []
        return post(path, *headers, body=fill(size).encode(), media_type=media_type)

    return make


def _deepl(**fields: Any) -> Callable[[Fill], Make]:
    """Return what makes a JSON request to DeepL's API of a text."""

    def of(fill: Fill) -> Make:
        def make(size: int, credentials: Credentials) -> Payload:
            content = {"text": [fill(size)], "source_lang": "EN", "target_lang": "DE", **fields}
            return post("/v2/translate", f"Authorization: DeepL-Auth-Key {credentials.key}", body=as_json(content))

        return make

    return of


def _deepl_form(size: int, credentials: Credentials) -> Payload:
    fields = {"text": " " * size, "target_lang": "DE", "source_lang": "EN", "tag_handling": "xml", "ignore_tags": "x"}
    authorization = f"Authorization: DeepL-Auth-Key {credentials.key}"
    return post("/v2/translate", authorization, body=as_form(fields.items()), media_type=_FORM)


def _ignored_tags(size: int, credentials: Credentials) -> Payload:
    tags = [f"a{number}" for number in range(100)]
    return _deepl(tag_handling="xml", ignore_tags=tags)(lambda length: "<a" * (length // 2))(size, credentials)


def _multipart(part: str, *, boundary: str = "b") -> Make:
    """Return a form of many parts; `{b}` in a part is the boundary, `{i}` a number."""

    def make(size: int, _: Credentials) -> Payload:
        content = repeated(part.replace("{b}", f"--{boundary}"), size) + f"--{boundary}--\r\n"
        return post("/translate", body=content.encode(), media_type=f"multipart/form-data; boundary={boundary}")

    return make


_PART: Final = '{b}\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n'


def _token(make_token: Callable[[int, Credentials], str]) -> Make:
    """Return a request with a token in its header."""

    def make(size: int, credentials: Credentials) -> Payload:
        token = make_token(size, credentials)
        return post("/v1/translate", f"Authorization: Bearer {token}", body=as_json({"texts": ["A."], **_NATIVE}))

    return make


def _encoded(content: object) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _signed(header: Mapping[str, Any] | None = None, *, claims: object = None, signature: bytes = bytes(256)) -> Any:
    """Return what makes a token of these parts, with a key that the server has."""

    def make(size: int, credentials: Credentials) -> str:
        filled = {name: value(size) if callable(value) else value for name, value in (header or {}).items()}
        head = {"alg": "RS256", "kid": credentials.key_id, **filled}
        content = claims(size) if callable(claims) else claims or {"sub": "a", "exp": 9_999_999_999}
        return f"{_encoded(head)}.{_encoded(content)}.{_encoded(signature)}"

    return make


def _api_key(make_key: Callable[[int, Credentials], str]) -> Make:
    """Return a request of LibreTranslate with the key in its body."""

    def make(size: int, credentials: Credentials) -> Payload:
        fields = {"q": "Hello", "source": "en", "target": "de", "api_key": make_key(size, credentials)}
        return post("/translate", body=as_json(fields))

    return make


def _ids(path: str, content: object, *, scheme: str = "Bearer") -> Make:
    return lambda _, credentials: post(path, f"Authorization: {scheme} {credentials.key}", body=as_json(content))


def _get(path: str, *, scheme: str = "Bearer") -> Make:
    """Return a request for a path, `{x}` of which is filled."""

    def make(size: int, credentials: Credentials) -> Payload:
        target = path.replace("{x}", "%61" * (size // 3))
        return Payload(parts=[request("GET", target, f"Authorization: {scheme} {credentials.key}")])

    return make


_LONE: Final = "\ud800"
_DEEPL: Final = {"text": ["A."], "source_lang": "EN", "target_lang": "DE"}
_SHOP: Final = "/v3/projects/shop/locations/global"
_TARGETS: Final[Mapping[str, tuple[str, bool]]] = {  # path, with a key
    "native": ("/v1/translate", True),
    "libretranslate": ("/translate", False),
    "deepl": ("/v2/translate", True),
    "azure": ("/translate?api-version=3.0&to=de&from=en", True),
}
_SHORT_IDS: Final = ("surrogate-glossary-deepl", "surrogate-text", "surrogate-request-id")
_ONCE: Final[Mapping[str, Any]] = {
    "grows": False,
    "is_once": True,
    "expected": frozenset({"400"}),
}

_KEYS: Final[Sequence[tuple[str, Make, dict[str, Any]]]] = (
    ("token-claims-deep", _token(_signed(claims=lambda size: b"[" * (size // 2))), {}),
    ("token-header-deep", _token(lambda size, _: f"{_encoded(b'[' * (size // 2))}.e30.AAAA"), {}),
    ("token-dots", _token(lambda size, _: "." * size), {}),
    ("token-key-id", _token(_signed({"kid": lambda size: "k" * (size // 2)})), {}),
    ("token-key-id-list", _token(_signed({"kid": lambda size: ["k"] * (size // 8)})), {}),
    ("token-critical", _token(_signed({"crit": lambda size: ["a"] * (size // 8)})), {}),
    ("token-scopes", _token(_signed(claims=lambda size: {"scope": "a " * (size // 4)})), {}),
    ("token-audiences", _token(_signed(claims=lambda size: {"aud": ["a"] * (size // 8)})), {}),
    ("token-signature", _token(lambda size, keys: _signed(signature=bytes(size // 2))(size, keys)), {}),
    ("token-flood", _token(_signed()), {"grows": False, "num_connections": 6}),
    ("key-flood", _token(lambda _, keys: f"{keys.key[:17]}{'A' * 43}"), {"grows": False, "num_connections": 6}),
    (
        "key-long",
        _api_key(lambda size, keys: keys.key + "A" * size),
        {"size": _MEGABYTES, "num_connections": 4},
    ),
    (
        "key-like-token",
        _api_key(lambda size, keys: _signed(signature=bytes(size * 3 // 4))(size, keys)),
        {"size": _MEGABYTES, "num_connections": 4, "is_short": True},
    ),
    (
        "key-of-claims",
        _api_key(lambda size, keys: _signed(claims=lambda _: {"a": "b" * (size * 3 // 4)})(size, keys)),
        {"size": _MEGABYTES, "num_connections": 4},
    ),
    ("key-of-dots", _api_key(lambda size, _: "a." * (size // 2)), {"size": _MEGABYTES, "num_connections": 4}),
)

BODIES: Final[Sequence[Attack]] = [
    *(
        Attack(
            name=f"json-{fill}-{target}",
            surface=f"JSON of {target}",
            make=_body(path, make_fill, is_authorized=is_authorized),
            size=_MEGABYTES,
            num_connections=6 if target == "libretranslate" else 2,
            expected=REFUSED | ANSWERED,
            is_short=(target, fill) == ("libretranslate", "objects"),
        )
        for (target, (path, is_authorized)), (fill, make_fill) in itertools.product(
            _TARGETS.items(), _JSON_FILLS.items()
        )
        if target in ("native", "libretranslate") or fill in ("objects", "members", "escapes", "nested-lists")
    ),
    *(
        Attack(
            name=f"form-{fill}",
            surface="forms",
            make=_body("/translate", make_fill, media_type=_FORM),
            size=_MEGABYTES,
            num_connections=12 if fill == "escapes" else 4,
            expected=REFUSED | ANSWERED,
            is_short=fill == "escapes",
        )
        for fill, make_fill in _FORM_FILLS.items()
    ),
    *(
        Attack(name=f"multipart-{name}", surface="multipart", make=make, size=_MEGABYTES, num_connections=4)
        for name, make in {
            "parts": _multipart(_PART),
            "empty-parts": _multipart("{b}\r\n\r\n\r\n"),
            "headers": _multipart("{b}\r\n" + "a: b\r\n" * 200 + "\r\nx\r\n"),
            "long-name": _multipart(_PART.replace('"q"', f'"{"a" * 9000}"')),
            "line-ends": _multipart("\r\n"),
            "almost-boundaries": _multipart("\r\n--" + "b" * 65, boundary="b" * 66),
        }.items()
    ),
    *(
        Attack(name=name, surface="keys and tokens", make=make, expected=_FORBIDDEN, **{"size": 12_000, **others})
        for name, make, others in _KEYS
    ),
    *(
        Attack(name=name, surface="DeepL", make=make, size=size, num_connections=2, **others)
        for name, make, size, others in (
            (
                "ignore-tags-spaces",
                _deepl(tag_handling="xml", ignore_tags=["x"])(lambda size: " " * size),
                60_000,
                {"is_short": True, "expected": _REJECTED},
            ),
            ("ignore-tags-spaces-form", _deepl_form, 30_000, {"is_short": True, "expected": _REJECTED}),
            (
                "ignore-tags-spaces-allowed",
                _deepl(tag_handling="xml", ignore_tags=["x"])(lambda size: " " * size),
                9_900,
                {"expected": ANSWERED},
            ),
            ("ignore-tags-100", _ignored_tags, 4_000_000, {}),
            (
                "ignore-tags-comments",
                _deepl(tag_handling="xml", ignore_tags=["x"])(lambda size: "<!--" * (size // 4)),
                4_000_000,
                {},
            ),
            (
                "ignore-tags-nested",
                _deepl(tag_handling="html", ignore_tags=["x"])(lambda size: "<x>" * (size // 3)),
                9_900,
                {},
            ),
            (
                "ignore-tags-attributes",
                _deepl(tag_handling="xml", ignore_tags=["x"])(lambda size: "<x " + "a='b' " * (size // 6)),
                9_900,
                {},
            ),
            (
                "ignore-tags-marker",
                _deepl(tag_handling="xml", ignore_tags=["x"])(lambda size: " translate='no'" * (size // 15)),
                4_000_000,
                {},
            ),
            ("deepl-texts", _deepl(text=["a"] * 500_000)(lambda _: ""), 1, {"grows": False}),
            ("deepl-billed-characters", _deepl(tag_handling="xml")(lambda size: "<a" * (size // 2)), 9_900, {}),
            ("deepl-glossary", _get("/v2/glossaries/{x}", scheme="DeepL-Auth-Key"), 14_000, {}),
            ("deepl-languages", _get("/v2/languages?type={x}", scheme="DeepL-Auth-Key"), 14_000, {}),
        )
    ),
    *(
        Attack(name=name, surface="ids", make=make, size=1, **_ONCE, is_short=name in _SHORT_IDS)
        for name, make in {
            "surrogate-glossary-deepl": _ids(
                "/v2/translate", {**_DEEPL, "glossary_id": _LONE}, scheme="DeepL-Auth-Key"
            ),
            "surrogate-text-deepl": _ids("/v2/translate", {**_DEEPL, "text": [_LONE]}, scheme="DeepL-Auth-Key"),
            "surrogate-language-deepl": _ids(
                "/v2/translate", {**_DEEPL, "target_lang": _LONE}, scheme="DeepL-Auth-Key"
            ),
            "surrogate-text": _ids("/v1/translate", {"texts": [_LONE], **_NATIVE}),
            "surrogate-model": _ids("/v1/translate", {"texts": ["A."], "model": _LONE, **_NATIVE}),
            "surrogate-request-id": _ids("/v1/translate", {"texts": ["A."], "requestId": _LONE, **_NATIVE}),
            "surrogate-text-libretranslate": _ids("/translate", {"q": _LONE, "source": "en", "target": "de"}),
            "surrogate-text-azure": _ids("/translate?api-version=3.0&to=de&from=en", [{"Text": _LONE}]),
        }.items()
    ),
    *(
        Attack(
            name=f"google-{fill}",
            surface="Google over HTTP",
            make=_body(f"{_SHOP}:translateText", _JSON_FILLS[fill], is_authorized=True),
            size=_MEGABYTES,
            expected=ANY,
        )
        for fill in ("objects", "members", "nested-objects")
    ),
    Attack(
        name="google-v2-form",
        surface="Google over HTTP",
        make=_body("/language/translate/v2", _FORM_FILLS["escapes"], media_type=_FORM),
        size=_MEGABYTES,
        num_connections=6,
        expected=ANY,
    ),
]
"""Attacks on what reads bodies, keys and ids."""
