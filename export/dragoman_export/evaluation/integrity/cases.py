"""Generated cases of all kinds of text that a translation must preserve: frames with random values."""

import html
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

from dragoman_export.evaluation.integrity import values
from dragoman_export.evaluation.integrity.checks import GARBAGE, Case
from dragoman_export.evaluation.integrity.values import Kept
from dragoman_service.request import TextFormat

DIRECTIONS: Final = (("en", "de"), ("de", "en"))

_MAX_ATTEMPTS: Final = 20  # per case, for a source that has not occurred
_HTML_SHARE: Final = 0.2  # of the kinds that have no format of their own
_ENDINGS: Final = ("...", "…", "?!", "!!!", "!", "?", ".", ":", ",", ";", " -", " –", " ;)", " :-)", "??", "?", "")
_SENTENCE_ENDS: Final = (".", "!", "?")
_MARKED: Final = (("**", "**"), ("*", "*"), ("~~", "~~"), ("`", "`"), ("__", "__"))
_LINE_MARKS: Final = ("# ", "## ", "- ", "> ", "* ", "- [ ] ", "- [x] ", "1. ")
_INLINE: Final = ("b", "i", "em", "strong", "u", "span", "a", "code")

_Make = Callable[[Random, str], Case]

FRAMES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = tomllib.loads(
    Path(__file__).with_name("frames.toml").read_text(encoding="utf-8")
)
"""Sentences, labels and words by family and language."""


def generate(num_cases: int, *, seed: int, directions: Sequence[tuple[str, str]] = DIRECTIONS) -> list[Case]:
    """Return about `num_cases` cases in equal parts for each kind and direction, the same for the same seed.

    The cases of a kind do not depend on other kinds or directions. A kind with few values may have fewer cases.
    """
    parts = [(kind, direction) for kind in KINDS for direction in directions]
    cases: list[Case] = []
    for index, (kind, (source, target)) in enumerate(parts):
        count = num_cases * (index + 1) // len(parts) - num_cases * index // len(parts)
        random = Random(f"{seed} {kind} {source}")  # noqa: S311
        cases += _distinct(_KINDS[kind], count, random, source, target)
    return cases


def _distinct(make: _Make, count: int, random: Random, source: str, target: str) -> Iterator[Case]:
    seen: set[str] = set()
    for _ in range(count * _MAX_ATTEMPTS):
        if len(seen) == count:
            return
        case = replace(make(random, source), target_language=target)
        if case.source not in seen:
            seen.add(case.source)
            yield case


def _case(
    random: Random, kind: str, language: str, source: str, keep: Sequence[Kept] = (), *, is_plain: bool = False
) -> Case:
    # A share of the cases is the same text in HTML.
    case = Case(kind=kind, source=source, source_language=language, target_language="", keep=tuple(keep))
    if is_plain or "\n" in source or random.random() >= _HTML_SHARE:
        return case
    tag = random.choice(("p", "li", "td", "h2"))
    return replace(case, source=f"<{tag}>{html.escape(source, quote=False)}</{tag}>", format=TextFormat.HTML)


def _filled(random: Random, family: str, language: str, value: str) -> str:
    return random.choice(FRAMES[family][language]).replace("{x}", value)


def _number(random: Random, language: str) -> Case:
    family, (text, keep) = random.choice(
        (
            ("counts", values.random_count(random, language)),
            ("values", values.random_value(random, language)),
            ("moments", values.random_moment(random, language)),
        )
    )
    return _case(random, "number", language, _filled(random, family, language, text), keep)


def _amount(random: Random, language: str) -> Case:
    text, keep = values.random_amount(random, language)
    return _case(random, "amount", language, _filled(random, "amounts", language, text), keep)


def _identifier(random: Random, language: str) -> Case:
    text = values.random_identifier(random)
    return _case(random, "identifier", language, _filled(random, "things", language, text), [text])


def _symbol(random: Random, language: str) -> Case:
    symbol = random.choice(values.SYMBOLS)
    return _case(random, "symbol", language, _filled(random, "symbols", language, symbol), [symbol])


def _name(random: Random, language: str) -> Case:
    names = [values.random_name(random) for _ in range(random.choice((1, 1, 2)))]
    word = {"de": " und ", "en": " and "}[language]
    source = _filled(random, "people", language, word.join(names))
    return _case(random, "name", language, source, tuple(chain.from_iterable(map(str.split, names))))


def _capitals(random: Random, language: str) -> Case:
    if random.random() < 0.4:
        source = random.choice([word for word in FRAMES["words"][language] if len(word) >= 4])
    else:
        source = random.choice((*FRAMES["labels"][language], *FRAMES["sentences"][language])) + random.choice(
            ("", "!", "?")
        )
    case = _case(random, "capitals", language, source.upper(), is_plain=True)
    return replace(case, is_in_capitals=True, is_translated=True)


