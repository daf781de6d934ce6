"""Unicode scripts of letters and languages."""

import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

_LATIN: Final = frozenset({"LATIN"})

# Languages by script. A language that is not listed is written only in Latin letters.
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
# Script subtags (ISO 15924) that select one of several scripts of a language.
_SUBTAGS: Final = {"latn": "LATIN", "cyrl": "CYRILLIC", "arab": "ARABIC", "deva": "DEVANAGARI"}

_WIDTHS: Final = {"FULLWIDTH", "HALFWIDTH"}
_ALIASES: Final = {"IDEOGRAPHIC": "CJK", "BOPOMOFO": "CJK"}
# Decompositions of mathematical letters and of emoji such as INFORMATION SOURCE.
_NOTATION: Final = ("<font>", "<super>", "<sub>")


@lru_cache(maxsize=16_384)
def script_of(character: str) -> str | None:
    """Return the script of a letter as in its Unicode name, such as `LATIN`; None for any other character."""
    if not character.isalpha() or unicodedata.decomposition(character).startswith(_NOTATION):
        return None
    words = unicodedata.name(character, "UNKNOWN").replace("-", " ").split()
    if words[0] in _WIDTHS:
        words = words[1:]
    if words[0] == "MODIFIER":  # such as the Ukrainian apostrophe
        return None
    return _ALIASES.get(words[0], words[0])


@lru_cache
def language_scripts(language: str) -> frozenset[str]:
    """Return the scripts of a language, given by its label in py3langid."""
    return frozenset(script for script, languages in _LANGUAGES.items() if language in languages.split()) or _LATIN


def tag_scripts(tag: str, language: str) -> frozenset[str]:
    """Return the scripts of a BCP-47 tag of a language; a known script subtag selects one."""
    chosen = {_SUBTAGS[subtag] for subtag in tag.lower().split("-")[1:] if subtag in _SUBTAGS}
    return frozenset(chosen) or language_scripts(language)
