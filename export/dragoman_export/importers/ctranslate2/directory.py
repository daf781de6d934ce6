"""Reads the directory of a model."""

from collections.abc import Sequence
from pathlib import Path

from dragoman_export.importers.ctranslate2.binary import NUM_HEADS, Binary
from dragoman_export.importers.ctranslate2.languages import find_languages, find_pair, find_tags, with_bos
from dragoman_export.importers.ctranslate2.network import Network
from dragoman_export.importers.ctranslate2.text import (
    SpecialTokens,
    find_token,
    read_settings,
    read_vocabularies,
    sources_end_with_eos,
)
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.language_tags import WantedLanguages
from dragoman_export.importers.portable import ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies


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
    known = find_tags(vocabularies, learned)
    tags = find_pair(vocabularies, wanted, known, directory)
    languages = None if any(tags) else find_languages(wanted, known, directory)
    is_known = is_marian or languages is not None or any(tags)
    has_eos = sources_end_with_eos(tokens, source_eos, vocabularies, directory, is_known=is_known)
    bos = (find_token(vocabularies.source, tokens.bos, directory),) if tokens.adds_bos else ()
    return Network(variables, vocabularies, epsilon).imported(
        spm,
        source_prefix=() if languages else (*bos, *tags[0]),
        target_prefix=tags[1],
        languages=languages and with_bos(languages, bos),
        source_suffix=None if has_eos else (),
    )