def _placeholder(random: Random, language: str) -> Case:
    match random.randrange(7):
        case 0:
            opening, closing = random.choice(values.PAIRED)
            words = random.choice(FRAMES["sentences"][language]).split()
            _wrap(random, words, opening, closing)
            return _case(random, "placeholder", language, f"{' '.join(words)}.", [opening, closing], is_plain=True)
        case 1:
            text = values.count_placeholder(random)
            source = _filled(random, "counted", language, text)
            return _case(random, "placeholder", language, source, [f"{text} "])
        case 2:
            texts = [values.random_placeholder(random) for _ in range(2)]
            source = _filled(random, "things", language, {"de": " oder ", "en": " or "}[language].join(texts))
            return _case(random, "placeholder", language, source, texts, is_plain=True)
        case 3:
            return _plural_forms(random, language)
        case _:
            text = values.random_placeholder(random)
            source = _filled(random, "things", language, text)
            return _case(random, "placeholder", language, source, [text], is_plain="<" in text or "&" in text)


def _plural_forms(random: Random, language: str) -> Case:
    none, few, many = random.sample(FRAMES["counted"][language], 3)
    name = random.choice(("{n}", "{count}"))
    few, many = (text.replace("{x}", name) for text in (few, many))
    none = none.replace("{x}", "0")
    source, keep = random.choice(
        (
            (f"{few} |||| {many}", ["||||", name]),
            (f"{few} | {many}", ["|", name]),
            (f"{few}|{many}", ["|", name]),
            (f"{{0}} {none}|[1,19] {few}|[20,*] {many}", ["{0}", "|[1,19]", "|[20,*]", name]),
            (f"{{ $n -> [one] {few} *[other] {many} }}", ["{ $n -> ", "[one]", "*[other]", name]),
            (f"{{0,choice,0#{none}|1#{few}|1<{many}}}", ["{0,choice,0#", "|1#", "|1<", name]),
            (f"{{n, plural, one {{{few}}} other {{{many}}}}}", ["{n, plural,", "one {", "other {", name]),
        )
    )
    return _case(random, "placeholder", language, source, keep, is_plain=True)


def _address(random: Random, language: str) -> Case:
    text = values.random_address(random)
    return _case(random, "address", language, _filled(random, "things", language, text), [text])


def _markup(random: Random, language: str) -> Case:
    shape = random.randrange(4)
    if shape == 0:
        name, number = random.choice(("x", "ph", "keep")), random.randint(1, 40)
        element = f'<{name} id="{number}"></{name}>' if random.random() < 0.6 else f'<x id="{number}"/>'
        source, text_format = _filled(random, "things", language, element), TextFormat.XML
    else:
        words, text_format = random.choice(FRAMES["sentences"][language]).split(), TextFormat.HTML
        first = random.randrange(len(words) - 1)
        tag = random.choice(_INLINE)
        opening = f'<a href="https://example.org/{random.randint(1, 99)}">' if tag == "a" else f"<{tag}>"
        if shape == 1 and len(words[first]) > 4:
            middle = len(words[first]) // 2
            words[first] = f"{words[first][:middle]}{opening}{words[first][middle:]}</{tag}>"
        elif shape == 2:
            other = random.choice(FRAMES["sentences"][language])
            words.append(random.choice(("<br>", "<br/><br/>")) + other)
        else:
            _wrap(random, words, opening, f"</{tag}>")
        source = f"<p>{' '.join(words)}.</p>"
    case = _case(random, "markup", language, source, is_plain=True)
    return replace(case, format=text_format)


def _ending(random: Random, language: str) -> Case:
    ending = random.choice(_ENDINGS)
    texts = FRAMES["labels"] if random.random() < 0.6 else FRAMES["sentences"]
    case = _case(random, "ending", language, random.choice(texts[language]) + ending)
    return replace(case, has_ending=True)


def _white_space(random: Random, language: str) -> Case:
    match random.randrange(3):
        case 0:
            space = random.choice(("\t", "\t\t", "\n", "\n\n"))
            source = space.join(random.sample(FRAMES["labels"][language], random.randint(2, 4)))
        case 1:
            space = random.choice(("  ", "   ", "    "))
            words = random.choice(FRAMES["sentences"][language]).split()
            middle = random.randrange(1, len(words))
            source = f"{' '.join(words[:middle])}{space}{' '.join(words[middle:])}."
        case _:
            space = random.choice(("\t", "\n", "\n\n", "\r\n", "\n- ", "  ", "\n    "))
            source = space.join(f"{text}." for text in random.sample(FRAMES["sentences"][language], 2))
    return _case(random, "white space", language, source, [space], is_plain=True)


def _single_word(random: Random, language: str) -> Case:
    word = random.choice(FRAMES["words"][language])
    case = _case(random, "single word", language, random.choice((word, word.capitalize())), is_plain=True)
    return replace(case, is_translated=True)


