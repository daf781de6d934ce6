"""Varies what parallel text has too little of: numbers, names, symbols, ends of sentences, quotation marks, words.

pair            "Tom" paid 1,200 euros.      „Tom“ zahlte 1.200 Euro.
numbers         "Tom" paid 8,143 euros.      „Tom“ zahlte 8.143 Euro.
names           "Zoë Nguyễn" paid 1,200 …    „Zoë Nguyễn“ zahlte 1.200 …
symbols         [12:30] "Tom" paid …         [12:30] „Tom“ zahlte …
endings         … 1,200 euros?!              … 1.200 Euro?!
quotation marks “Tom” paid 1,200 euros.      „Tom“ zahlte 1.200 Euro.
single words    euros                        Euro
"""

import re
from random import Random

from dragoman_export.data.aligned_spans import (
    Aligned,
    by_spelling,
    common_end,
    copied_words,
    replaced,
    translated_words,
)
from dragoman_export.data.lexicon import Translations

_NUMBER = re.compile(r"(?<![\w.,:/'⟦⟪-])\d+(?:[.,]\d+)*(?![\w:/⟧⟫-]|[.,]\d)")
_DIGIT = re.compile(r"\d")
_MIN_NUMBER = 2  # smaller ones decide about singular and plural
_SAME_LENGTH_SHARE, _SHORT_SHARE = 0.4, 0.3  # of the numbers without separators; the others are long identifiers
_SHORT_DIGITS, _LONG_DIGITS = (2, 4), (5, 14)

_FIRST_NAMES = (
    *(
        "Agnieszka",
        "Aïcha",
        "Ana María",
        "Bjørn",
        "Chloé",
        "Dvořák",
        "Eoghan",
        "Fatma",
        "François",
        "Giuseppe",
        "Håkon",
    ),
    *(
        "Ingrid",
        "İbrahim",
        "Jürgen",
        "Karel",
        "Léa",
        "Małgorzata",
        "Mei",
        "Niamh",
        "Ólafur",
        "Priya",
        "Renée",
        "Siobhán",
    ),
    *(
        "Søren",
        "Tomáš",
        "Umut",
        "Václav",
        "Wojciech",
        "Xavier",
        "Yuki",
        "Zoë",
        "Şule",
        "Ștefan",
        "Žaneta",
        "John",
        "Mary",
    ),
)
_LAST_NAMES = (
    *(
        "Ångström",
        "Andrić",
        "Beauséjour",
        "Çelik",
        "D'Angelo",
        "Dvořák",
        "Erdoğan",
        "Fernández",
        "García-Lorca",
        "Groß",
    ),
    *("Guðmundsson", "Haddad", "Ionescu", "Jović", "Kowalczyk", "Łukasiewicz", "Lefèvre", "Müller", "Møller", "Nguyễn"),
    *("Novák", "O'Brien", "Öztürk", "Pérez", "Quiñones", "Rossi", "Sánchez", "Škoda", "Szabó", "Tanaka", "Țiriac"),
    *(
        "Ünal",
        "van der Berg",
        "von Stein",
        "Weiß",
        "Yılmaz",
        "Zając",
        "Życki",
        "Smith",
        "Miller",
        "Hughes",
        "MacDonald",
    ),
)
_COMPANY_ENDS = ("GmbH", "AG", "& Co. KG", "Inc.", "Ltd.", "S.A.", "& Söhne", "Sp. z o.o.")
_PLACES = (
    *("Tromsø", "Łódź", "Saint-Étienne", "São Paulo", "Győr", "Malmö", "Zürich", "Plzeň", "Reykjavík", "Gdańsk", "Niš"),
    *("Besançon", "Chișinău", "Đà Nẵng", "Coruña", "Århus", "Izmir", "Kraków", "Bielefeld", "Newcastle", "Tokyo"),
)
_NAME_LETTERS = re.compile(r"[^\W\d_]+(?:[ '’-][^\W\d_]+)*")

_EMOJI = ("🙂", "😀", "🎉", "❤️", "👍", "🚀", "⚠️", "✅", "☕", "🇩🇪", "👩‍💻")
_MARKERS = (
    "•",
    "-",
    "–",
    "*",
    "→",
    "✓",
    "✗",
    "★",
    "»",
    "#",
    "1.",
    "2)",
    "a)",
    "(3)",
    "§ 5",
    "[x]",
    "[12:30]",
    "00:01:15",
)
_ENDS = ("→", "✓", "✗", "★", "*", "**", "[1]", "(2)", "|", "^", "©", "®", "↑", "…")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"), ("*", "*"), ("**", "**"), ("_", "_"), ("~", "~"), ("|", "|"))

_STATEMENT_ENDS = ("...", "…", "!", "!!", "!!!", ":", ";", " :)", " ;)", " 🙂", " –")
_QUESTION_ENDS = ("??", "???", "?!", "...?", " …?", "? :)", "? 🙂")

_STRAIGHT_QUOTED = re.compile(r'(?<![\w"])"([^"]+)"(?![\w"])')
_TYPOGRAPHIC_QUOTED = re.compile(r"[“„]([^“”„\"]+)[”“]")
_STRAIGHT_APOSTROPHE = re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])")


