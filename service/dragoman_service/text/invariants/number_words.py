"""Numbers that a text spells in words, in English and German."""

import re
from collections import Counter

from dragoman_service.language_tags import primary_language

# fmt: off
_ENGLISH = {
    "zero": 0, "nil": 0, "no": 0, "none": 0, "a": 1, "an": 1, "one": 1, "first": 1, "once": 1, "single": 1, "two": 2,
    "second": 2, "twice": 2, "both": 2, "double": 2, "pair": 2, "couple": 2, "three": 3, "third": 3, "triple": 3,
    "four": 4, "fourth": 4, "five": 5, "fifth": 5, "six": 6, "sixth": 6, "seven": 7, "seventh": 7, "eight": 8,
    "eighth": 8, "nine": 9, "ninth": 9, "ten": 10, "tenth": 10, "eleven": 11, "eleventh": 11, "twelve": 12,
    "twelfth": 12, "dozen": 12, "noon": 12, "midnight": 0, "thirteen": 13, "fourteen": 14, "fifteen": 15,
    "fortnight": 14, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "twenties": 20,
    "thirty": 30, "thirties": 30, "forty": 40, "forties": 40, "fifty": 50, "fifties": 50, "sixty": 60, "sixties": 60,
    "seventy": 70, "seventies": 70, "eighty": 80, "eighties": 80, "ninety": 90, "nineties": 90, "twentieth": 20,
    "thirtieth": 30, "hundred": 100, "thousand": 1000,
}
# Beginnings of words, because German writes compounds such as `fünfjährig` and `siebenmal` as one word.
_GERMAN = {
    "null": 0, "kein": 0, "mitternacht": 0, "ein": 1, "erst": 1, "zwei": 2, "zweit": 2, "beid": 2, "doppel": 2,
    "paar": 2, "zwo": 2, "drei": 3, "dritt": 3, "dreifach": 3, "vier": 4, "fünf": 5, "sechs": 6, "sieben": 7,
    "siebt": 7, "acht": 8, "neun": 9, "zehn": 10, "elf": 11, "zwölf": 12, "dutzend": 12, "mittag": 12, "dreizehn": 13,
    "vierzehn": 14, "fünfzehn": 15, "sechzehn": 16, "siebzehn": 17, "achtzehn": 18, "neunzehn": 19, "zwanzig": 20,
    "dreißig": 30, "dreissig": 30, "vierzig": 40, "fünfzig": 50, "sechzig": 60, "siebzig": 70, "achtzig": 80,
    "neunzig": 90, "hundert": 100, "einhundert": 100, "tausend": 1000, "eintausend": 1000,
}
_ROMAN = {
    "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10, "XI": 11, "XII": 12,
    "XIII": 13, "XIV": 14, "XV": 15, "XVI": 16, "XVII": 17, "XVIII": 18, "XIX": 19, "XX": 20, "XXI": 21,
}
# Words whose number cannot be compared, such as `a few hundred` or `half past seven`.
_INEXACT = {
    "en": r"\b(?:hundreds?|thousands?|millions?|billions?|trillions?|dozens?|half|halves|quarters?|decades?|scores?"
          r"|\w{3,9}teen|\w{3,7}t(?:y|ies)[- ](?:one|two|three|four|five|six|seven|eight|nine|first|second"
          r"|third|\w{3,6}th))\b",
    "de": r"(?:hundert|tausend|million|milliarde|billion|dutzend|\bhalb|\banderthalb|viertel|hälfte|jahrzehnt"
          r"|\b(?:Mio|Mrd|Tsd)\b|\w(?:zehn|zig|ßig)(?:\b|er|st|jähr))",
}
# fmt: on

_WORDS = {
    "en": (re.compile(rf"\b(?:{'|'.join(sorted(_ENGLISH, key=len, reverse=True))})\b"), _ENGLISH),
    "de": (re.compile(rf"\b(?:{'|'.join(sorted(_GERMAN, key=len, reverse=True))})"), _GERMAN),
}
_GERMAN_UNITS = re.compile(
    r"\b(?P<unit>ein|zwei|drei|vier|fünf|sechs|sieben|acht|neun)"
    r"(?:und(?P<tens>zwanzig|drei(?:ß|ss)ig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig)|(?P<scale>hundert|tausend))"
)
_ENGLISH_UNITS = re.compile(
    r"\b(?:(?P<tens>twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)[- ]"
    r"(?P<last>one|two|three|four|five|six|seven|eight|nine|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)"
    r"|(?P<unit>two|three|four|five|six|seven|eight|nine|ten|twenty)[- ](?P<scale>hundred|thousand))\b"
)
_ROMAN_NUMERAL = re.compile(r"\b[IVX]{1,5}+\b")
_INEXACT_WORDS = {language: re.compile(pattern, re.IGNORECASE) for language, pattern in _INEXACT.items()}


def is_known_language(language: str) -> bool:
    """Return whether the number words of a language are known."""
    return primary_language(language) in _WORDS


def number_words(text: str, language: str) -> Counter[int]:
    """Return how often a text spells each number in words or Roman numerals; nothing in an unknown language."""
    found: Counter[int] = Counter()
    for match in _ROMAN_NUMERAL.finditer(text):
        if match[0] in _ROMAN:
            found[_ROMAN[match[0]]] += 1
    name = primary_language(language)
    if name not in _WORDS:
        return found
    lower = text.lower()
    expression, values = _WORDS[name]
    for match in expression.finditer(lower):
        found[values[match[0]]] += 1
    for match in (_GERMAN_UNITS if name == "de" else _ENGLISH_UNITS).finditer(lower):
        found[_compound(match, values)] += 1
    return found


def num_inexact_words(text: str, language: str) -> int:
    """Return the number of words whose value cannot be compared, such as those of `a few hundred`."""
    expression = _INEXACT_WORDS.get(primary_language(language))
    return sum(1 for _ in expression.finditer(text)) if expression else 0


def _compound(match: re.Match[str], values: dict[str, int]) -> int:
    parts = match.groupdict()
    if parts["scale"]:
        return values[parts["unit"]] * values[parts["scale"]]
    return values[parts["tens"]] + values[parts.get("last") or parts["unit"]]
