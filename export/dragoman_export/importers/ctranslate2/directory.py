"""Imports the directory of a CTranslate2 model, and finds its languages by the tags in its vocabulary."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.binary import NUM_HEADS, Binary
from dragoman_export.importers.ctranslate2.network import Network
from dragoman_export.importers.ctranslate2.text import (
    SpecialTokens,
    find_token,
    read_settings,
    read_vocabularies,
    sources_end_with_eos,
)
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.language_tags import WantedLanguages, languages_of_source_tags, languages_of_tags
from dragoman_export.importers.portable import ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies
from dragoman_service.bundle.manifest import Languages

_SOURCE_TAGS: Final = ">>deu<<"
# patterns of language tags, by example: Marian (sources start with the target's tag), M2M-100, NLLB and mBART-50 (both
# sides start with their own tag)
_TAGS: Final = {
    _SOURCE_TAGS: re.compile(r">>(\S+)<<"),
    "__de__": re.compile(r"__([a-z]{2,3})__"),
    "deu_Latn": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "de_DE": re.compile(r"([a-z]{2}_[A-Z]{2})"),
}
# by pattern, token ids of the tags of sources and of targets, by language name
Tags = Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]


def read_ctranslate2(
    directory: Path,
    *,
    source_spm: Path | None = None,
    target_spm: Path | None = None,
    source_tag: str | None = None,
    target_tag: str | None = None,
    source_languages: Sequence[str] | None = None,
    target_languages: Sequence[str] | None = None,
    source_eos: str | None = None,
) -> ImportedModel:
    """Import a directory written by a CTranslate2 converter, with a SentencePiece model.

    The arguments are those of `dragoman export import`. Raises ImportFormatError if a part is missing or unsupported.
    """
    wanted = WantedLanguages.of(source_tag, target_tag, source_languages, target_languages)
    path = directory / "model.bin"
    binary = Binary.read(path)
    variables = Variables(binary.tensors, path, revision=binary.revision)
    variables.default_num_heads = NUM_HEADS[binary.spec]
    settings = read_settings(directory, variables, binary.version)
    tokens = SpecialTokens.take(settings)
    epsilon = settings.take_optional("layer_norm_epsilon", float)
    settings.ignore(["multi_query_attention"])  # visible in the shapes
    settings.finish()
    lists = read_vocabularies(directory, tokens.unk)
    is_marian = bool(variables.attribute("decoder/start_from_zero_embedding", 0))
    start = None if is_marian else tokens.start
    vocabularies = Vocabularies.fitted(*lists, eos=tokens.eos, unk=tokens.unk, start=start, origin=directory)
    spm = SentencePieceFiles.find(directory, source_spm, target_spm)
    learned = spm.check((vocabularies.source, vocabularies.target))
    known = _find_tags(vocabularies, learned)
    tags = _find_pair(vocabularies, wanted, known, directory)
    languages = None if any(tags) else _find_languages(wanted, known, directory)
    reason = "model of Marian" if is_marian else "model with language tags" if languages or any(tags) else ""
    has_eos = sources_end_with_eos(tokens, source_eos, vocabularies, settings.path, reason=reason)
    bos = (find_token(vocabularies.source, tokens.bos, directory),) if tokens.adds_bos else ()
    if languages:
        sources = {tag: (*bos, *ids) for tag, ids in languages.sources.items()}
        languages = languages.model_copy(update={"sources": sources})
    return Network(variables, vocabularies, epsilon).imported(
        spm,
        source_prefix=() if languages else (*bos, *tags[0]),
        target_prefix=tags[1],
        languages=languages,
        source_suffix=None if has_eos else (),
    )


def _find_tags(vocabularies: Vocabularies, learned: Collection[str]) -> Tags:
    # Returns possible language tags; pieces learned from text are excluded.
    found = {
        kind: (_matches(pattern, vocabularies.source, learned), _matches(pattern, vocabularies.target, learned))
        for kind, pattern in _TAGS.items()
    }
    return {kind: sides for kind, sides in found.items() if sides[0]}


def _matches(pattern: re.Pattern[str], pieces: Sequence[str | None], learned: Collection[str]) -> dict[str, int]:
    others = ((piece, token_id) for token_id, piece in enumerate(pieces) if piece and piece not in learned)
    matches = ((pattern.fullmatch(piece), token_id) for piece, token_id in others)
    return {match[1]: token_id for match, token_id in matches if match}


def _find_pair(
    vocabularies: Vocabularies, wanted: WantedLanguages, known: Tags, directory: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    # Returns the ids of the prefix tags of sources and targets of one pair; empty if none is requested.
    sources, targets = vocabularies.source, vocabularies.target
    source, target = _spelled(wanted.source_tag, sources), _spelled(wanted.target_tag, targets)
    if target is not None and target.startswith(">>") and source is None:
        return (find_token(sources, target, directory),), ()
    if source is not None and target is not None:
        return (find_token(sources, source, directory),), (find_token(targets, target, directory),)
    if source is not None or target is not None:
        ids = {token_id for tags, _ in known.values() for token_id in tags.values()}
        some = ", ".join(str(sources[token_id]) for token_id in sorted(ids)[:8]) or "no tags"
        raise ImportFormatError(f"{directory}: give the tags of both source and target language; available: {some}")
    return (), ()


def _find_languages(wanted: WantedLanguages, known: Tags, directory: Path) -> Languages | None:
    # Returns the languages of a multilingual model, None for one pair; ImportFormatError if ambiguous.
    named = {*wanted.sources, *wanted.targets}
    kinds = list(known)
    if len(kinds) > 1:
        kinds = [kind for kind in kinds if named and named <= {*known[kind][0], *known[kind][1]}] or kinds
    if len(kinds) > 1:
        raise ImportFormatError(
            f"{directory}: ambiguous language tags ({' and '.join(kinds)}): give --source-languages "
            "and --target-languages as the tags spell them (de, deu_Latn, de_DE), or the tags of one pair"
        )
    if not named and (not kinds or len(known[kinds[0]][0]) == 1):
        return None
    if not kinds or kinds[0] == _SOURCE_TAGS:
        return languages_of_source_tags(wanted, known[kinds[0]][0] if kinds else {}, directory)
    return languages_of_tags(wanted, *known[kinds[0]], directory)


def _spelled(tag: str | None, pieces: Sequence[str | None]) -> str | None:
    # Returns a tag as the vocabulary spells it; the tag itself if it is unknown.
    return next((each for each in (f"__{tag}__", f">>{tag}<<", tag) if each in pieces), tag) if tag else None
