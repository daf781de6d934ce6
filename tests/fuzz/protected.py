"""Texts with placeholders, tags and markup, translated into themselves and into other texts."""

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Translation, WarningKind
from dragoman_service.errors import RequestError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import (
    ProtectionOptions,
    RequestContext,
    TextFormat,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.text.placeholders.patterns import compile_protection
from dragoman_service.text.placeholders.text_units import plain_unit
from loadtests.hostile.mutations import mutated
from tests.fuzz.target import in_process
from tests.unit.text.text_fakes import FakeModel, FakeQueue, garble, make_translator

_FORMATS: Final = (TextFormat.PLAIN, TextFormat.HTML, TextFormat.XML)
_MAX_CHARACTERS: Final = 10_000
_METRICS: Final = Metrics(CollectorRegistry())


def check_protected(content: bytes) -> None:
    """Translate a text that follows the byte of its format; no protected span is lost, and an echo equals the text."""
    text_format = _FORMATS[content[0] % len(_FORMATS)] if content else TextFormat.PLAIN
    text = content[1:].decode("utf-8", "replace")[:_MAX_CHARACTERS]
    try:
        echoed = _translated(FakeModel(), text, text_format, "en")  # numbers and abbreviations stay as they are
        other = _translated(FakeModel(FakeQueue(garble)), text, text_format, "de")
    except RequestError:
        return
    assert echoed.hypotheses[0].text == text
    assert all(warning.kind is not WarningKind.PLACEHOLDER_LOST for warning in echoed.warnings)
    if text_format is TextFormat.PLAIN:
        unit = plain_unit(text, has_escapes=True, has_accelerators=True)
        spans = compile_protection(ProtectionOptions(), ()).find(unit.text)
        sources = [unit.source_of(each.span) for each in spans if not each.messages]
        own = [text[source.start : source.end] for source in sources]
        target = other.hypotheses[0].text
        assert all(target.count(part) >= own.count(part) for part in set(own))


def _translated(model: FakeModel, text: str, text_format: TextFormat, language: str) -> Translation:
    options = TranslationOptions(format=text_format, repetition_guard=False)  # copies are accepted
    request = TranslationRequest(texts=(text,), source_language="en", target_language=language, options=options)
    return asyncio.run(make_translator(model, metrics=_METRICS).translate(request, RequestContext())).translations[0]


_SEEDS: Final = (
    b"\0Hello {name}, you have %d new messages at https://example.com/x?y=1! <b>Go <i>on</i></b>, `x` /usr/bin/env.",
    b"\0{n, plural, =0 {none} one {# <b>file</b>} other {# files in {box}. {g, select, f {hers} other {x}}}} me@x.org",
    b'\0It\\\'s  \\"{name}\\"<br>one {n} file|{n} files<br/><p>x</p>\\nE\\u00e9  <b>bold</b>',
    b"\0Save &As...",
    "\0On 3.5.2024 at 10:30 order ABC-123 cost $1,234.50 (12 %, 3-5 kg) -> see v1.2.3, e.g. GitHub, ≥ 9 MB/s.".encode(),
    '\0Wait! "Save it"? Yes... ☃☃ [x] **Bold** `x` me@x.org Dr. Smith - O\'Neil'.encode(),
    b'\1<p title="A &quot;b&quot;">One <b>two</b> &amp; {x}<br>AT&T <code>a&lt;b</code>\n <img alt="A dog"><pre>a  b',
    b"\1<ul><li>One<li>Two<script>a<b</script><!-- c --><a href='u' translate=no>x</a><title>t</title> &copy;&nbsp;1",
    b'\2<?xml version="1.0"?><doc><p>A <i>b</i> c &#169; {x}</p><q>z<![CDATA[<raw>]]></q><ph id="1"/></doc>',
)
_TOKENS: Final = (
    """
< > </ /> <b> </b> <!-- --> <![CDATA[ ]]> & &amp; &# ; { } {{ }} % %s ${ ` # ' " = 2013 1947 http:// @ / \\ é ☃ 😀
1.5 1,000 -3 12% $9 A-1 v2.0 e.g. Dr. GitHub -> ≥ ** [x] "" ... ? !
<br> | & && _ &a \\' \\" \\u00e9 \\ud83d \\\\ <x></x> <keep/> <a></a>
<script> <code> <pre> <p> <title> alt="
""".encode().split()
    + [
        token.encode()
        for token in (" ", "  ", "\n", "\t", "\0", "\xa0", "\u2028", "A. ", "one {", "{n, plural, other {")
    ]
)

PROTECTED: Final = in_process("protected-text", mutated(_SEEDS, _TOKENS), check_protected)
