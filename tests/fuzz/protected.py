"""Texts with placeholders, tags and markup, translated into themselves and into other texts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Translation, WarningKind
from dragoman_service.errors import RequestError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import (
    ProtectionOptions,
    RequestRecord,
    TextFormat,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.text.placeholders.patterns import compile_protection
from dragoman_service.translation.translator import Translator
from loadtests.hostile.mutations import mutated
from tests.fuzz.target import Check, Target, bounded
from tests.property.test_protected_text import garbled
from tests.unit.text.text_fakes import FakeModel, FakeQueue

_FORMATS: Final = (TextFormat.PLAIN, TextFormat.HTML, TextFormat.XML)
_MAX_CHARACTERS: Final = 10_000


def check_protected(metrics: Metrics, content: bytes) -> None:
    """Translate a text that follows the byte of its format; no protected span is lost, and an echo equals the text."""
    text_format = _FORMATS[content[0] % len(_FORMATS)] if content else TextFormat.PLAIN
    text = content[1:].decode("utf-8", "replace")[:_MAX_CHARACTERS]
    options = TranslationOptions(format=text_format)
    try:
        echoed = _translated(FakeModel(), text, options, metrics)
        other = _translated(FakeModel(FakeQueue(garbled)), text, options, metrics)
    except RequestError:
        return
    assert echoed.hypotheses[0].text == text
    assert all(warning.kind is not WarningKind.PLACEHOLDER_LOST for warning in echoed.warnings)
    if text_format is TextFormat.PLAIN:
        spans = compile_protection(ProtectionOptions(), ()).find(text)
        own = [text[one.span.start : one.span.end] for one in spans if not one.messages]
        target = other.hypotheses[0].text
        assert all(target.count(one) >= own.count(one) for one in set(own))


def _translated(model: FakeModel, text: str, options: TranslationOptions, metrics: Metrics) -> Translation:
    request = TranslationRequest(texts=(text,), source_language="en", target_language="de", options=options)
    return asyncio.run(Translator(model, metrics=metrics).translate(request, RequestRecord())).translations[0]


@contextmanager
def _opened() -> Iterator[Check]:
    metrics = Metrics(CollectorRegistry())
    with bounded(lambda content: check_protected(metrics, content)) as judged:
        yield judged


_SEEDS: Final = (
    b"\0Hello {name}, you have %d new messages at https://example.com/x?y=1! <b>Go <i>on</i></b>, `x` /usr/bin/env.",
    b"\0{n, plural, =0 {none} one {# <b>file</b>} other {# files in {box}. {g, select, f {hers} other {x}}}} me@x.org",
    b'\1<p title="A &quot;b&quot;">One <b>two</b> &amp; {x}<br>AT&T <code>a&lt;b</code>\n <img alt="A dog"><pre>a  b',
    b"\1<ul><li>One<li>Two<script>a<b</script><!-- c --><a href='u' translate=no>x</a><title>t</title> &copy;&nbsp;1",
    b'\2<?xml version="1.0"?><doc><p>A <i>b</i> c &#169; {x}</p><q>z<![CDATA[<raw>]]></q><ph id="1"/></doc>',
)
_TOKENS: Final[list[Any]] = [
    *(b"<", b">", b"</", b"/>", b"<b>", b"</b>", b"<!--", b"-->", b"<![CDATA[", b"]]>", b"&", b"&amp;", b"&#", b";"),
    *(b"{", b"}", b"{{", b"}}", b"%", b"%s", b"${", b"`", b"#", b"'", b'"', b"=", b"2013", b"1947", b" ", b"\n", b"\t"),
    *(
        b"http://",
        b"@",
        b"/",
        b"\\",
        b"\xc3\xa9",
        b"\xe2\x98\x83",
        b"\xf0\x9f\x98\x80",
        b"{n, plural, other {",
        b"one {",
    ),
    *(b"<script>", b"<code>", b"<pre>", b"<p>", b"<title>", b'alt="', b"\0", b"\xc2\xa0", b"A. ", b"\xe2\x80\xa8"),
]

PROTECTED: Final = (Target(name="protected-text", inputs=mutated(_SEEDS, _TOKENS), opened=_opened),)
