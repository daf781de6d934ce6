"""Names of languages from Unicode CLDR (the package Babel), for the language lists of vendor APIs.

The first call imports Babel and reads its English data, about 30 ms. Names in another language take a few milliseconds
per language, so list many languages in a thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

_NUM_CACHED = 4096
_ENGLISH = "en"


@lru_cache(maxsize=_NUM_CACHED)
def language_name(tag: str, *, locale: str = _ENGLISH) -> str:
    """Return the name of a language: `Portuguese (Brazil)` for `pt-BR`.

    Args:
        tag: language tag of a model, such as `de`, `zh-Hans` or `eng_Latn`.
        locale: tag of the language of the name. The name is English if CLDR has no name in that language.

    Returns:
        The name, or the tag itself if CLDR has no name of the language.
    """
    parts = _parts(tag)
    if parts is None:
        return tag
    names = _names(locale)
    language = names.languages.get(parts.language)
    if language is None:
        return tag if locale == _ENGLISH else language_name(tag)
    details = [parts.script and names.scripts.get(parts.script, parts.script)]
    details.append(parts.territory and names.territories.get(parts.territory, parts.territory))
    shown = ", ".join(filter(None, details))
    return f"{language} ({shown})" if shown else language


def native_language_name(tag: str) -> str:
    """Return the name of a language in that language."""
    return language_name(tag, locale=tag)


def dialect_name(tag: str) -> str:
    """Return the English name of a language with its dialect as an adjective: `Portuguese (Brazilian)` for `pt-BR`."""
    parts = _parts(tag)
    if parts is None:
        return tag
    languages = _names(_ENGLISH).languages
    language = languages.get(parts.language, "")
    dialect = languages.get(f"{parts.language}_{parts.territory or parts.script}", "")
    adjective = dialect.removesuffix(f" {language}")
    return f"{language} ({adjective})" if adjective != dialect else language_name(tag)


@lru_cache(maxsize=_NUM_CACHED)
def is_right_to_left(tag: str) -> bool:
    """Return whether a language is written from right to left; False if CLDR does not contain it."""
    return _names(tag).is_right_to_left


@dataclass(frozen=True, slots=True)
class _Parts:
    language: str
    script: str
    territory: str


@dataclass(frozen=True, slots=True)
class _Names:
    """Names by code, in one language."""

    languages: Mapping[str, str]
    scripts: Mapping[str, str]
    territories: Mapping[str, str]
    is_right_to_left: bool


@lru_cache(maxsize=_NUM_CACHED)
def _parts(tag: str) -> _Parts | None:
    """Return the parts of a tag in CLDR's spelling, empty if absent; None if it is not a language tag."""
    from babel.core import get_global, parse_locale  # noqa: PLC0415 - imported for the first list of languages

    try:
        language, territory, script, *_ = parse_locale(tag.partition("@")[0].replace("-", "_"))
    except ValueError:
        return None
    if language not in _english().languages:
        aliases: Mapping[str, str] = get_global("language_aliases")  # for example, `eng` is an alias of `en`
        language = aliases.get(language, language).partition("_")[0]
    return _Parts(language, script or "", territory or "")


def _names(tag: str) -> _Names:
    """Return the names in a language, in English if CLDR has none in it."""
    parts = None if tag == _ENGLISH else _parts(tag)
    if parts is None or parts.language == _ENGLISH:
        return _english()
    identifier = f"{parts.language}_{parts.script}"
    return _read(identifier if parts.script else parts.language) or _read(parts.language) or _english()


@cache
def _english() -> _Names:
    names = _read(_ENGLISH)
    if names is None:
        raise RuntimeError("Babel has no English data")
    return names


def _read(identifier: str) -> _Names | None:
    """Return the names in a locale of CLDR; None if the locale does not exist."""
    from babel import Locale, UnknownLocaleError, localedata  # noqa: PLC0415 - imported for the first list of languages

    try:
        locale = Locale.parse(identifier, resolve_likely_subtags=False)
    except (ValueError, UnknownLocaleError):
        return None
    names = _Names(
        locale.languages, locale.scripts, locale.territories, is_right_to_left=locale.character_order == "right-to-left"
    )
    localedata._cache.pop(identifier, None)  # Babel caches about 0.5 MB per locale; results are cached here instead
    return names
