"""Language tags (BCP 47): their aliases and likely scripts by Unicode CLDR, and their match with the tags of models."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from dragoman_service.errors import InvalidFieldError

LANGUAGE_TAG_PATTERN: Final = r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*"  # regular expression of a language tag

_LANGUAGE_TAG: Final = re.compile(LANGUAGE_TAG_PATTERN)
_SHOWN_CHARACTERS: Final = 40
_NUM_CACHED: Final = 4096
_SCRIPT: Final = re.compile(r"[a-z]{4}")
_REGION: Final = re.compile(r"[a-z]{2}|[0-9]{3}")

# CLDR treats `no` as the parent of `nb`; models and clients use both for Bokmål.
_MACROLANGUAGES: Final = {"nb": "no"}


@dataclass(frozen=True, slots=True)
class LanguageTag:
    """Subtags in lower case, empty if absent. Aliases of the language are replaced: `iw` becomes `he`."""

    language: str
    script: str
    region: str
    others: tuple[str, ...] = ()  # variants and extensions

    @property
    def likely_script(self) -> str:
        """The script, or the likely one of language and region; empty if CLDR does not contain the language."""
        if self.script:
            return self.script
        likely: Mapping[str, str] = _cldr("likely_subtags")
        maximal = likely.get(f"{self.language}_{self.region.upper()}") or likely.get(self.language, "")
        return next((part.lower() for part in maximal.split("_")[1:] if len(part) == 4), "")

    @property
    def _num_subtags(self) -> int:
        return bool(self.script) + bool(self.region) + len(self.others)

    def _has_script_of(self, other: "LanguageTag") -> bool:
        scripts = self.likely_script, other.likely_script
        return scripts[0] == scripts[1] or "" in scripts

    def _resembles(self, other: "LanguageTag") -> bool:
        # Whether both have the same language and script, and this tag has no variant that the other one lacks.
        return (
            self.language == other.language
            and self._has_script_of(other)
            and self.others == other.others[: len(self.others)]
        )


def check_language_tag(field: str, tag: str) -> None:
    """Raise InvalidFieldError if a value is not a language tag."""
    if not _LANGUAGE_TAG.fullmatch(tag):
        raise InvalidFieldError(field, repr(tag[:_SHOWN_CHARACTERS]), "a BCP-47 tag, such as `en` or `pt-BR`")


@lru_cache(maxsize=_NUM_CACHED)
def primary_language(tag: str) -> str:
    """Return the language of a tag in lower case, without script and region."""
    return tag.partition("-")[0].lower()


@lru_cache(maxsize=_NUM_CACHED)
def parse_language_tag(tag: str) -> LanguageTag:
    """Return the subtags of a language tag."""
    parsed = _subtags(tag.lower().split("-"))
    aliases: Mapping[str, str] = _cldr("language_aliases")
    if alias := aliases.get(parsed.language):  # such as `sr_Latn` for `sh`
        meant = _subtags(alias.lower().split("_"))
        parsed = replace(
            parsed,
            language=meant.language,
            script=parsed.script or meant.script,
            region=parsed.region or meant.region,
        )
    return replace(parsed, language=_MACROLANGUAGES.get(parsed.language, parsed.language))


def matching_tags(tag: str, available: Iterable[str]) -> list[str]:
    """Return the available tags that a requested tag matches, the best first.

    In this order: the tag itself, its aliases, and tags with fewer subtags, such as `en` for `en-GB`. A tag without a
    region also matches the only tag with one, such as `pt-BR` for `pt`. The likely scripts must be equal: `zh-TW`
    matches `zh-Hant` and not `zh`.
    """
    requested = parse_language_tag(tag)
    broader: list[tuple[bool, bool, int, str]] = []
    regional: list[str] = []
    for other in available:
        parsed = parse_language_tag(other)
        if not parsed._resembles(requested):
            continue
        if parsed.region in ("", requested.region):
            broader.append((other.lower() != tag.lower(), parsed != requested, -parsed._num_subtags, other))
        elif not requested.region:
            regional.append(other)
    return [*(other for *_, other in sorted(broader)), *(regional if len(regional) == 1 else [])]


@lru_cache(maxsize=_NUM_CACHED)
def is_same_language(tag: str, other: str) -> bool:
    """Return whether one of two tags matches the other."""
    return bool(matching_tags(tag, (other,)) or matching_tags(other, (tag,)))


def _subtags(subtags: list[str]) -> LanguageTag:
    language, *rest = subtags
    script = rest.pop(0) if rest and _SCRIPT.fullmatch(rest[0]) else ""
    region = rest.pop(0) if rest and _REGION.fullmatch(rest[0]) else ""
    return LanguageTag(language, script, region, tuple(rest))


def _cldr(name: Literal["language_aliases", "likely_subtags"]) -> Any:
    from babel.core import get_global  # noqa: PLC0415 - imported for the first request

    return get_global(name)
