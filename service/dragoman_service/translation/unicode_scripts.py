"""Scripts of letters and of languages: which letters a language can be written in."""

import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

_LATIN: Final = frozenset({"LATIN"})

_LANGUAGES: Final[Mapping[str, str]] = {
    "ARABIC": "ar ary arz fa ku ps sd sdh ug ur uzs",
    "ARMENIAN": "hy",
    "BENGALI": "as bn",
    "CJK": "ja wuu yue zh",
    "CYRILLIC": "az ba be bg bs crh kk ky mk mn ru sr tg tk tt uk uz",
    "DEVANAGARI": "gom hi mr ne sa",
    "ETHIOPIC": "am",
    "GEORGIAN": "ka",
    "GREEK": "el grc",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "hbo he",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": "az bs crh gom ku sr tk uz",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "ORIYA": "or",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "dz",
}
"""Languages by script. A language that is not listed is written in Latin letters alone."""

_SUBTAGS: Final = {"latn": "LATIN", "cyrl": "CYRILLIC", "arab": "ARABIC", "deva": "DEVANAGARI"}
"""Script subtags (ISO 15924) that choose one of several scripts of a language."""

_WIDTHS: Final = {"FULLWIDTH", "HALFWIDTH"}
_ALIASES: Final = {"IDEOGRAPHIC": "CJK", "BOPOMOFO": "CJK"}
_NOTATION: Final = ("<font>", "<super>", "<sub>")
"""Decompositions of letters of notation, such as MATHEMATICAL BOLD CAPITAL A, and of the emoji INFORMATION SOURCE."""


@lru_cache(maxsize=16_384)
def script_of(character: str) -> str | None:
    """Return the script of a letter, as in the names of Unicode (`LATIN`); None for any other character."""
    if not character.isalpha() or unicodedata.decomposition(character).startswith(_NOTATION):
        return None
    words = unicodedata.name(character, "UNKNOWN").replace("-", " ").split()
    if words[0] in _WIDTHS:
        words = words[1:]
    if words[0] == "MODIFIER":  # such as the apostrophe of Ukrainian: of no script
        return None
    return _ALIASES.get(words[0], words[0])


@lru_cache
def language_scripts(language: str) -> frozenset[str]:
    """Return the scripts that a language, by its label in py3langid, can be written in."""
    return frozenset(script for script, languages in _LANGUAGES.items() if language in languages.split()) or _LATIN


def tag_scripts(tag: str, language: str) -> frozenset[str]:
    """Return the scripts of a BCP-47 tag of a language; a script subtag that is known chooses one."""
    chosen = {_SUBTAGS[subtag] for subtag in tag.lower().split("-")[1:] if subtag in _SUBTAGS}
    return frozenset(chosen) or language_scripts(language)
