"""Values of numbers: comparison of a number with its translation, and the separators of a language (CLDR)."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dragoman_service.datatypes import Span

SPACE = r"[ \u00a0\u2009\u202f]"
"""Expression of a space between digits, or before a unit."""

_STAND_INS = str.maketrans(
    {"'": "’", "\xa0": " ", "\u2009": " ", "\u202f": " ", "，": ",", "．": ".", "：": ":", "\u2044": "/"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberToken:
    """Digits and the separators between them."""

    span: Span
    text: str


_TOKEN_OF_DIGITS = re.compile(
    rf"\d{{4}}-\d\d?-\d\d?(?!\d)|\d\d?-\d\d?-\d{{4}}(?!\d)|(?<!\d)\d{{1,3}}(?:{SPACE}\d{{3}}(?!\d))+(?:[.,]\d+)?"
    r"|\d++(?:[.,:/'’·\u066b\u066c，．：\u2044]\d++)*+"
)


def numbers_in(text: str) -> Iterator[NumberToken]:
    """Yield the numbers of a text in order, with their separators.

    A hyphen and a dash join the parts of a date only. A space joins groups of three digits.
    """
    for match in _TOKEN_OF_DIGITS.finditer(text):
        yield NumberToken(span=Span(start=match.start(), end=match.end()), text=match[0])


def is_same_number(source: str, target: str, *, source_language: str, target_language: str) -> bool:
    """Return whether two numbers have equal characters, or the same digits and a common value.

    Args:
        source: number as `numbers_in` returns it.
        target: number in the translation.
        source_language: tag of the language whose separators the source has.
        target_language: tag of the language whose separators the target has.
    """
    if source == target:
        return True
    source, target = _in_ascii(source), _in_ascii(target)
    if source == target:
        return True
    if re.sub(r"\D", "", source) != re.sub(r"\D", "", target):
        return False
    return not _values(source, source_language).isdisjoint(_values(target, target_language))


def _values(text: str, language: str) -> set[tuple[str, ...]]:
    # What a number in ASCII digits may mean: the digits before and after the decimal separator, or the parts of a time.
    separators = re.sub(r"\d", "", text)
    parts = re.split(r"\D", text)
    values: set[tuple[str, ...]] = set()
    if re.fullmatch(r"\d\d?[.:]\d\d(?:[.:]\d\d)?", text) or _is_date(text, parts):
        values.add(("parts", *parts))
    if not separators:
        return values | {("number", text, "")}
    if set(separators) <= {":"}:
        return values | {("ratio", *parts)}
    if set(separators) & {":", "/", "-"}:
        return values | {(separators, *parts)}
    last = separators[-1]
    is_one_kind = len(set(separators)) == 1
    whole = "".join(parts[:-1])
    is_grouped = 0 < len(parts[0]) <= 3 and parts[0] != "0" and all(len(part) == 3 for part in parts[1:])
    may_be_decimal = last in ".,·\u066b" and (len(separators) == 1 or not is_one_kind) and last not in separators[:-1]
    convention = number_convention(language, is_currency=False) if len(separators) == 1 and is_grouped else None
    if convention is not None and last in ".,":
        # Three digits after one separator: the language decides.
        is_grouped = last != convention.decimal
        may_be_decimal = not is_grouped
    if is_grouped and (is_one_kind or len(separators) == 1) and last != "\u066b":
        values.add(("number", whole + parts[-1], ""))
    if may_be_decimal and (len(separators) == 1 or all(len(part) in {2, 3} for part in parts[1:-1])):
        values.add(("number", whole, parts[-1]))
    if not values and is_one_kind and all(len(part) in {2, 3} for part in parts[1:]) and len(parts[-1]) == 3:
        values.add(("number", whole + parts[-1], ""))  # `1,00,000`
    return values or {(separators, *parts)}


def _is_date(text: str, parts: Sequence[str]) -> bool:
    return (
        re.fullmatch(r"\d{4}([-./])\d\d?\1\d\d?|\d\d?([-./])\d\d?\2(?:\d{4}|\d\d)", text) is not None
        and len(parts) == 3
    )


def _in_ascii(text: str) -> str:
    return "".join(str(unicodedata.digit(char, char)) for char in text.translate(_STAND_INS))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberConvention:
    """Separators of a language in a region."""

    decimal: str
    group: str
    groups: frozenset[str]  # all group separators that are accepted, with apostrophes and spaces in one form
    has_groups_of_two: bool  # `1,00,000`


@lru_cache(maxsize=1024)
def number_convention(tag: str, is_currency: bool) -> NumberConvention | None:
    """Return the separators of a language, or None if CLDR does not contain it or it has other digits."""
    from babel import Locale, UnknownLocaleError, localedata  # noqa: PLC0415 - imported for the first such number
    from babel.core import get_global, parse_locale  # noqa: PLC0415

    try:
        language, territory, script, *_ = parse_locale(tag.partition("@")[0].replace("-", "_"))
    except ValueError:
        return None
    language = get_global("language_aliases").get(language, language).partition("_")[0]
    cached = set(localedata._cache)
    locales = []
    for parts in ((language, script, territory), (language, territory), (language, script), (language,)):
        try:
            locales.append(Locale.parse("_".join(filter(None, parts)), resolve_likely_subtags=False))
        except (ValueError, UnknownLocaleError):
            continue
    symbols = [locale.number_symbols.get("latn", {}) for locale in (*locales[:1], *locales[-1:])]
    is_latin = bool(locales) and locales[0].default_numbering_system == "latn" and "decimal" in symbols[0]
    grouping = locales[0].decimal_formats[None].grouping if is_latin else None
    for identifier in set(localedata._cache) - cached:
        localedata._cache.pop(identifier, None)  # about 0.5 MB per locale
    if not is_latin:
        return None
    region, base = symbols
    decimal = (is_currency and region.get("currencyDecimal")) or region["decimal"]
    group = (is_currency and region.get("currencyGroup")) or region["group"]
    groups = {group, region["group"]} | ({base["group"]} if base["decimal"] == decimal else set())
    return NumberConvention(
        decimal=decimal,
        group="’" if group == "'" else group,
        groups=frozenset({each.translate(_STAND_INS) for each in groups} | {" ", "’"}) - {decimal},
        has_groups_of_two=grouping == (3, 2),
    )


def localized_number(core: str, source: NumberConvention, target: NumberConvention, is_marked: bool) -> str | None:
    """Return a number with the separators of the target language, or None if its value is not certain."""
    if not re.sub(r"\D", "", core).isascii():
        return None
    separators = re.sub(r"\d", "", core)
    if not separators:
        return core
    whole, decimal, fraction = core.rpartition(source.decimal)
    if not decimal:
        whole, fraction = core, ""
    groups = re.split(r"\D", whole)
    used = {separator.translate(_STAND_INS) for separator in re.sub(r"\d", "", whole)}
    is_valid = fraction.isdigit() or not decimal
    if len(groups) > 1:
        sizes = [len(group) for group in groups]
        is_indian = source.has_groups_of_two and 1 <= sizes[0] <= 2 and set(sizes[1:-1]) <= {2} and sizes[-1] == 3
        is_valid &= len(used) == 1 and used <= source.groups and groups[0][:1] not in {"", "0"}
        is_valid &= is_indian or (sizes[0] <= 3 and set(sizes[1:]) == {3})
    elif decimal and len(fraction) == 3 and 1 <= len(whole) <= 3 and whole[0] != "0":
        return None  # may be grouped in the convention of another language
    has_usual_groups = used != {" "} or source.group.translate(_STAND_INS) == " "  # else it may be an account
    is_amount = len(groups) > 1 and (fraction or (len(groups) > 2 and has_usual_groups))
    if not is_valid or not (is_marked or is_amount):
        return None
    if len(groups) > 2 and source.has_groups_of_two and not target.has_groups_of_two:
        groups = _in_thousands("".join(groups))
    elif used <= {target.group.translate(_STAND_INS)}:
        return f"{whole}{target.decimal}{fraction}" if decimal else whole
    grouped = target.group.join(groups)
    return grouped + target.decimal + fraction if decimal else grouped


def _in_thousands(digits: str) -> list[str]:
    first = len(digits) % 3
    return [*([digits[:first]] if first else []), *(digits[i : i + 3] for i in range(first, len(digits), 3))]
