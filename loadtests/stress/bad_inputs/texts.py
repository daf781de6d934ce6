"""Kinds of input that are bad by their text: its characters, its structure, its size."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dragoman.v1 import translation_pb2 as pb
from hypothesis import strategies as st

from loadtests.stress.bad_inputs.inputs import LEFT, OK, BadInput, Draw, Expected, document_input, possibly, repeated

ROW_SIZE: Final = 256
NUM_ROWS: Final = 0x110000 // ROW_SIZE
"""Rows of 256 code points in all 17 planes; every block of the standard begins and ends at a multiple of 16."""

_COLUMN_SIZE: Final = 16
_SURROGATES: Final = range(0xD800, 0xE000)
_ROWS_PER_INPUT: Final = 8
_SMALL_CHARACTERS: Final = 300
_LARGE_SHARE: Final = 0.03
_RICH_SHARE: Final = 0.1
_RICH_CHARACTERS: Final = 40
"""An answer with attention has room for so many tokens only, of which a character may make dozens."""

_ANSWERED_CHARACTERS: Final = 2000
"""Texts up to this must be translated; longer ones may come to more tokens than a request may have."""

_LEAVES_AFTER: Final = 2
_MAX_PIECES: Final = 24

_WORDS: Final = (" The", " man", " reads", " a", " letter", " 2,000", " Dr", " isn't", " Paris", " x", " garden", " of")
_BIDI: Final = tuple("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ZERO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\u3164\ufeff\uffa0"
)
_LINE_BREAKS: Final = ("\n", "\r", "\r\n", "\n\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_WHITE_SPACE: Final = tuple(
    " \t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
_MARKS: Final = "".join(
    map(chr, (*range(0x300, 0x34F), *range(0x350, 0x370), *range(0x483, 0x48A), *range(0x20D0, 0x20F1)))
)
_EXPANDING: Final = (
    *"\ufdfb\u3300\u33ff\u1e9b\u0390\u1f82\ufb2c\ufb03\u2a74\U0001d160\u00bd\u01c4\ufb01\u2126\u212b\uac01",
    *("\ufdfa" * 8), "e\u0301", "\u1112\u1161\u11ab",
)  # fmt: skip
_SCRIPT_STARTS: Final = (0x41, 0x391, 0x410, 0x531, 0x5D0, 0x627, 0x905, 0xE01, 0x10D0, 0x1100, 0x3041, 0x4E00, 0xAC00)
_LOOKALIKES: Final = str.maketrans(
    "aeopcxyiTBMHK", "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0422\u0412\u041c\u041d\u041a"
)
_VARIATIONS: Final = "\U0001f3f4\u2603" + "".join(
    map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E), *range(0xE0001, 0xE0080)))
)
_EMOJI: Final = (
    *map(chr, range(0x1F3FB, 0x1F400)), *map(chr, range(0x1F1E6, 0x1F200)), "\U0001f469\u200d", "1\ufe0f\u20e3",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\u2764\ufe0f", "\U0001f600",
)  # fmt: skip
_NONCHARACTERS: Final = "\ufffc\ufffd" + "".join(
    map(chr, (*range(0xFDD0, 0xFDF0), *(plane * 0x10000 + end for plane in range(17) for end in (0xFFFE, 0xFFFF))))
)
_NO_LETTERS: Final = (
    *_WHITE_SPACE, *_LINE_BREAKS, *_BIDI, "\0", "\u200b", "...", "!?", "\u2026", "\U0001f600", "---", "_", "\u0301",
)  # fmt: skip
_TAGS: Final = ("b", "div", "table", "span style='a'", 'a href="x"', "script", "![CDATA[", "!--", "p/", "svg:g", "?xml")
_ENTITIES: Final = (
    "&amp;", "&amp", "&lt;b&gt;", "&#0;", "&#x110000;", "&#xD800;", "&#99999999999;", "&nbsp;", "&a" * 9,
)  # fmt: skip
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
    "Dr. ", "e.g. ", "i.e. ", "U.S. ", "No. 1. ", "a.m. ", "St. ", "vs. ", "A. B. C. ", "1.1.1. ", "Mr.\n",
)  # fmt: skip
_LIST_MARKERS: Final = (
    "- ", "* ", "1. ", "1) ", "(a) ", "\u2022 ", "\u2013", "999. ", "12)", "(1", "a) b) ", "1.\t", "-- ", "1.\n", "\n",
    "a\n",
)  # fmt: skip
_VOCABULARY_PIECES: Final = (
    "\u2581", "\u2581\u2581", "<s>", "</s>", "<unk>", "<pad>", "<0x00>", "<0xFF>", "<0xE4>", "\u2581</s>", "<mask>",
)  # fmt: skip
_QUOTES: Final = (*"\"'\u201c\u201d\u00ab\u00bb()[]\u2018\u300c", '."', '?" ', ".) ")
_DOTS: Final = (
    ".", "..", "... ", "\u2026", "\u2026\u2026 a", "!", "?", "!?!?", "\u3002", "\u0964", ". . ", ".a", "a.", ".\u3000",
)  # fmt: skip
_ADDRESSES: Final = (("http://a.b/", "c.d/e?f=g&"), ("a@", "b.c."), ("", "a.b+c@"), ("https://", "%41."))
_UNITS_OF_WORDS: Final = (
    "a", "Aa", "\u00e4", "9", "\u4f60", "\U0001d400", "x\u0301", "a-", "\u0e01", "\U0001f468\u200d",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A way in which text is bad, at any size."""

    summary: str
    make: Callable[[Draw, int], str]
    """Returns about so many characters, or more, which are cut off."""

    def text(self, draw: Draw, size: int) -> str:
        """Draw a text of 1 to `size` characters."""
        return self.make(draw, size)[:size]