def _unknown_characters(random: Random, language: str) -> Case:
    match random.randrange(5):
        case 0:
            text = random.choice(values.EMOJI)
            source, keep = _filled(random, "symbols", language, text), [text]
        case 1:
            text = random.choice(values.FOREIGN_WORDS)
            source, keep = _filled(random, "things", language, text), text.split()
        case 2:
            opening, closing = random.choice(values.BRACKETS)
            text, _ = values.random_moment(random, language)
            source, keep = f"{opening}{text}{closing} {random.choice(FRAMES['sentences'][language])}.", [text]
            keep += dict.fromkeys((opening, closing))
        case 3:
            opening, closing = random.choice(values.BRACKETS[:4])
            words = random.choice(FRAMES["sentences"][language]).split()
            words[-1] = f"{opening}{words[-1]}{closing}"
            source, keep = f"{' '.join(words)}.", [opening, closing]
        case _:
            opening, closing = random.choice((("»", "«"), ("“", "”"), ("„", "“"), ("«", "»")))
            word = random.choice(FRAMES["labels"][language])
            source, keep = _filled(random, "things", language, f"{opening}{word}{closing}"), list[str]()
    return _case(random, "unknown characters", language, source, keep)


def _abbreviation(random: Random, language: str) -> Case:
    number, name = str(random.randint(2, 99)), random.choice(values.PLAIN_NAMES)
    frame = random.choice(FRAMES["abbreviated"][language])
    source = frame.replace("{n}", number).replace("{x}", name)
    case = _case(random, "abbreviation", language, source, [part for part in (number, name) if part in source])
    # with translations of abbreviations as words: `No. 5` as "Nein", `d. h.` as "thick"
    return replace(case, never=(*GARBAGE, "E. G.", "I. E.", "Nein", "thick", " Or?"))


def _copies(random: Random, language: str) -> Case:
    if random.random() < 0.2:  # text that is already in the target language
        other = "de" if language == "en" else "en"
        source = random.choice(FRAMES["sentences"][other]) + "."
        longest = max(source.removesuffix(".").split(), key=len).strip(",")
        return _case(random, "copies", language, source, [longest])
    names = random.sample((*values.PRODUCTS, *values.PLAIN_NAMES), random.randint(1, 6))
    text = ", ".join(names[:-1]) + ({"de": " und ", "en": " and "}[language] if names[:-1] else "") + names[-1]
    if random.random() < 0.3:
        text = ", ".join(names)
    return _case(random, "copies", language, _filled(random, "together", language, text), names)


def _escape(random: Random, language: str) -> Case:
    label, other = random.sample(FRAMES["labels"][language], 2)
    first, second = random.sample(FRAMES["sentences"][language], 2)
    source, keep = random.choice(
        (
            (rf"{first}.\n{second}.", [r"\n"]),
            (rf"{label}\n{other}", [r"\n"]),
            (rf"{label}\t{other}", [r"\t"]),
            (_filled(random, "things", language, rf"\"{label}\""), [r"\""]),
            (_filled(random, "things", language, rf"\"{label}\" %1$s"), [r"\"", "%1$s"]),
            (rf"{first}.\n\n{second}.", [r"\n"]),
        )
    )
    if language == "en" and random.random() < 0.3:
        source = (
            random.choice((r"Don\'t forget", r"You can\'t change", r"It\'s time for"))
            + f" the {random.choice(('letter', 'key', 'book', 'password'))}."
        )
        keep = []
    case = _case(random, "escape", language, source, keep, is_plain=True)
    return replace(case, has_escapes=True)


def _accelerator(random: Random, language: str) -> Case:
    label, mark = random.choice(FRAMES["labels"][language]), random.choice(("&", "&", "_"))
    places = [index for index, letter in enumerate(label) if letter.isalpha()]
    place = random.choice((0, random.choice(places)))
    source = label[:place] + mark + label[place:] + random.choice(("", "...", ""))
    case = _case(random, "accelerator", language, source, [mark], is_plain=True)
    return replace(case, is_translated=True, never=(*GARBAGE, f"{mark} ", f"{mark}.", "&amp;"))


def _markdown(random: Random, language: str) -> Case:
    words = random.choice(FRAMES["sentences"][language]).split()
    if random.random() < 0.35:
        mark = random.choice(_LINE_MARKS)
        return _case(random, "markdown", language, f"{mark}{' '.join(words)}", [mark], is_plain=True)
    opening, closing = random.choice((*_MARKED, ("[", f"](page{random.randint(1, 99)}.html)")))
    _wrap(random, words, opening, closing)
    return _case(random, "markdown", language, f"{' '.join(words)}.", [opening, closing], is_plain=True)


def _wrap(random: Random, words: list[str], opening: str, closing: str) -> None:
    # Puts marks around one to three words, without the last one.
    first = random.randrange(len(words) - 1)
    last = random.randrange(first, min(first + 3, len(words) - 1))
    words[first] = opening + words[first]
    words[last] += closing


_KINDS: Final[Mapping[str, _Make]] = {
    "number": _number,
    "amount": _amount,
    "identifier": _identifier,
    "symbol": _symbol,
    "name": _name,
    "capitals": _capitals,
    "placeholder": _placeholder,
    "address": _address,
    "markup": _markup,
    "ending": _ending,
    "white space": _white_space,
    "single word": _single_word,
    "unknown characters": _unknown_characters,
    "abbreviation": _abbreviation,
    "copies": _copies,
    "escape": _escape,
    "accelerator": _accelerator,
    "markdown": _markdown,
}
KINDS: Final = tuple(_KINDS)
