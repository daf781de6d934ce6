"""Invariants of characters: symbols and tags are preserved, and the output is valid and not empty."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from dragoman_service.datatypes import Span, WarningKind
from dragoman_service.language_tags import primary_language
from dragoman_service.text.invariants.violations import MAX_VIOLATIONS, Texts, Violation, quoted

_ALPHANUMERIC = re.compile(r"[^\W_]")
_REPLACEMENT = "\ufffd"
_RESERVED = re.compile(r"⟦\d{1,4}⟧|⟪/?\d{1,4}⟫|<0x[0-9A-Fa-f]{2}>|<unk>|</?s>|<pad>|\ufffd++")

# Neither quotes, dashes, parentheses nor punctuation of sentences.
_CANDIDATE = re.compile(
    r"[^\w\s.,;:!?'\"()/\u00a1\u00ab\u00b4\u00b7\u00bb\u00bf\u2010-\u201f\u2026\u2032\u2033\u2039\u203a\u2212\u3001-\u3003"
    r"\uff01\uff0c\uff1a\uff1b\uff1f\ufffc-]|(?<!\w)_|_(?!\w)"
)
_ASCII_SYMBOLS = frozenset("[]{}<>|@#&%^~`*_=+\\$")
_OTHER_SYMBOLS = frozenset("§¶•‣◦†‡‰※")  # punctuation by category
# Symbols that are a part of a word: the apostrophe of it`s and the star of German `Nutzer*innen`.
_IN_WORD = re.compile(r"(?<=\w)`(?=\w)|(?<=\w)[*_](?=in(?:nen)?\b)")

# Words that replace a symbol.
_WORDS: dict[str, re.Pattern[str]] = {
    symbol: re.compile(words, re.IGNORECASE)
    for symbol, words in {
        "%": r"prozent|per ?cent|\bpct\b|\bv\.? ?h\.",
        "&": r"\b(?:und|and|u\.)(?!\w)|\bsowie\b|\bet\b|\by\b|\be\b",
        "$": r"dollar|\bUSD\b|\bUS-D|\bbucks?\b",
        "€": r"\beuros?|\bEUR\b",
        "£": r"pfund|pounds?\b|\bGBP\b|sterling",
        "¥": r"\byen\b|yuan|\bJPY\b|\bCNY\b|renminbi",
        "¢": r"\bcents?\b",
        "+": r"\bplus\b|\band\b|\bund\b|\bmehr\b|\bmore\b|\büber\b|\bover\b",
        "°": r"\bgrad\b|degrees?\b|-grad",
        "#": r"\bnr\.|\bno\.|nummer|number|\bhash|\bsharp\b|raute",
        "=": r"\bgleich\b|equals?\b|\bist\b|\bis\b",
        "§": r"\bsec(?:tion|\.)|\bparagraph|\barticle|\bart\.|\bpara\.",
        "©": r"copyright|\(c\)",
        "®": r"\(r\)",
        "™": r"\(tm\)",
        "×": r"\bx\b|\bmal\b|\btimes\b|\bby\b|\d ?x ?\d",
        "*": r"\bx\b|\bmal\b|\btimes\b",
        "@": r"\bat\b|\ban?\b|\bbei\b",
        "~": r"\bca\.|\betwa\b|\babout\b|\bapprox|\bungefähr\b|\baround\b",
        "≈": r"\bca\.|\betwa\b|\babout\b|\bapprox|\bungefähr\b|\baround\b",
        "<": r"\bless\b|\bunter\b|\bunder\b|\bbelow\b|\bkleiner\b|\bweniger\b",
        ">": r"\bmore\b|\büber\b|\bover\b|\babove\b|\bgreater\b|\bgrößer\b|\bmehr\b",
    }.items()
}
_TABLE_LANGUAGES = frozenset({"en", "de"})
# Symbols that other languages may replace by words.
_REPLACEABLE = frozenset(_WORDS) - frozenset("@*<>=©®™")

_QUOTATION_MARK = re.compile(r'(?<!\d)"|[“”„‟«»「」『』＂]|(?<=\d)"(?=[\s.,;:!?)]|\Z)')

_TAG = re.compile(
    r"<(?P<end>/?)(?P<name>[A-Za-z][\w:.-]{0,63}+|\d{1,4})"
    r"(?:\s{1,32}+[\w:@.-]{1,64}+(?:\s{0,8}+=\s{0,8}+(?:\"[^\"<>]{0,1000}+\"|'[^'<>]{0,1000}+'|[^\s\"'<>=]{1,200}+))?){0,32}+"
    r"\s{0,32}+(?P<empty>/?)>"
)
_VOID = frozenset(("area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))


def find_empty_translation(texts: Texts) -> Iterator[Violation]:
    """Yield a violation if only the source has letters or digits."""
    if not _ALPHANUMERIC.search(texts.target) and _ALPHANUMERIC.search(texts.source):
        detail = f"{quoted(texts.source)} has no translation"
        whole = Span(start=0, end=len(texts.source))
        yield Violation(kind=WarningKind.EMPTY_TRANSLATION, detail=detail, source=whole, target=None)


def find_invalid_output(texts: Texts) -> Iterator[Violation]:
    """Yield characters and reserved pieces that are never part of a text, unless the source has them."""
    matches = (match for match in _RESERVED.finditer(texts.target) if match[0] not in texts.source)
    for match in islice(matches, MAX_VIOLATIONS):
        name = "U+FFFD" if match[0][0] == _REPLACEMENT else match[0]
        span = Span(start=match.start(), end=match.end())
        detail = f"{name} is not text"
        yield Violation(kind=WarningKind.INVALID_OUTPUT, detail=detail, source=None, target=span)


def find_changed_symbols(texts: Texts) -> Iterator[Violation]:
    """Yield symbols that occur more or less often in the target. Words such as `percent` may replace a symbol."""
    if not _CANDIDATE.search(texts.source) and not _CANDIDATE.search(texts.target):
        return
    sources, targets = _symbols(texts.source), _symbols(texts.target)
    num_violations = 0
    for symbol in {**sources, **targets}:
        old, new = sources.get(symbol, []), targets.get(symbol, [])
        if len(old) == len(new) or _is_in_words(symbol, len(new) - len(old), texts):
            continue
        if num_violations == MAX_VIOLATIONS:
            return
        num_violations += 1
        is_missing = len(new) < len(old)
        position = (old if is_missing else new)[-1]
        span = Span(start=position, end=position + 1)
        yield Violation(
            kind=WarningKind.SYMBOL_CHANGED,
            detail=f"{symbol} occurs {len(new)} times, {len(old)} times in the source",
            source=span if is_missing else None,
            target=None if is_missing else span,
        )


def quotation_marks(text: str) -> list[int]:
    """Return the positions of the double quotation marks of a text, without those that are units."""
    return [match.start() for match in _QUOTATION_MARK.finditer(text)]


def find_changed_quotation_marks(texts: Texts) -> Iterator[Violation]:
    """Yield the double quotation marks of the source if the target has fewer; the style may differ.

    A surplus mark of the target is a violation only if it has no partner, or if a mark of the source has none.
    """
    old, new = quotation_marks(texts.source), quotation_marks(texts.target)
    is_unpaired = len(old) % 2 == 1
    if is_unpaired and any(_is_unit_or_apostrophe(texts.source, position) for position in old):
        return
    if len(new) == len(old) or (len(new) > len(old) and not is_unpaired and len(new) % 2 == 0):
        return
    detail = f"{len(new)} quotation marks, {len(old)} in the source"
    if len(new) < len(old) or len(old) == 1:
        for position in old[:MAX_VIOLATIONS]:
            span = Span(start=position, end=position + 1)
            yield Violation(kind=WarningKind.SYMBOL_CHANGED, detail=detail, source=span, target=None)
    elif old:
        span = Span(start=new[-1], end=new[-1] + 1)
        yield Violation(kind=WarningKind.SYMBOL_CHANGED, detail=detail, source=None, target=span)


def _is_unit_or_apostrophe(text: str, position: int) -> bool:
    # `5" long`, and a mark within a word.
    before, after = text[position - 1 : position], text[position + 1 : position + 2]
    return (text[position] == '"' and before.isdigit()) or (before.isalnum() and after.isalnum())


def find_changed_markup(texts: Texts) -> Iterator[Violation]:
    """Yield tags that are missing or added, or a target whose tags are not well nested as in the source."""
    if "<" not in texts.source and "<" not in texts.target:
        return
    old, new = _tags(texts.source), _tags(texts.target)
    missing = Counter(tag[0] for tag in old) - Counter(tag[0] for tag in new)
    added = Counter(tag[0] for tag in new) - Counter(tag[0] for tag in old)
    kind = WarningKind.MARKUP_CHANGED
    for tag in islice(missing, MAX_VIOLATIONS):
        span = _last(old, tag)
        yield Violation(kind=kind, detail=f"{quoted(tag)} is missing", source=span, target=None)
    for tag in islice(added, MAX_VIOLATIONS):
        span = _last(new, tag)
        yield Violation(kind=kind, detail=f"{quoted(tag)} was added", source=None, target=span)
    if old and not missing and not added and _is_well_nested(old) and not _is_well_nested(new):
        span = Span(start=new[0].start(), end=new[-1].end())
        yield Violation(kind=kind, detail="tags are not well nested", source=None, target=span)


@lru_cache(maxsize=4096)
def _is_symbol(character: str) -> bool:
    if character in _ASCII_SYMBOLS or character in _OTHER_SYMBOLS:
        return True
    return not character.isascii() and character != _REPLACEMENT and unicodedata.category(character)[0] == "S"


def _symbols(text: str) -> dict[str, list[int]]:
    # Positions of each symbol, without those of tags.
    if "<" in text:
        text = _TAG.sub(_blank, text)
    if "`" in text or "*" in text:
        text = _IN_WORD.sub("'", text)
    positions: dict[str, list[int]] = {}
    for match in _CANDIDATE.finditer(text):
        if _is_symbol(match[0]):
            positions.setdefault(match[0], []).append(match.start())
    return positions


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _is_in_words(symbol: str, difference: int, texts: Texts) -> bool:
    # Whether words of one side replace the symbols of the other.
    words = _WORDS.get(symbol)
    if words is None:
        return False
    languages = {primary_language(texts.source_language), primary_language(texts.target_language)}
    if not languages <= _TABLE_LANGUAGES:
        return symbol in _REPLACEABLE
    num_old = sum(1 for _ in words.finditer(texts.source))
    num_new = sum(1 for _ in words.finditer(texts.target))
    return num_new - num_old >= -difference if difference < 0 else num_old - num_new >= difference


def _tags(text: str) -> list[re.Match[str]]:
    return list(_TAG.finditer(text))


def _last(tags: Sequence[re.Match[str]], text: str) -> Span:
    return next(Span(start=tag.start(), end=tag.end()) for tag in reversed(tags) if tag[0] == text)


def _is_well_nested(tags: Sequence[re.Match[str]]) -> bool:
    names: list[str] = []
    for tag in tags:
        name = tag["name"]
        if tag["empty"] or name.lower() in _VOID:
            continue
        if not tag["end"]:
            names.append(name)
        elif not names or names.pop() != name:
            return False
    return not names
