"""Shapes in which text is bad: its characters, its structure, its length."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Final

from hypothesis import strategies as st

from loadtests.stress.bad_inputs.inputs import Draw

NUM_ROWS: Final = 0x1100
"""Rows of 256 code points in all 17 planes; every block of the standard begins and ends at a multiple of 16."""

_WORDS: Final = (" The", " man", " reads", " a", " letter", " 2,000", " Dr", " isn't", " Paris", " x", " garden", " of")
_BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_SPACES: Final = " \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_LINE_BREAKS: Final = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_PLANE_ENDS: Final = "".join(chr(plane << 16 | end) for plane in range(17) for end in (0xFFFE, 0xFFFF))
_TAGS: Final = ("b", "div", "table", "span style='a'", 'a href="x"', "script", "![CDATA[", "!--", "p/", "svg:g", "?xml")

Shape = Callable[[Draw, int], str]
"""Draws about so many characters, or more, which are cut off; its docstring says in which way they are bad."""


def shaped(draw: Draw, size: int, *names: str) -> str:
    """Draw a text of 1 to `size` characters of one of these shapes, or of any."""
    return SHAPES[draw.choice(names or sorted(SHAPES))](draw, size)[:size]


def row(draw: Draw, index: int) -> str:
    """Draw two code points of each column of 16 of a row, assigned or not; surrogates are left out."""
    columns = range(256 * index, 256 * (index + 1), 16)
    points = [point for first in columns for point in draw.sample(range(first, first + 16), 2)]
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def _pieces(summary: str, pattern: str, *, has_words: bool = True) -> Shape:
    """Return the shape of a few pieces that match, or one, in random order, with words between them in some texts."""
    strategy = st.from_regex(pattern, fullmatch=True)

    def shape(draw: Draw, size: int) -> str:
        pieces = draw(st.lists(strategy, min_size=1, max_size=draw.choice((1, 24))))
        share = draw.choice((0.0, 0.5, 0.9)) if has_words else 0.0
        return "".join(draw.choice(_WORDS if draw.random() < share else pieces) for _ in range(size))

    shape.__doc__ = summary
    return shape


def _nested(summary: str, *cases: tuple[str, str, str, str]) -> Shape:
    """Return the shape of a head, an opening as often as there is room, a middle, and as many closings or fewer."""

    def shape(draw: Draw, size: int) -> str:
        head, opening, middle, closing = draw.choice(cases)
        depth = size // len(opening + closing) + 1
        return head + opening * depth + middle + closing * draw.choice((0, depth, depth // 2))

    shape.__doc__ = summary
    return shape


def _either(first: Shape, second: Shape) -> Shape:
    """Return the shape of texts of the one or the other shape."""

    def shape(draw: Draw, size: int) -> str:
        return draw.choice((first, second))(draw, size)

    shape.__doc__ = first.__doc__
    return shape


def _combining(draw: Draw, size: int) -> str:
    """Letters under towers of marks, at times one under all of them."""
    height, base = draw.choice((1, 8, 64, size)), draw.choice("aeo \u0905\u0627")
    marks = draw(st.text(st.characters(categories=["Mn", "Me"]), min_size=1, max_size=16))
    return "".join(base + "".join(draw.choices(marks, k=height)) for _ in range(size // (height + 1) + 1))


SHAPES: Final[Mapping[str, Shape]] = {
    "anything": _pieces("code points of all planes, assigned or not", "(?s)."),
    "noncharacters": _pieces(
        "what Unicode promises never to assign, ends of planes", f"[\ufdd0-\ufdef\ufffc\ufffd{_PLANE_ENDS}]"
    ),
    "private-use": _pieces("characters that mean what two parties agreed", "[\ue000-\uf8ff\U000f0000-\U000ffffd]"),
    "controls": _pieces("words with control characters between and inside of them", "[\0-\x1f\x7f-\x9f]"),
    "nul": _pieces("words full of U+0000", "\0"),
    "bidi": _pieces(
        "overrides, embeddings and isolates, opened and not closed, closed and not opened",
        f"[{_BIDI}]|\u05e9\u05dc\u05d5\u05dd|\u0645\u0631\u062d\u0628\u0627",
    ),
    "combining": _combining,
    "zero-width": _pieces(
        "words with joiners, fillers and spaces of no width inside of them",
        "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2064\u3164\ufeff\uffa0]",
    ),
    "variations": _pieces(
        "variation selectors and tag characters, with a base and without",
        "[\u2603\U0001f3f4\u180b-\u180d\ufe00-\ufe0f\U000e0001-\U000e007f\U000e0100-\U000e01ef]",
    ),
    "emoji": _pieces(
        "emoji, joined, coloured, flagged, and sequences that break off",
        "[\U0001f3fb-\U0001f3ff]|[\U0001f1e6-\U0001f1ff]|[1\u2764]\ufe0f\u20e3?|([\U0001f466-\U0001f469]\u200d?){1,4}",
    ),
    "expanding": _pieces(
        "what grows when normalized: U+FDFA becomes 18 characters",
        "\ufdfa|[\ufdfb\u3300\u33ff\u1e9b\u0390\u1f82\ufb2c\ufb03\u2a74\U0001d160\u00bd\u01c4\ufb01\u2126\u212b\uac01]"
        "|e\u0301|\u1112\u1161\u11ab",
    ),
    "denormalized": _pieces(
        "letters taken apart, their marks in no canonical order",
        f"[{unicodedata.normalize('NFD', 'ếǘṩḯǟȭ각힣ﬃ')}\u0323\u0307\u0327 ]",
        has_words=False,
    ),
    "mixed-scripts": _pieces(
        "letters of many scripts, words that only look Latin",
        "[A-T\u0391-\u03a1\u0410-\u0423\u0531-\u0544\u05d0-\u05e3\u0627-\u063a\u0905-\u0918\u0e01-\u0e14\u10d0-\u10e3"
        "\u1100-\u1113\u3041-\u3054\u4e00-\u4e13\uac00-\uac13]"
        "| [rst\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456]{2,7}",
    ),
    "line-breaks": _pieces("lines ended in every way there is, empty ones among them", f"[{_LINE_BREAKS}]|\r\n|\n\r"),
    "white-space": _pieces("much white space of all widths", f"[{_SPACES}]{{1,7}}|\r?\n|\r"),
    "untranslatable": _pieces(
        "text without a letter or digit: it must come back as it is",
        f"[{_SPACES}{_LINE_BREAKS}{_BIDI}\0\u200b\u2026\U0001f600_\u0301]|\\.{{3}}|!\\?|---",
        has_words=False,
    ),
    "html-bombs": _nested(
        "tags nested as deep as there is room, closed or not", *(("", f"<{tag}>", "man", f"</{tag}>") for tag in _TAGS)
    ),
    "entity-bombs": _pieces(
        "entities: valid, of no character, cut off, and ones that would multiply",
        "&(amp|lt|gt|nbsp|#0|#x110000|#xD800|#9{11});?|(&a){9}",
    ),
    "placeholders": _either(
        _nested(
            "placeholders of many systems, nested and broken off",
            *(("", opening, "", "}") for opening in ("{", "{{", "${", "%(", "{a, select, b {")),
        ),
        _pieces(
            "pieces",
            r"[{}]{1,2}|\{0\}|\{{4}name\}{4}|%(1\$|\(a\))?s|(%n){2}|\$\{x\}|\$\(x\)|#\{x\}|</?0>|\[\[|\]\]|__VAR__|@?:key"
            r"|\{n, plural, one \{# a\} other \{# b\}\}|\{g, select, a \{|\\0?|'\{'",
        ),
    ),
    "markup": _pieces(
        "pieces of LaTeX, XML, Markdown and other languages",
        r"\\(frac\{|begin\{a\}|end\{b\})|\$\$|\$x\^(\{2\^){2}|<xliff:g id='1'>|<\?php|\]\]>|<!\[CDATA\[|`{3}|~{3}|!?\["
        r"|\[a\]\(|\|---\||<ph x=1/>|\{\\rtf1|%PDF-1\.4|<!ENTITY a '&a;&a;'>|';--|\x1b\[31m|\$\{jndi:x\}",
    ),
    "dots": _pieces("ends of sentences without sentences", "[.!?\u2026\u3002\u0964]{1,4}[ \u3000]?a?|a\\."),
    "quotes": _pieces(
        "quotation marks and brackets that are never closed, or never opened",
        r"[\"'\u201c\u201d\u00ab\u00bb()\[\]\u2018\u300c]|\.\"|\?\" |\.\) ",
    ),
    "abbreviations": _pieces(
        "full stops that may or may not end something",
        r"(Dr|e\.g|i\.e|U\.S|No\. 1|a\.m|St|vs|A\. B\. C|1\.1\.1|Mr)\.[ \n]",
    ),
    "addresses": _nested(
        "one URL or e-mail address as long as there is room",
        ("http://a.b/", "c/d?e=f&", "", ""), ("https://", "%41.", "", ""), ("a@", "b.c.", "", ""), ("", "a.b@", "", ""),
    ),
    "list-markers": _pieces(
        "lists without items, on one line and on many",
        r"(-{1,2}|\*|1\.|1\)|\(a\)|\u2022|999\.|12\)|a\) b\)) ?|\u2013|\(1|1\.[\t\n]|a?\n",
    ),
    "spoofed-pieces": _pieces(
        "special tokens, byte tokens and word marks of the vocabulary",
        "\u2581{1,2}|\u2581?</?s>|<(unk|pad|mask)>|<0x(00|FF|E4)>",
    ),
    "long-words": _nested(
        "one word without a place to cut it",
        *(("", part, "", "") for part in ("Aa", "a-", "x\u0301", "\U0001f468\u200d", *"a\xe49\u4f60\U0001d400\u0e01")),
    ),
}  # fmt: skip
