"""Placeholders of counts, such as `{n}` in `{n} files`.

A model reads a year or a trained placeholder instead, and may write a compound as with a name: `{n}-Dateien`. A count
stands alone, unless the source has the hyphen.
"""

import re

from dragoman_service.request import ProtectedKind

HYPHENS = frozenset("-\u2010\u2011")

_NUMERIC = re.compile(r"#|%(?:\d{1,2}\$)?[-+#0 ,']{0,4}+\d{0,4}+(?:hh?|ll?|I64|[zjtLq])?[diu]|%L?n")
_NAMELESS = re.compile(r"%(?:\d{1,2}\$?)?[s@]?|\{\{?\s?\d{0,2}\s?\}\}?|%(?:\d{1,2})")
_DIGITS = re.compile(r"[+\-\u2212]?\d[\d.,'\u202f\xa0\u2009 ]{0,30}+")
_EXTENSIBLE = re.compile(r"\$!?[a-z]\w*+(?:\.\w++)*+")  # Velocity
_NAME_PART = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z]+")
_MAX_NAME = 64
_GLUED = re.compile(r"(?<![\w.,-])(\d{1,4})-(?=[^\W\d_]{3,40}+(?![\w-]))")

_ENGLISH_ORDINAL = re.compile(r"(?<![\w.,])(\d{1,9})(st|nd|rd|th)(?!\w)")

# fmt: off
_COUNT_NAMES = frozenset((
    "n", "nb", "nr", "num", "number", "count", "counter", "counts", "cnt", "total", "totals", "amount", "quantity",
    "qty", "size", "length", "remaining", "days", "hours", "minutes", "seconds", "weeks", "months", "years", "items",
    "files", "users", "messages", "results", "pages", "times", "points", "attempts", "votes", "percent", "anzahl",
    "zahl", "menge", "summe",
))
# fmt: on

# A plural noun in lower case, as in `{0} files`; not `{0} has`.
_PLURAL_NOUN = re.compile(
    r"\s(?!(?:has|was|does|says|this|its|his|as|is|us|always|plus|versus)\b)[a-z]{2,30}[^\Wsui]s\b"
)


def is_count(text: str, kind: ProtectedKind | None, following: str) -> bool:
    """Return whether a protected span is a count, or a variable such as `$name`, whose name a hyphen would extend.

    Args:
        text: the span.
        kind: its kind.
        following: text after it.
    """
    if kind is ProtectedKind.NUMBER:
        return _DIGITS.fullmatch(text) is not None
    if kind is None or kind is ProtectedKind.TAG or len(text) > _MAX_NAME:
        return False
    if _NUMERIC.fullmatch(text) or _EXTENSIBLE.fullmatch(text):
        return True
    if _NAMELESS.fullmatch(text):
        return _PLURAL_NOUN.match(following) is not None
    name = re.split(r"[,:|?]", text.strip("{}$%#<>@!&=[]() "), maxsplit=1)[0]
    return any(part.lower() in _COUNT_NAMES for part in _NAME_PART.findall(name))


def with_separated_counts(source: str, target: str) -> str:
    """Return the target with a space for each hyphen between a number and a word that only the target has.

    `5 files` is `5 Dateien`, not `5-Dateien`. Compounds of several parts, such as `5-Sterne-Hotel`, stay.
    """

    def separated(match: re.Match[str]) -> str:
        is_count = re.search(rf"(?<![\w.,-]){match[1]}\s[a-z]", source)
        return f"{match[1]} " if is_count and f"{match[1]}-" not in source else match[0]

    return _GLUED.sub(separated, target) if "-" in target else target


def with_english_ordinals(target: str) -> str:
    """Return English text whose ordinals have the right ending: `3th` becomes `3rd`."""

    def corrected(match: re.Match[str]) -> str:
        number = match[1]
        is_teen = number[-2:-1] == "1"
        return number + ("th" if is_teen else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1], "th"))

    return _ENGLISH_ORDINAL.sub(corrected, target)
