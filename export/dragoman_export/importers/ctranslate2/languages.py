"""The languages of a model of many, by the tags among its tokens."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.text import find_token
from dragoman_export.importers.language_tags import WantedLanguages, languages_of_source_tags, languages_of_tags
from dragoman_export.importers.vocabulary_text import Vocabularies
from dragoman_service.bundle.manifest import Languages

_SOURCE_TAGS: Final = ">>deu<<"
_TAGS: Final = {
    _SOURCE_TAGS: re.compile(r">>(\S+)<<"),
    "__de__": re.compile(r"__([a-z]{2,3})__"),
    "deu_Latn": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "de_DE": re.compile(r"([a-z]{2}_[A-Z]{2})"),
}
"""Tokens that tell a language, and its name in them: those of Marian (sources begin with that of the target), M2M-100,
NLLB and mBART-50 (both sides begin with their own)."""

Tags = Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]
"""By kind, ids of the tags that the vocabularies of sources and of targets have, by the names of the languages."""


def find_tags(vocabularies: Vocabularies, learned: Collection[str]) -> Tags:
    """Return what may be tags of languages; pieces that were learned from texts are none, whatever they look like."""
    found = {
        kind: (_matches(pattern, vocabularies.source, learned), _matches(pattern, vocabularies.target, learned))
        for kind, pattern in _TAGS.items()
    }
    return {kind: sides for kind, sides in found.items() if sides[0]}


def _matches(pattern: re.Pattern[str], pieces: Sequence[str | None], learned: Collection[str]) -> dict[str, int]:
    others = ((piece, token_id) for token_id, piece in enumerate(pieces) if piece and piece not in learned)
    matches = ((pattern.fullmatch(piece), token_id) for piece, token_id in others)
    return {match[1]: token_id for match, token_id in matches if match}


def find_pair(
    vocabularies: Vocabularies, wanted: WantedLanguages, known: Tags, directory: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the tags that sources and targets of one pair begin with, empty if none is wanted."""
    sources, targets = vocabularies.source, vocabularies.target
    source, target = _spelled(wanted.source_tag, sources), _spelled(wanted.target_tag, targets)
    if target is not None and target.startswith(">>") and source is None:
        return (find_token(sources, target, directory),), ()
    if source is not None and target is not None:
        return (find_token(sources, source, directory),), (find_token(targets, target, directory),)
    if source is not None or target is not None:
        ids = {token_id for tags, _ in known.values() for token_id in tags.values()}
        some = ", ".join(str(sources[token_id]) for token_id in sorted(ids)[:8]) or "no tags"
        raise ImportFormatError(f"{directory}: give the tags of source and target language; the vocabulary has {some}")
    return (), ()


def find_languages(wanted: WantedLanguages, known: Tags, directory: Path) -> Languages | None:
    """Return the languages of a model of many, None if it is one of one pair; ImportFormatError if that is unclear."""
    named = {*wanted.sources, *wanted.targets}
    kinds = list(known)
    if len(kinds) > 1:
        kinds = [kind for kind in kinds if named and named <= {*known[kind][0], *known[kind][1]}] or kinds
    if len(kinds) > 1:
        raise ImportFormatError(
            f"{directory}: tokens such as {' and '.join(kinds)} may be the tags of languages: give --source-languages "
            "and --target-languages as those that are spell them (de, deu_Latn, de_DE), or the tags of one pair"
        )
    if not named and (not kinds or len(known[kinds[0]][0]) == 1):
        return None
    if not kinds or kinds[0] == _SOURCE_TAGS:
        return languages_of_source_tags(wanted, known[kinds[0]][0] if kinds else {}, directory)
    return languages_of_tags(wanted, *known[kinds[0]], directory)


def with_bos(languages: Languages, bos: tuple[int, ...]) -> Languages:
    """Return languages whose sources begin with BOS before their tags, if there is any."""
    return languages.model_copy(update={"sources": {tag: (*bos, *ids) for tag, ids in languages.sources.items()}})


def _spelled(tag: str | None, pieces: Sequence[str | None]) -> str | None:
    return next((each for each in (f"__{tag}__", f">>{tag}<<", tag) if each in pieces), tag) if tag else None
