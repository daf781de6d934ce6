"""Attacks on what reads texts: markup, ICU messages, placeholders, sentences, patterns, terms."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.scenarios.bad_inputs.attacks.attack import (
    ANSWERED,
    ANY,
    ANY_OF_GRPC,
    LANGUAGES,
    Attack,
    Credentials,
    Make,
    Payload,
    Port,
    Way,
    as_json,
    bearer,
    document,
    of_message,
    post,
    repeated,
    translate,
    with_key,
)
from loadtests.scenarios.bad_inputs.inputs import CHEAP

Text = Callable[[int], str]
"""Returns a text of about so many characters."""

_FLOOD_SIZE: Final = 200_000
_GROWN_SIZE: Final = 80_000
_LEAVE_S: Final = 1.5
_FORMATS: Final = {"plain": pb.TEXT_FORMAT_PLAIN, "html": pb.TEXT_FORMAT_HTML, "xml": pb.TEXT_FORMAT_XML}


def _of(unit: str) -> Text:
    return lambda size: repeated(unit, size)


def _pairs(opening: str, closing: str) -> Text:
    """Return a text whose first half is openings, its second half closings."""
    return lambda size: repeated(opening, size // 2) + repeated(closing, size // 2)


def _numbered_blocks(size: int) -> str:
    """Return a text with everything that could stand for its tags, then many tags."""
    taken = [*(f"⟦{number}⟧" for number in range(1, 33)), *map(str, range(1900, 2030))]
    return f"{' '.join(taken)} {repeated('{i} ', size // 2)}{repeated('<p><x/>a ', size // 2)}"


_SHAPES: Final[Mapping[str, tuple[str, Text]]] = {  # formats: plain, html, xml
    "tags-unmatched": ("phx", _pairs("<b>", "</i>")),
    "tags-matched": ("phx", _pairs("<b>", "</b>")),
    "tags-closed": ("hx", _of("</b>")),
    "tags-crossed": ("hx", _of("<b><i></b></i>")),
    "tags-distinct": ("hx", _of("<a{i}>")),
    "tags-distinct-closed": ("hx", _pairs("<a{i}>", "</b{i}>")),
    "tags-empty": ("hx", _of("<x/>a ")),
    "tag-attributes": ("hx", lambda size: "<a " + repeated("b='c' ", size) + ">a"),
    "tag-unclosed-attributes": ("hx", lambda size: "<a " + repeated("b='", size)),
    "tag-unclosed": ("phx", _of("<a ")),
    "tag-opened": ("phx", _of("<")),
    "tag-void": ("h", _of("<br>")),
    "tag-paragraphs": ("h", _of("<p>a")),
    "tag-list-items": ("h", _of("<ul><li>a")),
    "tag-tables": ("h", _of("<table><tr><td>a")),
    "tag-scripts": ("h", _of("<script>a")),
    "tag-untranslatable": ("hx", _of("<x translate='no'>a")),
    "tag-preformatted": ("h", _of("<pre>\n")),
    "comments-opened": ("hx", _of("<!--")),
    "comments": ("hx", _of("<!---->")),
    "comments-dashes": ("hx", lambda size: "<!--" + "-" * size),
    "sections-opened": ("hx", _of("<![CDATA[")),
    "sections-brackets": ("x", lambda size: "<![CDATA[" + "]" * size),
    "instructions": ("hx", _of("<?a")),
    "doctypes": ("hx", _of("<!DOCTYPE a [")),
    "entities": ("hx", _of("&amp;")),
    "entities-unclosed": ("hx", _of("&a")),
    "entities-numeric": ("hx", _of("&#9;")),
    "entity-digits": ("hx", lambda size: "&#" + "9" * size),
    "numbers-before-blocks": ("phx", _numbered_blocks),
    "numbers": ("ph", _of("{i} ")),
    "numbers-joined": ("p", _of("1,")),
    "digits": ("p", _of("1")),
    "icu-quoted-heads": ("p", _of("'{a,plural,one{' ")),
    "icu-nested": ("ph", _of("{a,plural,one{")),
    "icu-closed": ("p", _pairs("{a,select,b{", "}}")),
    "icu-choices": ("p", lambda size: "{a,plural," + repeated("one{b}", size) + "}"),
    "icu-quotes": ("p", _of("'{'")),
    "icu-hashes": ("p", lambda size: "{a,plural,one{" + "#" * size + "}}"),
    "icu-heads-apart": ("p", _of("{a,plural,x ")),
    "braces": ("p", _of("{")),
    "braces-matched": ("p", _pairs("{", "}")),
    "braces-double": ("p", _of("{{a}} ")),
    "placeholders": ("p", _of("{a} ")),
    "placeholders-of-server": ("p", _of("⟦{i}⟧")),
    "printf": ("p", _of("%1$s%")),
    "templates": ("p", _of("${")),
    "backticks": ("p", _of("`")),
    "backticks-growing": ("p", lambda size: " ".join("`" * n for n in range(1, int((2 * size) ** 0.5)))),
    "urls": ("p", _of("http://a/")),
    "url-long": ("p", lambda size: "http://a/" + "b?" * (size // 2)),
    "email-dots": ("p", _of("a@b.")),
    "emails": ("p", _of("a@b.c ")),
    "paths": ("p", _of("/a.b")),
    "colons": ("p", _of(":a")),
    "dots": ("p", _of("a. ")),
    "dots-only": ("p", _of(".")),
    "abbreviations": ("p", _of("e.g. ")),
    "quotes": ("p", _of('"')),
    "parentheses": ("p", _of("(")),
    "spaces": ("phx", _of(" ")),
    "spaces-before-end": ("p", lambda size: "a" + " " * size + "b"),
    "line-ends": ("p", _of("\n")),
    "carriage-returns": ("p", _of("\r")),
    "tabs-and-line-ends": ("p", _of("\t\n")),
    "list-markers": ("p", _of("- ")),
    "word-long": ("p", _of("a")),
    "word-of-hyphens": ("p", _of("a-")),
    "ideographs": ("p", _of("你")),
    "marks": ("p", _of("\u0301")),
    "joiners": ("p", _of("\U0001f468\u200d")),
    "expanding": ("p", _of("\ufdfa")),
    "hangul": ("p", _of("\u1112\u1161\u11ab")),
    "zero-width": ("p", _of("a\u200b")),
    "right-to-left": ("p", _of("\u202eא")),
    "capitals": ("p", _of("ß ẞ İ ")),
}
_STOPPED: Final = ("tags-unmatched-html", "icu-quoted-heads-plain")
_SHORT: Final = ("tags-unmatched-plain", "tags-unmatched-html", "icu-quoted-heads-plain", "numbers-before-blocks-html")


def _document(text: Text, format_name: str) -> Make:
    options = {**CHEAP, "format": _FORMATS[format_name]}
    return lambda size, credentials: with_key(document(text(size), options=options), credentials)


def _documents() -> list[Attack]:
    common: dict[str, Any] = {"port": Port.GRPC, "way": Way.LEAVE, "size": _FLOOD_SIZE, "expected": ANY_OF_GRPC}
    return [
        Attack(
            name=(name := f"{shape}-{format_name}"),
            surface=f"documents, {format_name}",
            make=_document(text, format_name),
            leave_after_s=_LEAVE_S,
            grown_size=_GROWN_SIZE,
            num_connections=8 if name in _SHORT else 2,
            is_short=name in _SHORT,
            is_stopped=name in _STOPPED,
            **common,
        )
        for (shape, (formats, text)), format_name in itertools.product(_SHAPES.items(), _FORMATS)
        if format_name[0] in formats
    ]


def _http_document(size: int, credentials: Credentials) -> Payload:
    text = _SHAPES["tags-unmatched"][1](size)
    content = {"text": text, "sourceLanguage": "en", "targetLanguage": "de"}
    return post("/v1/translate/document", bearer(credentials), body=as_json(content))


_STARRED_TEXT: Final = _of("a" * 99 + "b")


def _starred(num_patterns: int, stars: int) -> Sequence[str]:
    """Return different patterns, each with so many `*`, that match no part of `_STARRED_TEXT` but its beginning."""
    return [f"a*{'b*' * (stars - 1)}{chr(0x3A9 + number)}" for number in range(num_patterns)]


def _protected(patterns: Sequence[str], text: Text, *, in_document: bool) -> Make:
    options = {**CHEAP, "protection": {"patterns": patterns}}

    def make(size: int, credentials: Credentials) -> Payload:
        if in_document:
            return with_key(document(text(size), options=options), credentials)
        return with_key(
            translate(texts=[text(min(size, 10_000))] * max(1, size // 10_000), options=options), credentials
        )

    return make


def _protected_http(size: int, credentials: Credentials) -> Payload:
    content = {
        "texts": [_STARRED_TEXT(min(size, 10_000))] * max(1, size // 10_000),
        "sourceLanguage": "en",
        "targetLanguage": "de",
        "options": {"protection": {"patterns": _starred(16, 31)}, "maxTargetTokens": 3, "beamSize": 1},
    }
    return post("/v1/translate", bearer(credentials), body=as_json(content))


def _with_terms(terms: Sequence[Mapping[str, Any]], text: Text, *, in_document: bool = True) -> Make:
    options = {**CHEAP, "terms": terms}

    def make(size: int, credentials: Credentials) -> Payload:
        made = document(text(size), options=options) if in_document else translate(texts=[text(size)], options=options)
        return with_key(made, credentials)

    return make


def _terms(source: Callable[[int], str], *, count: int = 128, is_part: bool = True) -> list[dict[str, Any]]:
    return [{"source": source(number), "target": "z", "is_part_of_word": is_part} for number in range(count)]


def _detection(text: Text) -> Make:
    """Return 10 texts whose languages are to be detected."""

    def make(size: int, credentials: Credentials) -> Payload:
        message = pb.DetectLanguageRequest(texts=[text(size // 10)] * 10)
        return with_key(of_message(message, "/dragoman.v1.TranslationService/DetectLanguage"), credentials)

    return make


def _texts(text: Text, **fields: Any) -> Make:
    """Return as many texts of 10,000 characters as fit."""
    return lambda size, credentials: with_key(
        translate(texts=[text(min(size, 10_000))] * max(1, size // 10_000), **fields), credentials
    )


_GRPC: Final[Mapping[str, Any]] = {"port": Port.GRPC, "expected": ANY_OF_GRPC}
_LEFT: Final[Mapping[str, Any]] = {**_GRPC, "way": Way.LEAVE, "leave_after_s": 3.0}
_REPEATED_TERMS: Final = _terms(lambda count: "a" * (count + 1))
_GLOSSARY: Final = {**CHEAP, "glossary": "stress"}

MARKUP: Final[Sequence[Attack]] = [
    *_documents(),
    *(
        Attack(name=name, surface=surface, make=make, size=size, **others)
        for name, surface, make, size, others in (
            (
                "tags-unmatched-events",
                "documents over HTTP",
                _http_document,
                _FLOOD_SIZE,
                {
                    "way": Way.LEAVE,
                    "leave_after_s": _LEAVE_S,
                    "num_connections": 8,
                    "num_hosts": 8,
                    "is_short": True,
                    "is_stopped": True,
                    "grows": False,
                    "expected": ANY,
                },
            ),
            (
                "patterns-stars-document",
                "patterns",
                _protected(_starred(16, 31), _STARRED_TEXT, in_document=True),
                80_000,
                {**_LEFT, "is_short": True, "is_stopped": True},
            ),
            (
                "patterns-stars-texts",
                "patterns",
                _protected(_starred(16, 31), _STARRED_TEXT, in_document=False),
                100_000,
                {**_GRPC, "is_short": True},
            ),
            ("patterns-stars-http", "patterns", _protected_http, 100_000, {"expected": ANSWERED | {"400"}}),
            (
                "patterns-8-stars",
                "patterns",
                _protected(_starred(1, 8), _STARRED_TEXT, in_document=True),
                _FLOOD_SIZE,
                {**_LEFT, "is_short": True},
            ),
            (
                "patterns-31-stars",
                "patterns",
                _protected(_starred(1, 31), _STARRED_TEXT, in_document=True),
                _FLOOD_SIZE,
                _LEFT,
            ),
            (
                "patterns-star-each",
                "patterns",
                _protected(_starred(8, 1), _STARRED_TEXT, in_document=True),
                _FLOOD_SIZE,
                _LEFT,
            ),
            (
                "patterns-prefix",
                "patterns",
                _protected(["a" * 60 + "*b"], _of("a"), in_document=True),
                _FLOOD_SIZE,
                _LEFT,
            ),
            (
                "patterns-overlapping",
                "patterns",
                _protected([f"{'a' * n}*{'b' * n}c" for n in range(1, 9)], _of("ab"), in_document=True),
                _FLOOD_SIZE,
                _LEFT,
            ),
            (
                "patterns-without-stars",
                "patterns",
                _protected([f"{'a' * 40}{n}" for n in range(16)], _of("a"), in_document=True),
                _FLOOD_SIZE,
                _LEFT,
            ),
            (
                "patterns-braces",
                "patterns",
                _protected(["{*}", "{{*}}", "{%*%}"], _of("{"), in_document=True),
                _FLOOD_SIZE,
                _LEFT,
            ),
            (
                "terms-in-words",
                "terms",
                _with_terms(_terms(lambda n: "a" * (n + 1) + "b"), _of("a")),
                100_000,
                {**_LEFT, "is_short": True},
            ),
            (
                "terms-in-words-text",
                "terms",
                _with_terms(_terms(lambda n: "a" * (n + 1) + "b"), _of("a"), in_document=False),
                10_000,
                {**_GRPC, "num_connections": 2},
            ),
            (
                "terms-of-words",
                "terms",
                _with_terms(_terms(lambda n: f"a {'a ' * n}b", is_part=False), _of("a ")),
                100_000,
                _LEFT,
            ),
            (
                "terms-overlapping",
                "terms",
                _with_terms(_terms(lambda n: "ab" * (n % 90 + 1)), _of("ab")),
                100_000,
                _LEFT,
            ),
            ("terms-found", "terms", _with_terms(_terms(lambda n: chr(0x61 + n % 26)), _of("abc")), 100_000, _LEFT),
            ("terms-upper-case", "terms", _with_terms(_terms(lambda n: "ß" * (n + 1)), _of("SS")), 100_000, _LEFT),
            ("terms-long", "terms", _with_terms(_terms(lambda n: "a" * 190 + str(n)), _of("a")), 100_000, _LEFT),
            (
                "terms-of-marks",
                "terms",
                _with_terms(_terms(lambda n: "\u0301" * (n + 1)), _of("\u0301")),
                100_000,
                _LEFT,
            ),
            (
                "terms-in-markup",
                "terms",
                lambda size, credentials: with_key(
                    document(
                        repeated("<b>a</b>", size),
                        options={**CHEAP, "format": pb.TEXT_FORMAT_HTML, "terms": _REPEATED_TERMS},
                    ),
                    credentials,
                ),
                100_000,
                _LEFT,
            ),
            (
                "glossary-overlapping",
                "glossaries",
                lambda size, credentials: with_key(document(repeated("a", size), options=_GLOSSARY), credentials),
                100_000,
                _LEFT,
            ),
            (
                "glossary-words",
                "glossaries",
                lambda size, credentials: with_key(
                    document(repeated("station ", size), options=_GLOSSARY), credentials
                ),
                100_000,
                _LEFT,
            ),
            (
                "glossary-regular-expressions",
                "glossaries",
                lambda size, credentials: with_key(document(repeated("(a+)+$ ", size), options=_GLOSSARY), credentials),
                100_000,
                _LEFT,
            ),
            ("detect-letters", "detection", _detection(_of("a")), 100_000, _GRPC),
            ("detect-words", "detection", _detection(_of("the ")), 100_000, _GRPC),
            ("detect-scripts", "detection", _detection(_of("aяא你")), 100_000, _GRPC),
            ("detect-marks", "detection", _detection(_of("e\u0301")), 100_000, _GRPC),
            (
                "texts-inline-characters",
                "texts",
                _texts(_of("<b>a</b>"), options={**CHEAP, "format": pb.TEXT_FORMAT_HTML}),
                100_000,
                {**_GRPC, "num_connections": 2},
            ),
            ("texts-words", "texts", _texts(_of("a")), 100_000, {**_GRPC, "num_connections": 2}),
            (
                "texts-prefix",
                "texts",
                _texts(_of("\n"), options={**CHEAP, "max_target_tokens": 60, "target_prefix": "a" * 1000}),
                10_000,
                _GRPC,
            ),
            (
                "texts-suppressed",
                "texts",
                _texts(_of("\n"), options={**CHEAP, "suppressed_tokens": [f"▁{n}" for n in range(64)]}),
                10_000,
                _GRPC,
            ),
            (
                "stream-of-requests",
                "texts",
                lambda size, credentials: replace(
                    with_key(translate(texts=[repeated("{a} ", size)], request_id="a"), credentials),
                    method=Method.TRANSLATE_STREAM,
                ),
                10_000,
                {**_GRPC, "num_connections": 4},
            ),
            (
                "many-texts",
                "texts",
                lambda size, credentials: with_key(translate(texts=["a"] * size), credentials),
                1_000_000,
                _GRPC,
            ),
            (
                "google-grpc",
                "Google over gRPC",
                lambda size, credentials: with_key(
                    of_message(
                        pb.TranslateRequest(texts=["a" * size], **LANGUAGES),
                        "/google.cloud.translation.v3.TranslationService/TranslateText",
                    ),
                    credentials,
                ),
                1_000_000,
                {**_GRPC},
            ),
        )
    ),
]
"""Attacks on what reads texts."""