def with_numbers(source: str, target: str, random: Random) -> tuple[str, str]:
    """Return the pair with other digits in the numbers that occur once on each side; separators stay as they are."""
    spans = [[match.span() for match in _NUMBER.finditer(text)] for text in (source, target)]
    sides = [
        by_spelling(text, found, lambda number: "".join(_DIGIT.findall(number)))
        for text, found in zip((source, target), spans, strict=True)
    ]
    chosen: list[Aligned] = []
    numbers: list[tuple[str, str]] = []
    for digits, places in sides[0].items():
        others = sides[1].get(digits, ())
        if len(places) == len(others) == 1 and int(digits) >= _MIN_NUMBER:
            span = Aligned(places[0], others[0])
            chosen.append(span)
            numbers.append(_other_number(source[slice(*span.source)], target[slice(*span.target)], random))
    return (
        replaced(source, [span.source for span in chosen], [number for number, _ in numbers]),
        replaced(target, [span.target for span in chosen], [number for _, number in numbers]),
    )


def with_names(source: str, target: str, random: Random) -> tuple[str, str]:
    """Return the pair with names of many languages in place of copied words without digits."""
    chosen = [span for span in copied_words(source, target) if _NAME_LETTERS.fullmatch(source[slice(*span.source)])]
    names = [_name(random) for _ in chosen]
    return (
        replaced(source, [span.source for span in chosen], names),
        replaced(target, [span.target for span in chosen], names),
    )


def with_symbols(source: str, target: str, random: Random) -> tuple[str, str]:
    """Return the pair with a symbol, emoji or list marker before or after both sides, or a pair of brackets around."""
    kind = random.randrange(4)
    if kind == 0:
        symbol = random.choice((*_EMOJI, *_MARKERS))
        return f"{symbol} {source}", f"{symbol} {target}"
    if kind == 1:
        symbol = random.choice((*_EMOJI, *_ENDS))
        return f"{source} {symbol}", f"{target} {symbol}"
    if kind == 2:
        opening, closing = random.choice(_PAIRS)
        return opening + source + closing, opening + target + closing
    copied = copied_words(source, target)
    if not copied:
        return source, target
    symbol = random.choice((*_EMOJI, *_ENDS))
    ends = [span[1] for span in random.choice(copied)]
    return source[: ends[0]] + f" {symbol}" + source[ends[0] :], target[: ends[1]] + f" {symbol}" + target[ends[1] :]


def with_ending(source: str, target: str, random: Random) -> tuple[str, str]:
    """Return the pair with another end, such as `?!` or an ellipsis, if both sides end with the same mark."""
    mark = common_end(source, target)
    if not mark:
        return source, target
    end = random.choice(_QUESTION_ENDS if mark == "?" else _STATEMENT_ENDS)
    return source[:-1] + end, target[:-1] + end


def with_other_quotation_marks(source: str) -> str:
    """Return a source with typographic marks and apostrophes in place of straight ones, or the reverse."""
    if '"' in source or "'" in source:
        return _STRAIGHT_APOSTROPHE.sub("’", _STRAIGHT_QUOTED.sub(r"“\1”", source))
    return _TYPOGRAPHIC_QUOTED.sub(r'"\1"', source).replace("’", "'")


def single_word(source: str, target: str, random: Random, translations: Translations) -> tuple[str, str]:
    """Return a word of the pair and its translation; the pair if the lexicon has none."""
    words = translated_words(source, target, translations)
    if not words:
        return source, target
    span = random.choice(words)
    return source[slice(*span.source)], target[slice(*span.target)]


def _other_number(source: str, target: str, random: Random) -> tuple[str, str]:
    num_digits = len(_DIGIT.findall(source))
    if source.isdigit() and target.isdigit():
        kind = random.random()
        if kind >= _SAME_LENGTH_SHARE:
            num_digits = random.randint(*(_SHORT_DIGITS if kind < _SAME_LENGTH_SHARE + _SHORT_SHARE else _LONG_DIGITS))
        number = _digits(num_digits, random)
        return number, number
    digits = _digits(num_digits, random)
    return _filled(source, digits), _filled(target, digits)


def _digits(count: int, random: Random) -> str:
    first = random.randint(_MIN_NUMBER if count == 1 else 1, 9)
    return f"{first}{''.join(str(random.randrange(10)) for _ in range(count - 1))}"


def _filled(number: str, digits: str) -> str:
    following = iter(digits)
    return _DIGIT.sub(lambda _: next(following), number)


def _name(random: Random) -> str:
    kind = random.randrange(8)
    last = random.choice(_LAST_NAMES)
    if kind <= 1:
        return random.choice(_FIRST_NAMES)
    if kind == 2:
        return last
    if kind == 3:
        return random.choice(_PLACES)
    if kind == 4:
        initials = random.sample("ABCDEFGHJKLMNPRSTVW", random.randint(1, 3))
        return f"{'. '.join(initials)}. {last}"
    if kind == 5:
        return f"{last} {random.choice(_COMPANY_ENDS)}"
    return f"{random.choice(_FIRST_NAMES)} {last}"
