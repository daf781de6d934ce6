"""Text that is bad by its structure: bombs, placeholders, shapes on which patterns backtrack, words without an end."""

import random
from collections.abc import Mapping
from typing import Final

from loadtests.bad_inputs.characters import Shape, words

_TAGS: Final = ("b", "div", "table", "span style='a'", 'a href="x"', "script", "![CDATA[", "!--", "p/", "svg:g", "?xml")
_ENTITIES: Final = (
    "&amp;",
    "&amp",
    "&lt;b&gt;",
    "&#0;",
    "&#x110000;",
    "&#xD800;",
    "&#99999999999;",
    "&nbsp;",
    "&a" * 9,
)
_PLACEHOLDERS: Final = (
    "{", "}", "{{", "}}", "{0}", "{{{{name}}}}", "%s", "%1$s", "%(a)s", "%n%n", "${x}", "$(x)", "#{x}", "<0>", "</0>",
    "{n, plural, one {# a} other {# b}}", "{g, select, a {", "[[", "]]", "__VAR__", ":name:", "@:key", "\\", "\\0",
    "'{'",
)  # fmt: skip
_MARKUP: Final = (
    "\\frac{", "\\begin{a}", "\\end{b}", "$$", "$x^{2^{2^", "<xliff:g id='1'>", "<?php", "]]>", "<![CDATA[", "```",
    "~~~", "[a](", "![", "|---|", "<ph x=1/>", "{\\rtf1", "%PDF-1.4", "<!ENTITY a '&a;&a;'>", "';--", "\x1b[31m",
    "${jndi:x}",
)  # fmt: skip
_ABBREVIATIONS: Final = (
    "Dr. ",
    "e.g. ",
    "i.e. ",
    "U.S. ",
    "No. 1. ",
    "a.m. ",
    "St. ",
    "vs. ",
    "A. B. C. ",
    "1.1.1. ",
    "Mr.\n",
)
_LIST_MARKERS: Final = (
    "- ",
    "* ",
    "1. ",
    "1) ",
    "(a) ",
    "\u2022 ",
    "\u2013",
    "999. ",
    "12)",
    "(1",
    "a) b) ",
    "1.\t",
    "-- ",
    "1.\n",
)
_PIECES: Final = (
    "\u2581",
    "\u2581\u2581",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<0x00>",
    "<0xFF>",
    "<0xE4>",
    "\u2581</s>",
    "<mask>",
)
_QUOTES: Final = (
    '"',
    "'",
    "\u201c",
    "\u201d",
    "\u00ab",
    "\u00bb",
    "(",
    ")",
    "[",
    "]",
    "\u2018",
    "\u300c",
    '."',
    '?" ',
    ".) ",
)
_DOTS: Final = (
    ".",
    "..",
    "... ",
    "\u2026",
    "\u2026\u2026 a",
    "!",
    "?",
    "!?!?",
    "\u3002",
    "\u0964",
    ". . ",
    ".a",
    "a.",
    ".\u3000",
)


def html_bomb(generator: random.Random, size: int) -> str:
    """Return tags nested as deep as there is room, closed or not."""
    tag = generator.choice(_TAGS)
    depth = size // (2 * len(tag) + 5) + 1
    return (f"<{tag}>" * depth + "man" + f"</{tag}>" * generator.choice((0, depth, depth // 2)))[:size]


def entity_bomb(generator: random.Random, size: int) -> str:
    """Return entities: valid, of no character, cut off, and those that would multiply if they were expanded."""
    return _repeated(generator, size, _ENTITIES)


def placeholders(generator: random.Random, size: int) -> str:
    """Return placeholders of many systems, nested and broken off."""
    opening = generator.choice(("{", "{{", "${", "%(", "{a, select, b {"))
    if generator.random() < 0.5:
        return (opening * size)[: max(1, size // 2)] + ("}" * size)[: size // 2]
    return _repeated(generator, size, _PLACEHOLDERS)


def markup(generator: random.Random, size: int) -> str:
    """Return pieces of LaTeX, XML, Markdown and other languages."""
    return _repeated(generator, size, _MARKUP)


def dots(generator: random.Random, size: int) -> str:
    """Return ends of sentences without sentences."""
    return _repeated(generator, size, _DOTS)


def quotes(generator: random.Random, size: int) -> str:
    """Return quotation marks and brackets that nobody closes, or nobody opened."""
    return _repeated(generator, size, _QUOTES)


def abbreviations(generator: random.Random, size: int) -> str:
    """Return full stops that may or may not end something."""
    return _repeated(generator, size, _ABBREVIATIONS)


def addresses(generator: random.Random, size: int) -> str:
    """Return one URL or e-mail address as long as there is room."""
    head, part = generator.choice((("http://a.b/", "c.d/e?f=g&"), ("a@", "b.c."), ("", "a.b+c@"), ("https://", "%41.")))
    return (head + part * size)[:size]


def list_markers(generator: random.Random, size: int) -> str:
    """Return lists without items, on one line and on many."""
    return _repeated(generator, size, (*_LIST_MARKERS, "\n", "a\n"))


def spoofed_pieces(generator: random.Random, size: int) -> str:
    """Return what the vocabulary calls its own: special tokens, bytes, the mark of a word."""
    return _repeated(generator, size, _PIECES)


def long_word(generator: random.Random, size: int) -> str:
    """Return one word without a place to cut it."""
    unit = generator.choice(
        ("a", "Aa", "\u00e4", "9", "\u4f60", "\U0001d400", "x\u0301", "a-", "\u0e01", "\U0001f468\u200d")
    )
    return (unit * size)[:size]


def _repeated(generator: random.Random, size: int, parts: tuple[str, ...]) -> str:
    """Return one part over and over, or many parts, with words between them in some texts."""
    chosen = [generator.choice(parts)] if generator.random() < 0.4 else [*parts]
    if generator.random() < 0.4:
        chosen += (words(generator, 12), " ")
    pieces: list[str] = []
    length = 0
    while length < size:
        pieces.append(generator.choice(chosen))
        length += len(pieces[-1])
    return "".join(pieces)[:size]


STRUCTURE_SHAPES: Final[Mapping[str, Shape]] = {
    "html-bombs": html_bomb,
    "entity-bombs": entity_bomb,
    "placeholders": placeholders,
    "markup": markup,
    "dots": dots,
    "quotes": quotes,
    "abbreviations": abbreviations,
    "addresses": addresses,
    "list-markers": list_markers,
    "spoofed-pieces": spoofed_pieces,
    "long-words": long_word,
}
"""By the name of their kind."""
