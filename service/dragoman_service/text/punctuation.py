"""Dashes, ellipses, quotation marks and spaces: readable by the model, and correct again in the translation.

All functions are pure, change punctuation only, and take linear time.
"""

import re
from collections.abc import Callable, Sequence

from dragoman_service.language_tags import primary_language
from dragoman_service.text.quotation import with_marks_of_language

# Replacements in order of preference. All are one character, so that positions stay the same.
_READABLE: dict[str, str] = {
    **dict.fromkeys("“”„‟«»‹›〝〞＂″「」『』", "\"'"),
    **dict.fromkeys("‘’‚‛ʼ′＇´", "'"),
    **dict.fromkeys("–—−‒―‐‑⁃", "-"),
    "…": ".",
    **dict.fromkeys(
        "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "
    ),
}

_SPACED_DASH = re.compile(r"(?<=[ \xa0])[-–—―‒](?=[ \xa0])")
_RANGE_DASH = re.compile(r"(?<=\d)[-–—‒−](?=\d)")
_MINUS = re.compile(r"(?<![\w.)\]])[-−](?=\d)")
_JOINED_DASH = re.compile(r"(?<=[^\W\d_])(?:[-–—―]|--)(?=[^\W\d_])")
_RANGE = re.compile(r"(?<!\d)(\d{1,20})([–—‒−])(\d{1,20})(?!\d)")
_HYPHENATED = re.compile(r"(?<!\d)(\d{1,20})-(?=(\d{1,20})(?!\d))")
_TIGHT_DASH = re.compile(r"(?<=[\w\ufffc])[–—](?=[\w\ufffc])")
_ONE_SIDED_DASH = re.compile(r"(?<=[\w\ufffc])(?:[ \xa0][–—]|[–—][ \xa0])(?=[\w\ufffc])")
_SPACE_IN_QUOTATION = re.compile(r'["“”„«»] (?=\w)')
_SPANS = re.compile("[\ufffc ]{1,200}+(?=[^\ufffc ])")
_COMMA_AFTER_SPANS = re.compile("( ?\ufffc[\ufffc ]{0,200}), ")
_ANY_SPACE = frozenset(" \xa0\u202f\u2009")


def readable(text: str, spells: Callable[[str], bool]) -> str:
    """Replace quotation marks, dashes, ellipses and spaces that the model cannot spell by similar characters.

    The text has the same number of characters. A character stays if the model spells it, or spells no replacement.

    Args:
        text: any text.
        spells: whether the tokenizer of the model has pieces for a character.
    """
    table: dict[int, str] = {}
    for char in set(text) & _READABLE.keys():
        if not spells(char):
            chosen = next((option for option in _READABLE[char] if spells(option)), None)
            if chosen is not None:
                table[ord(char)] = chosen
    return text.translate(table) if table else text


def without_added_comma(source: str, target: str) -> str:
    """Return the target without a comma after the protected spans that begin it, if the source has none there."""
    if (match := _COMMA_AFTER_SPANS.match(target)) and (own := _SPANS.match(source)) and source[own.end()] != ",":
        return target[: match.end(1)] + target[match.end(1) + 1 :]
    return target


def restored_quotes(source: str, target: str, *, target_language: str) -> str:
    """Return the target with quotation marks, apostrophes, dashes and ellipses in place of their readable forms.

    Straight marks of the target become those of the target language where the source has typographic ones. Marks that
    are straight in the source stay straight.

    Args:
        source: the text of the caller, before `readable`.
        target: its translation.
        target_language: BCP-47 tag. Languages without a table get the marks of the source.
    """
    if _SPACE_IN_QUOTATION.match(target) and not _SPACE_IN_QUOTATION.match(source):
        target = target[0] + target[2:]
    target = with_marks_of_language(source, target, target_language=target_language)
    target = _with_even_spaces(source, _restored_dashes(source, target, target_language))
    return target.replace("...", "…") if "…" in source and "..." not in source else target


def _restored_dashes(source: str, target: str, target_language: str) -> str:
    if "-" not in target or not any(char in source for char in "–—−―‒·"):
        return target
    for expression in (_SPACED_DASH, _RANGE_DASH, _MINUS, _JOINED_DASH):
        old = expression.findall(source)
        if all(dash == "-" for dash in old):
            continue
        matches = list(expression.finditer(target))
        may_differ = expression is _SPACED_DASH and "-" not in old and len(matches) < len(old)
        if len(matches) == len(old) or may_differ:
            target = _with_dashes(target, matches, old, target_language)
    ranges: dict[tuple[str, str], str] = {}
    for first, dash, last in _RANGE.findall(source):
        ranges.setdefault((first, last), dash)
    if not ranges:
        return target
    return _HYPHENATED.sub(lambda match: match[1] + ranges.get((match[1], match[2]), "-"), target)


def _with_even_spaces(source: str, target: str) -> str:
    # A dash with a space on one side only, as of the tokens `▁–` and `1945`, gets the spaces of the source.
    if not _ONE_SIDED_DASH.search(target) or _ONE_SIDED_DASH.search(source):
        return target
    is_tight, is_spaced = _TIGHT_DASH.search(source) is not None, _SPACED_DASH.search(source) is not None
    if is_tight == is_spaced:
        return target
    return _ONE_SIDED_DASH.sub(lambda match: match[0].strip() if is_tight else f" {match[0].strip()} ", target)


def _with_dashes(target: str, matches: Sequence[re.Match[str]], dashes: Sequence[str], language: str) -> str:
    result, copied_to = [], 0
    for match, dash in zip(matches, dashes, strict=False):
        if match[0] == "-" and dash != "-":
            mark = dash
            if dash in {"—", "―"} and primary_language(language) == "de":
                mark = "–" if target[match.start() - 1] in _ANY_SPACE else " – "
            result += [target[copied_to : match.start()], mark]
            copied_to = match.end()
    return "".join([*result, target[copied_to:]])
