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
from dragoman_export.importers.huggingface_text import Text
from dragoman_export.importers.language_tags import WantedLanguages
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies
from dragoman_service.bundle.architecture import Limits


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
    """Read a directory that a converter of CTranslate2 wrote.

    Args:
        directory: with `model.bin`, the vocabularies and, from version 6 of the format on, `config.json`.
        source_spm: SentencePiece model of sources; None: `source.spm`, or the only one, in the directory.
        target_spm: the same of targets.
        source_tag: language of sources as the vocabulary spells it, for one pair of a model of many languages.
        target_tag: the same of targets.
        source_languages: those translated from by a model of many, as BCP-47 tags or as the vocabulary spells them;
            None: all that it has tags of.
        target_languages: the same of those translated into.
        source_eos: `yes` or `no`: whether sources end with EOS, where the directory leaves that to its caller.

    Raises:
        ImportFormatError: naming what is missing or cannot be imported.
    """
    wanted = WantedLanguages.of(source_tag, target_tag, source_languages, target_languages)
    path = directory / "model.bin"
    binary = Binary.read(path)
    variables = Variables(binary.tensors, path, revision=binary.revision)
    variables.default_num_heads = NUM_HEADS[binary.spec]
    settings = read_settings(directory, variables, binary.version)
    tokens = SpecialTokens.take(settings)
    epsilon = settings.take_optional("layer_norm_epsilon", float)
    settings.ignore(["multi_query_attention"])  # as the shapes say
    settings.finish()
    lists = read_vocabularies(directory, tokens.unk)
    is_marian = bool(variables.attribute("decoder/start_from_zero_embedding", 0))
    start = None if is_marian else tokens.start
    vocabularies = Vocabularies.fitted(*lists, eos=tokens.eos, unk=tokens.unk, start=start, origin=directory)
    spm = SentencePieceFiles.find(directory, source_spm, target_spm)
    learned = spm.check((vocabularies.source, vocabularies.target))
    models = spm.read()
    known = find_tags(vocabularies, learned)
    tags = find_pair(vocabularies, wanted, known, directory)
    languages = None if any(tags) else find_languages(wanted, known, directory)
    is_known = is_marian or languages is not None or any(tags)
    has_eos = sources_end_with_eos(tokens, source_eos, vocabularies, directory, is_known=is_known)
    bos = (find_token(vocabularies.source, tokens.bos, directory),) if tokens.adds_bos else ()
    network = Network(variables, vocabularies, epsilon)
    config = network.config()
    most = min(network.num_positions, MAX_TOKENS)
    return ImportedModel(
        config=config,
        limits=Limits(max_source_tokens=most, max_target_tokens=most),
        weights=network.weights,
        tokenizer=Text(
            model=models[1],
            source_model=models[0],
            pieces=vocabularies.target,
            source_pieces=vocabularies.source,
            source_prefix=() if languages else (*bos, *tags[0]),
            target_prefix=tags[1],
            languages=languages and with_bos(languages, bos),
            source_suffix=None if has_eos else (),
        ).files(),
    )