def _pieces(summary: str, pieces: st.SearchStrategy[str] | Sequence[str], *, has_words: bool = True) -> Shape:
    """Return the shape of a few drawn pieces, or one, in random order, with words between them in some texts."""
    strategy = st.sampled_from(pieces) if isinstance(pieces, Sequence) else pieces

    def make(draw: Draw, size: int) -> str:
        drawn = draw(st.lists(strategy, min_size=1, max_size=draw.choice((1, _MAX_PIECES))))
        share = draw.choice((0.0, 0.5, 0.9)) if has_words else 0.0
        generator = draw.generator()
        parts = (drawn, _WORDS)
        return "".join(generator.choice(parts[generator.random() < share]) for _ in range(size))

    return Shape(summary=summary, make=make)


def _combining(draw: Draw, size: int) -> str:
    height, base = draw.choice((1, 8, 64, size)), draw.choice("aeo \u0905\u0627")
    marks, generator = draw(st.text(_MARKS, min_size=1, max_size=16)), draw.generator()
    return "".join(base + "".join(generator.choices(marks, k=height)) for _ in range(size // (height + 1) + 1))


def _html_bomb(draw: Draw, size: int) -> str:
    tag = draw.choice(_TAGS)
    depth = size // (2 * len(tag) + 5) + 1
    return f"<{tag}>" * depth + "man" + f"</{tag}>" * draw.choice((0, depth, depth // 2))


def _placeholders(draw: Draw, size: int) -> str:
    if draw.chance(0.5):
        opening = draw.choice(("{", "{{", "${", "%(", "{a, select, b {"))
        return (opening * size)[: max(1, size // 2)] + ("}" * size)[: size // 2]
    return _pieces("", _PLACEHOLDERS).make(draw, size)


def _address(draw: Draw, size: int) -> str:
    head, part = draw.choice(_ADDRESSES)
    return head + part * size


_LETTERS: Final = st.sampled_from(_SCRIPT_STARTS).flatmap(lambda first: st.integers(first, first + 19)).map(chr)
_FALSE_LATIN: Final = st.sampled_from(_WORDS).map(lambda word: word.translate(_LOOKALIKES))
_RUNS: Final = st.builds(lambda char, count: char * count, st.sampled_from(_WHITE_SPACE), st.sampled_from((1, 2, 7)))

SHAPES: Final[Mapping[str, Shape]] = {
    "anything": _pieces("code points of all planes, assigned or not", st.characters(exclude_categories=["Cs"])),
    "noncharacters": _pieces("what Unicode promises never to assign, ends of planes", _NONCHARACTERS),
    "private-use": _pieces("characters that mean what two parties agreed", st.characters(categories=["Co"])),
    "controls": _pieces("words with control characters between and inside of them", st.characters(categories=["Cc"])),
    "nul": _pieces("words full of U+0000", "\0"),
    "bidi": _pieces(
        "overrides, embeddings and isolates, opened and not closed, closed and not opened",
        (*_BIDI, "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627"),
    ),
    "combining": Shape(summary="letters under towers of marks, at times one under all of them", make=_combining),
    "zero-width": _pieces("words with joiners, fillers and spaces of no width inside of them", _ZERO_WIDTH),
    "variations": _pieces("variation selectors and tag characters, with a base and without", _VARIATIONS),
    "emoji": _pieces("emoji, joined, coloured, flagged, and sequences that break off", _EMOJI),
    "expanding": _pieces("what grows when normalized: U+FDFA becomes 18 characters", _EXPANDING),
    "denormalized": _pieces(
        "letters taken apart, their marks in no canonical order",
        unicodedata.normalize("NFD", "ếǘṩḯǟȭ각힣ﬃ") + "\u0323\u0307\u0327 ",
        has_words=False,
    ),
    "mixed-scripts": _pieces("letters of many scripts, words that only look Latin", _LETTERS | _FALSE_LATIN),
    "line-breaks": _pieces("lines ended in every way there is, empty ones among them", _LINE_BREAKS),
    "white-space": _pieces("much white space of all widths", _RUNS | st.sampled_from(_LINE_BREAKS[:3])),
    "untranslatable": _pieces(
        "text without a letter or digit: it must come back as it is", _NO_LETTERS, has_words=False
    ),
    "html-bombs": Shape(summary="tags nested as deep as there is room, closed or not", make=_html_bomb),
    "entity-bombs": _pieces("entities: valid, of no character, cut off, and ones that would multiply", _ENTITIES),
    "placeholders": Shape(summary="placeholders of many systems, nested and broken off", make=_placeholders),
    "markup": _pieces("pieces of LaTeX, XML, Markdown and other languages", _MARKUP),
    "dots": _pieces("ends of sentences without sentences", _DOTS),
    "quotes": _pieces("quotation marks and brackets that are never closed, or never opened", _QUOTES),
    "abbreviations": _pieces("full stops that may or may not end something", _ABBREVIATIONS),
    "addresses": Shape(summary="one URL or e-mail address as long as there is room", make=_address),
    "list-markers": _pieces("lists without items, on one line and on many", _LIST_MARKERS),
    "spoofed-pieces": _pieces("special tokens, byte tokens and word marks of the vocabulary", _VOCABULARY_PIECES),
    "long-words": Shape(
        summary="one word without a place to cut it", make=lambda draw, size: draw.choice(_UNITS_OF_WORDS) * size
    ),
}


def row(draw: Draw, index: int) -> str:
    """Draw two code points of each column of 16 of a row, assigned or not; surrogates are left out."""
    generator = draw.generator()
    columns = range(index * ROW_SIZE, (index + 1) * ROW_SIZE, _COLUMN_SIZE)
    points = [point for first in columns for point in generator.sample(range(first, first + _COLUMN_SIZE), 2)]
    return "".join(chr(point) for point in points if point not in _SURROGATES)


def unicode_rows(draw: Draw) -> BadInput:
    """Characters of rows of the code space; as many inputs as there are rows / 8 have all of it."""
    rows = [row(draw, (draw.index * _ROWS_PER_INPUT + offset) % NUM_ROWS) for offset in range(_ROWS_PER_INPUT)]
    texts = [text if draw.chance(0.5) else f"A man {text} reads." for text in rows if text]  # surrogates have none
    return draw.request(*texts or ["A man."], expected=OK)


def shaped(shape: Shape) -> Callable[[Draw], BadInput]:
    """Return the kind of texts of this shape, of all lengths, over every method."""

    def content(draw: Draw) -> BadInput:
        is_large = draw.chance(_LARGE_SHARE)
        size = draw.integer(1000, draw.limits.max_text_characters) if is_large else _small_size(draw)
        options = None if is_large or not draw.chance(_RICH_SHARE) else _rich_options(draw)
        size = min(size, _RICH_CHARACTERS) if options else size
        if draw.chance(0.2):
            text = shape.text(draw, size)
            if options:
                options.ClearField("split_sentences")
            return document_input(draw.limits, text, expected=_expected(len(text), "text"), options=options)
        num_texts = 1 if is_large or options else draw.choice((1, 1, 2, 5))
        texts = [shape.text(draw, max(1, size // num_texts)) for _ in range(num_texts)]
        expected = _expected(sum(map(len, texts)), "texts")
        return draw.request(*texts, expected=expected, options=options)

    content.__doc__ = shape.summary
    return content


def megabytes(draw: Draw) -> BadInput:
    """A document of the greatest size, of any shape; its caller cancels after a few sentences."""
    names = sorted(SHAPES)
    size = draw.limits.max_document_characters // draw.choice((1, 2))
    text = repeated(SHAPES[names[draw.index % len(names)]].text(draw, 4096), size)
    return document_input(draw.limits, text, expected=possibly(LEFT), leaves_after=_LEAVES_AFTER)


def html_format(draw: Draw) -> BadInput:
    """HTML that is said to be HTML, which is rejected where it is not implemented."""
    text = SHAPES[draw.choice(("html-bombs", "entity-bombs"))].text(draw, draw.choice((20, 400, 8000)))
    options = pb.DecodingOptions(format=pb.TEXT_FORMAT_HTML, beam_size=1, max_target_tokens=3)
    expected = possibly("UNIMPLEMENTED", field="options.format")
    if draw.chance(0.3):
        return document_input(draw.limits, text, expected=expected, options=options)
    return draw.request(text, expected=expected, options=options)


def _expected(num_characters: int, field: str) -> Expected:
    return OK if num_characters <= _ANSWERED_CHARACTERS else possibly("INVALID_ARGUMENT", field=field)


def _small_size(draw: Draw) -> int:
    """Draw a size of which small ones are likelier."""
    return int(_SMALL_CHARACTERS ** (draw.integer(0, 1000) / 1000))


def _rich_options(draw: Draw) -> pb.DecodingOptions:
    """Draw options under which an answer holds everything that it can."""
    return pb.DecodingOptions(
        beam_size=2,
        num_hypotheses=2,
        max_target_tokens=draw.choice((4, 16)),
        split_sentences=draw.chance(0.7),
        return_scores=True,
        return_tokens=True,
        return_alignment=True,
        return_attention=draw.choice((pb.ATTENTION_DETAIL_UNSPECIFIED, pb.ATTENTION_DETAIL_AVERAGED)),
    )
