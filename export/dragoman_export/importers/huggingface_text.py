"""Reads the tokenizers of Hugging Face transformers: SentencePiece and byte-level BPE."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import ForeignConfig, read_json, read_plain
from dragoman_export.importers.language_tags import (
    WantedLanguages,
    languages_of_source_tags,
    languages_of_tags,
    shortened,
)
from dragoman_export.importers.portable import TokenizerDescription, TokenizerFiles
from dragoman_service.bundle.manifest import Languages

Pieces = tuple[str | None, ...]  # spelling of each token by id; None: never in a text
_PIECES_NAME, _SOURCE_PIECES_NAME, _SOURCE_MODEL_NAME = "pieces.json", "source_pieces.json", "source.spm"

# keys of `tokenizer_config.json` without effect on token ids
_HARMLESS: Final = (
    *("tokenizer_class", "name_or_path", "special_tokens_map_file", "tokenizer_file", "backend", "is_local"),
    *("local_files_only", "model_max_length", "src_lang", "tgt_lang", "source_lang", "target_lang"),
    *("target_vocab_file", "language_codes"),
    *("clean_up_tokenization_spaces", "return_tensors", "padding_side", "truncation_side", "processor_class"),
    *("num_madeup_words", "additional_special_tokens", "extra_special_tokens", "unk_id", "vocab", "model_type"),
)
# spelling of special tokens in all of these models
_SPECIAL: Final = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
# languages of M2M-100 by id; its files do not contain them
_LANGUAGES: Final = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Tokenizer of a converted model."""

    model: bytes  # SentencePiece model of targets, or merges of byte-level BPE
    model_name: str = "target.spm"
    source_model: bytes | None = None  # of sources; None: the same
    pieces: Pieces
    source_pieces: Pieces | None = None  # of sources; None: the same
    source_prefix: tuple[int, ...] = field(default=())
    target_prefix: tuple[int, ...] = field(default=())
    languages: Languages | None = None  # of a multilingual model, instead of the prefixes
    source_suffix: tuple[int, ...] | None = None  # None: EOS

    def files(self) -> TokenizerFiles:
        """Return the files of the tokenizer; equal content of both sides is one file."""
        contents = {self.model_name: self.model, _PIECES_NAME: _dumped(self.pieces)}
        if self.source_model is not None and self.source_model != self.model:
            contents[_SOURCE_MODEL_NAME] = self.source_model
        if self.source_pieces is not None and self.source_pieces != self.pieces:
            contents[_SOURCE_PIECES_NAME] = _dumped(self.source_pieces)
        description = TokenizerDescription(
            model=self.model_name,
            source_model=_SOURCE_MODEL_NAME if _SOURCE_MODEL_NAME in contents else None,
            pieces=_PIECES_NAME,
            source_pieces=_SOURCE_PIECES_NAME if _SOURCE_PIECES_NAME in contents else None,
            source_prefix=self.source_prefix,
            target_prefix=self.target_prefix,
            languages=self.languages,
            source_suffix=self.source_suffix,
        )
        return TokenizerFiles(description=description, files=contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """Arguments of a tokenizer reader."""

    directory: Path
    settings: ForeignConfig  # `tokenizer_config.json`
    vocabulary_size: int
    source_vocabulary_size: int
    wanted: WantedLanguages

    def finish(self, *, adds_space: bool = True) -> None:
        """Check the special tokens and reject unread settings; ImportFormatError names the setting.

        Args:
            adds_space: whether the tokenizer adds a space before a text.
        """
        for key, spelling in _SPECIAL.items():
            if _content(self.settings.take_optional(key, object)) not in (None, spelling):
                raise ImportFormatError(f"{self.settings.path}: {key}: expected {spelling!r}")
        self.settings.require("sp_model_kwargs", {})
        self.settings.require("add_bos_token", False)
        self.settings.require("add_prefix_space", adds_space)
        self.settings.finish(_HARMLESS)


def read_bart(request: TextRequest) -> Text:
    """Read byte-level BPE from `tokenizer.json`, or from `vocab.json` and `merges.txt`; sources start with `<s>`."""
    directory, settings = request.directory, request.settings
    if (directory / "tokenizer.json").exists():
        vocabulary, merges = _byte_level_model(directory / "tokenizer.json")
    else:
        vocabulary = read_json(directory / "vocab.json")
        lines = read_plain(directory / "merges.txt").decode(errors="replace").splitlines()
        merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    for key, value in (("errors", "replace"), ("trim_offsets", True)):
        settings.require(key, value)
    pieces = _by_id({**vocabulary, **_added_tokens(directory, settings)}, directory, request.vocabulary_size)
    request.finish(adds_space=False)
    if "<s>" not in pieces:
        raise ImportFormatError(f"{directory}: the vocabulary has no <s>")
    wanted = request.wanted
    if wanted != WantedLanguages():
        raise ImportFormatError(f"{directory}: models of this type have no language tags")
    return Text(
        model=(json.dumps(merges, ensure_ascii=False) + "\n").encode(),
        model_name="merges.json",
        pieces=pieces,
        source_prefix=(pieces.index("<s>"),),
    )


def _byte_level_model(path: Path) -> tuple[dict[str, Any], list[list[str]]]:
    # Vocabulary and merges of a `tokenizer.json` with nothing but byte-level BPE.
    fields = read_json(path)
    model, splitter = fields.get("model"), fields.get("pre_tokenizer")
    if not isinstance(model, dict) or not isinstance(splitter, dict):
        raise ImportFormatError(f"{path}: model or pre_tokenizer is not an object")
    expected = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if fields.get("normalizer") is not None or {"use_regex": True, **splitter} != expected:
        raise ImportFormatError(f"{path}: normalizer or pre_tokenizer is not that of byte-level BPE")
    settings = ForeignConfig(path, model)
    settings.require("type", "BPE")
    for key in ("dropout", "unk_token"):
        settings.require(key)
    for key, neutral in (("continuing_subword_prefix", ""), ("end_of_word_suffix", "")):
        settings.require(key, neutral)
    for key in ("fuse_unk", "byte_fallback", "ignore_merges"):
        settings.require(key, False)
    vocabulary, merges = settings.take("vocab", dict), settings.take("merges", list)
    settings.finish()
    return vocabulary, [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]


def read_marian(request: TextRequest) -> Text:
    """Read `source.spm`, `target.spm` and one or two vocabularies.

    A model with tags of target languages, such as `>>deu<<`, requires one of them.
    """
    directory, settings = request.directory, request.settings
    is_separate = settings.take("separate_vocabs", bool, default=False)
    settings.ignore(["added_tokens_decoder"])  # ids of special tokens are in vocab.json
    source = _by_id(read_json(directory / "vocab.json"), directory / "vocab.json", request.source_vocabulary_size)
    target = (
        _by_id(read_json(directory / "target_vocab.json"), directory / "target_vocab.json", request.vocabulary_size)
        if is_separate
        else source
    )
    own_source = settings.take("source_lang", str, default="")
    prefix, languages = read_source_tags(source, request.wanted, directory, own_source=own_source)
    request.finish()
    models = [read_plain(directory / f"{side}.spm") for side in ("source", "target")]
    return Text(
        model=models[1],
        source_model=models[0],
        pieces=target,
        source_pieces=source,
        source_prefix=prefix,
        languages=languages,
    )


def read_source_tags(
    source: Pieces, wanted: WantedLanguages, directory: Path, *, own_source: str = ""
) -> tuple[tuple[int, ...], Languages | None]:
    """Return the prefix of sources for the wanted pair, or the languages of a model with tags such as `>>deu<<`."""
    tags = {piece: i for i, piece in enumerate(source) if piece and piece.startswith(">>") and piece.endswith("<<")}
    if wanted.source_tag is not None:
        raise ImportFormatError(f"{directory}: models of this type have no source language tags")
    if wanted.target_tag is not None:
        return (_find_tag(tags, wanted.target_tag, directory),), None
    if not (tags or wanted.sources or wanted.targets):
        return (), None
    names = {tag.strip("><"): token_id for tag, token_id in tags.items()}
    return (), languages_of_source_tags(wanted, names, directory, own_source=own_source)


def read_m2m100(request: TextRequest) -> Text:
    """Read `sentencepiece.bpe.model` and `vocab.json`; language tags follow the pieces."""
    directory, settings = request.directory, request.settings
    languages = settings.take("language_codes", str, default="m2m100")
    if languages not in _LANGUAGES:
        raise ImportFormatError(f"{settings.path}: language_codes is {languages!r}: expected {', '.join(_LANGUAGES)}")
    settings.ignore(["added_tokens_decoder"])
    pieces = list(_by_id(read_json(directory / "vocab.json"), directory / "vocab.json", request.vocabulary_size))
    first = 1 + max(token_id for token_id, piece in enumerate(pieces) if piece is not None)
    tags = [f"__{language}__" for language in _LANGUAGES[languages].split()]
    if first + len(tags) > len(pieces):
        raise ImportFormatError(f"{directory}: too few embeddings for {len(tags)} language tags from id {first}")
    pieces[first : first + len(tags)] = tags
    request.finish()
    return _tagged(request, tuple(pieces), {tag: first + index for index, tag in enumerate(tags)}, spelled="__{}__")


def read_fairseq(request: TextRequest) -> Text:
    """Read `sentencepiece.bpe.model` with fairseq's special tokens; its ids are shifted by one.

    Language tags are the added tokens of `tokenizer.json`, `tokenizer_config.json` or `added_tokens.json`.
    """
    directory, settings = request.directory, request.settings
    settings.require("legacy_behaviour", False)  # otherwise sources end with their language tag instead of </s>
    added = _added_tokens(directory, settings)
    own = own_pieces(read_plain(directory / "sentencepiece.bpe.model"), directory / "sentencepiece.bpe.model")
    if own[:3] != ["<unk>", "<s>", "</s>"]:
        raise ImportFormatError(f"{directory}: sentencepiece.bpe.model starts with {own[:3]}: not a fairseq model")
    pieces: list[str | None] = ["<s>", "<pad>", "</s>", "<unk>", *own[3:]]
    if len(pieces) > request.vocabulary_size:
        raise ImportFormatError(f"{directory}: {len(pieces)} pieces exceed {request.vocabulary_size} embeddings")
    pieces += [None] * (request.vocabulary_size - len(pieces))
    for piece, token_id in added.items():
        if token_id >= len(pieces) or pieces[token_id] not in (None, piece):
            raise ImportFormatError(f"{directory}: added token {piece!r} has id {token_id}, which is used or too large")
        pieces[token_id] = piece
    request.finish()
    return _tagged(request, tuple(pieces), added, spelled="{}")


def _tagged(request: TextRequest, pieces: Pieces, tags: Mapping[str, int], *, spelled: str) -> Text:
    # Text of a multilingual model with language tags and one SentencePiece model.
    wanted, directory = request.wanted, request.directory
    model = read_plain(directory / "sentencepiece.bpe.model")
    pair = {"source": wanted.source_tag, "target": wanted.target_tag}
    if not any(pair.values()):
        names = {tag.strip("_"): token_id for tag, token_id in tags.items()}
        return Text(model=model, pieces=pieces, languages=languages_of_tags(wanted, names, names, directory))
    prefixes = []
    for side, tag in pair.items():
        if tag is None:
            raise ImportFormatError(f"{directory} is multilingual: give --{side}-tag as well")
        prefixes.append(_find_tag(tags, tag if tag in tags else spelled.format(tag), directory))
    return Text(model=model, pieces=pieces, source_prefix=(prefixes[0],), target_prefix=(prefixes[1],))


def _find_tag(tags: Mapping[str, int], tag: str, directory: Path) -> int:
    if tag not in tags:
        raise ImportFormatError(f"{directory} has no tag {tag!r}; available: {shortened(tags)}")
    return tags[tag]


def _by_id(ids: Mapping[str, Any], path: Path, size: int) -> Pieces:
    pieces: list[str | None] = [None] * size
    for piece, token_id in ids.items():
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < size:
            raise ImportFormatError(f"{path}: the id of {piece!r} is {token_id!r}: expected 0 to {size - 1}")
        if pieces[token_id] is not None:
            raise ImportFormatError(f"{path}: {piece!r} and {pieces[token_id]!r} have the same id {token_id}")
        pieces[token_id] = piece
    return tuple(pieces)


def _added_tokens(directory: Path, settings: ForeignConfig) -> dict[str, int]:
    # Added tokens by spelling; all files must agree.
    places: list[Sequence[tuple[Any, Any]]] = []
    decoder = settings.take("added_tokens_decoder", dict, default={})
    places.append([(_content(token), int(token_id)) for token_id, token in decoder.items() if str(token_id).isdigit()])
    if (directory / "tokenizer.json").exists():
        tokens = read_json(directory / "tokenizer.json").get("added_tokens") or []
        places.append([(token.get("content"), token.get("id")) for token in tokens if isinstance(token, dict)])
    if (directory / "added_tokens.json").exists():
        places.append(list(read_json(directory / "added_tokens.json").items()))
    added: dict[str, int] = {}
    for piece, token_id in (pair for place in places for pair in place):
        if not isinstance(piece, str) or not isinstance(token_id, int) or token_id < 0:
            raise ImportFormatError(f"{directory}: invalid added token {piece!r} with id {token_id!r}")
        if added.setdefault(piece, token_id) != token_id:
            raise ImportFormatError(f"{directory}: added token {piece!r} has ids {added[piece]} and {token_id}")
    return added


def own_pieces(model: bytes, path: Path) -> list[str]:
    """Return the pieces of a SentencePiece model by id; ImportFormatError if it is damaged."""
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ImportFormatError(f"{path} is not a SentencePiece model") from error
    return [str(processor.IdToPiece(token_id)) for token_id in range(processor.GetPieceSize())]


def _content(token: object) -> object:
    return token.get("content") if isinstance(token, dict) else token


def _dumped(pieces: Pieces) -> bytes:
    return (json.dumps(pieces, ensure_ascii=False) + "\n").encode()
