"""Text to token ids and back, with the SentencePiece models or the byte-level BPE of a bundle."""

import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError
from sentencepiece import SentencePieceProcessor

from dragoman_service.bundle.files import Bundle, read_file
from dragoman_service.bundle.manifest import SpecialIds, Tokenization
from dragoman_service.errors import BundleError
from dragoman_service.text.byte_level_bpe import ByteLevelBpe

_MAX_BYTES = 64 << 20  # of a file; a piece with its score takes about 20 bytes

_Pieces = tuple[str | None, ...]
_PIECES: Final[TypeAdapter[_Pieces]] = TypeAdapter(_Pieces)

_NUM_CODE_POINTS: Final = sys.maxunicode + 1
_BYTE_PIECE: Final = re.compile(r"<0x[0-9A-F]{2}>")

_FILLER: Final = "\x7f"

_SPACE: Final = "▁"  # a space in SentencePiece

_ONE_MODEL: Final = Tokenization()


class _Vocabulary:
    # SentencePiece model of one side. `pieces` maps token ids to pieces if the ids differ from those of SentencePiece;
    # no text is encoded as one of the ids in `never`.
    is_byte_level = False

    def __init__(self, processor: Any, pieces: _Pieces | None, *, unk_id: int, never: Container[int]) -> None:
        self.processor = processor
        self.size: int = int(processor.GetPieceSize()) if pieces is None else len(pieces)
        self._pieces = pieces
        self._ids = {piece: i for i, piece in enumerate(pieces or ()) if piece is not None and i not in never}
        self._unk_id = unk_id

    def encode(self, text: str) -> list[int]:
        if self._pieces is None:
            return [int(token_id) for token_id in self.processor.EncodeAsIds(_utf8(text))]
        # A piece that this model lacks may be in the vocabulary as a piece of the other side.
        return [self._ids.get(piece, self._unk_id) for piece in self.processor.EncodeAsPieces(_utf8(text))]

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._pieces is None:
            return str(self.processor.DecodeIds(list(token_ids)))
        # A piece that only the model of the other side has is decoded as it is written.
        return str(self.processor.DecodePieces(self.pieces(token_ids))).replace(_SPACE, " ")

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        tokens = list(token_ids) if self._pieces is None else self.pieces(token_ids)
        decoded = self.processor.Decode(tokens, return_type="offset_mapping")
        text = str(decoded["text"])
        return text if self._pieces is None else text.replace(_SPACE, " "), [
            tuple(offset) for offset in decoded["offsets"]
        ]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        _utf8(text)
        return [tuple(offset) for offset in self.processor.EncodeAsOffsetMapping(text)["offsets"]]

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        if self._pieces is None:
            return [str(self.processor.IdToPiece(token_id)) for token_id in token_ids]
        return [self._pieces[token_id] or "" for token_id in token_ids]

    def find(self, piece: str) -> int | None:
        # Returns None or the unknown token if the piece does not exist.
        return int(self.processor.PieceToId(piece)) if self._pieces is None else self._ids.get(piece)

    def checked(self, token_ids: Sequence[int]) -> list[int]:
        for token_id in token_ids:
            if not 0 <= token_id < self.size:
                raise ValueError(f"token id {token_id} is outside the vocabulary of {self.size}")
        return [int(token_id) for token_id in token_ids]


class _ByteLevelVocabulary(_Vocabulary):
    is_byte_level = True

    def __init__(self, splitter: ByteLevelBpe, pieces: _Pieces, *, unk_id: int, never: Container[int]) -> None:
        super().__init__(None, pieces, unk_id=unk_id, never=never)
        self._splitter = splitter

    def encode(self, text: str) -> list[int]:
        _utf8(text)
        return [self._ids.get(piece, self._unk_id) for piece in self._splitter.split(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.decode_with_offsets(token_ids)[0]

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        return self._splitter.join_with_offsets(self.pieces(token_ids))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        _utf8(text)
        return self._splitter.offsets(text)


class SentencePieceTokenizer:
    """Tokenizer of one model: text to token ids and back. Thread-safe.

    SentencePiece normalizes text (most models: similar to NFKC, with white space collapsed). Characters without a piece
    are encoded in bytes, so that no visible character is lost; a model without byte fallback has the unknown token for
    them. Byte-level BPE, whose file is named `.json`, encodes every text unchanged. A lone surrogate or an id outside
    the vocabulary raises ValueError.
    """

    is_of_translations = True  # False for a fake model, whose answers are not compared with their sources

    def __init__(
        self, model_file: Path, tokenization: Tokenization = _ONE_MODEL, special_ids: SpecialIds | None = None
    ) -> None:
        """Load a SentencePiece model or the merges of byte-level BPE, and the other files of `tokenization`.

        Args:
            model_file: model of targets, and of sources unless these have their own.
            tokenization: see `dragoman_service.bundle.manifest.Tokenization`.
            special_ids: ids of the special tokens, if they differ from those of the SentencePiece model.

        Raises:
            BundleError: if a file cannot be read, is invalid, or lacks a special token.
        """
        processor = _load(model_file)
        special = special_ids or _special_ids(model_file, processor)
        of_sources, of_targets = tokenization.fixed_tokens()
        self._tokenization = tokenization
        self._without_text = of_targets.union((special.pad, special.bos, special.eos))

        def vocabulary(model: SentencePieceProcessor | ByteLevelBpe, pieces_name: str | None) -> _Vocabulary:
            pieces = None if pieces_name is None else _load_pieces(model_file.parent / pieces_name)
            never = self._without_text | of_sources
            if isinstance(model, ByteLevelBpe):
                return _ByteLevelVocabulary(model, pieces or (), unk_id=special.unk, never=never)
            return _Vocabulary(model, pieces, unk_id=special.unk, never=never)

        self._target = self._source = vocabulary(processor, tokenization.pieces)
        if tokenization.source_model is not None or tokenization.source_pieces is not None:
            source_model = tokenization.source_model
            model = processor if source_model is None else _load(model_file.parent / source_model)
            self._source = vocabulary(model, tokenization.source_pieces or tokenization.pieces)
        self.pad_id: int = special.pad
        self.bos_id: int = special.bos  # the first token of the decoder
        self.eos_id: int = special.eos
        self.unk_id: int = special.unk
        # Added to every source and target, but not by `encode`. Multilingual models: see `for_pair`.
        self.source_prefix: tuple[int, ...] = tokenization.source_prefix
        suffix = tokenization.source_suffix
        self.source_suffix: tuple[int, ...] = (special.eos,) if suffix is None else suffix
        self.target_prefix: tuple[int, ...] = tokenization.target_prefix
        self.placeholders: tuple[str, ...] = tokenization.placeholders  # pieces that the model is trained to copy
        self.reserved: tuple[str, ...] = tokenization.reserved  # pieces that no translation contains

        def ids_of(piece: str) -> tuple[int, int]:
            sides = (self._source, self._target)
            ids = [token_id for side in sides for token_id in side.encode(piece) if side.pieces([token_id]) == [piece]]
            if len(ids) != len(sides):
                found, expected = "several tokens", "one token"
                raise BundleError(str(model_file), found=found, expected=expected, what=f"reserved piece {piece}")
            return ids[0], ids[1]

        # Source and target token of each piece.
        self.placeholder_ids: tuple[tuple[int, int], ...] = tuple(map(ids_of, self.placeholders))
        self.reserved_ids: tuple[tuple[int, int], ...] = tuple(map(ids_of, self.reserved))
        # By source language: characters that are known to be read as they are, or mapped to such ones.
        self.readable: defaultdict[str, set[str]] = defaultdict(set)
        self._spelling = bytearray(_NUM_CODE_POINTS)  # by code point: 0 not known yet, 1 spelled, 2 not spelled
        self.vocabulary_size: int = self._target.size
        self.source_vocabulary_size: int = self._source.size

    def for_pair(self, source_language: str, target_language: str) -> Self:
        """Return the tokenizer with the prefixes of a language pair; KeyError if the model lacks a language."""
        of_pair = copy(self)
        of_pair.source_prefix, of_pair.target_prefix = self._tokenization.prefixes(source_language, target_language)
        return of_pair

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a source, without prefix and suffix; empty without visible characters."""
        return self._source.encode(text)

    @cached_property
    def filler(self) -> str:
        """A character that sources drop, also within a word; empty if there is none."""
        return _FILLER if self.encode(f"ab{_FILLER}c") == self.encode("abc") else ""

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Target tokens of single bytes."""
        ids = (self._target.find(f"<0x{value:02X}>") for value in range(256))
        return frozenset(token_id for token_id in ids if token_id is not None and token_id != self.unk_id)

    def spells(self, character: str) -> bool:
        """Return whether sources keep a character: it has pieces, and normalization does not replace it.

        A character that is encoded in bytes or as the unknown token is not spelled. Byte-level BPE spells every
        character. White space is always spelled.
        """
        index = ord(character)
        if not self._spelling[index]:
            self._spelling[index] = 1 if self._is_spelled(character) else 2
        return self._spelling[index] == 1

    def _is_spelled(self, character: str) -> bool:
        if self._source.is_byte_level or character.isspace():
            return True
        category = unicodedata.category(character)
        if category in {"Cc", "Cf", "Cs"}:  # normalization drops these
            return False
        if category[0] in {"S", "N"} and unicodedata.normalize("NFKC", character) != character:
            return False  # such as `²`, `™` or `½`, which become `2`, `TM` and `1/2`
        ids = self._source.encode(f"a{character}")  # a combining mark needs a letter
        if self.unk_id in ids:
            return False
        return not any(_BYTE_PIECE.fullmatch(piece) for piece in self._source.pieces(ids))

    def is_one_token(self, word: str) -> bool:
        """Return whether a word of a source is one token of the vocabulary."""
        return len(self._source.encode(word)) == 1

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of a target, without prefix, BOS and EOS; empty without visible characters."""
        return self._target.encode(text)

    def encode_pair(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Return all token ids of a source and a target, with prefixes, suffix and EOS."""
        source_ids = [*self.source_prefix, *self.encode(source), *self.source_suffix]
        return source_ids, [*self.target_prefix, *self.encode_target(target), self.eos_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a target, without special tokens and prefix; invalid UTF-8 becomes U+FFFD."""
        return self._target.decode([i for i in self._target.checked(token_ids) if i not in self._without_text])

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end of each token of `encode` in the text, in code points.

        Ranges are ordered and disjoint; white space before a word belongs to the word. If several tokens encode one
        character, such as its bytes, the last has it and the ranges of the others are empty.
        """
        return self._source.offsets(text)

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of `decode`, and the begin and end of each token in it; tokens without text are empty."""
        ids = self._target.checked(token_ids)
        text, offsets = self._target.decode_with_offsets([i for i in ids if i not in self._without_text])
        ranges, own, end = [], iter(offsets), 0
        for token_id in ids:
            begin, end = (end, end) if token_id in self._without_text else next(own)
            ranges.append((begin, end))
        return text, ranges

    def token_id(self, piece: str) -> int | None:
        """Return the target token of a piece; None if it does not exist or is special."""
        try:
            _utf8(piece)
        except ValueError:
            return None
        token_id = self._target.find(piece)
        return None if token_id in self._without_text or token_id == self.unk_id else token_id

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the piece of each target token, such as `▁Hello`, `<0xE4>` or `</s>`."""
        return self._target.pieces(self._target.checked(token_ids))

    def source_pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the piece of each source token."""
        return self._source.pieces(self._source.checked(token_ids))


def open_tokenizer(bundle: Bundle) -> SentencePieceTokenizer:
    """Return the tokenizer of a bundle, for the first language pair of its manifest.

    Raises:
        BundleError: if the size or the special ids differ from the manifest.
    """
    manifest = bundle.manifest
    special_ids = manifest.special_ids
    has_own_ids = manifest.tokenization.pieces is not None
    tokenizer = SentencePieceTokenizer(
        bundle.tokenizer_path, manifest.tokenization, special_ids if has_own_ids else None
    )
    for what, found, expected in (
        ("vocabulary size", tokenizer.vocabulary_size, manifest.architecture.vocabulary_size),
        ("vocabulary size of sources", tokenizer.source_vocabulary_size, manifest.architecture.num_source_tokens),
        ("id of padding", tokenizer.pad_id, special_ids.pad),
        ("id of BOS", tokenizer.bos_id, special_ids.bos),
        ("id of EOS", tokenizer.eos_id, special_ids.eos),
        ("id of unknown tokens", tokenizer.unk_id, special_ids.unk),
    ):
        if found != expected:
            raise BundleError(str(bundle.tokenizer_path), found=found, expected=expected, what=what)
    return tokenizer.for_pair(manifest.source_language, manifest.target_language)


def _special_ids(model_file: Path, processor: SentencePieceProcessor | ByteLevelBpe) -> SpecialIds:
    if isinstance(processor, ByteLevelBpe):
        raise BundleError(str(model_file), found="none", expected="pieces, for byte-level BPE", what="tokenization")
    found = {name: int(getattr(processor, f"{name}_id")()) for name in SpecialIds.model_fields}
    for name, token_id in found.items():
        if token_id < 0:
            raise BundleError(str(model_file), found="missing", expected="a token id", what=f"special token {name!r}")
    return SpecialIds(**found)


def _load(model_file: Path) -> SentencePieceProcessor | ByteLevelBpe:
    serialized = _read(model_file)
    if model_file.suffix == ".json":
        return ByteLevelBpe(model_file, serialized)
    if not serialized:  # the library loads an empty model without error
        raise BundleError(str(model_file), found="empty", expected="a SentencePiece model", what="content")
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(serialized)
    except RuntimeError as error:
        expected = "a SentencePiece model"
        raise BundleError(str(model_file), found="unparsable", expected=expected, what="content") from error
    return processor


def _load_pieces(path: Path) -> _Pieces:
    # A JSON array of distinct strings and nulls.
    try:
        pieces = _PIECES.validate_json(_read(path))
    except ValidationError as error:
        expected = "a JSON array of strings and nulls"
        raise BundleError(str(path), found="something else", expected=expected, what="content") from error
    repeated = [piece for piece, count in Counter(pieces).items() if piece is not None and count > 1]
    if repeated:
        raise BundleError(str(path), found=repr(repeated[0]), expected="each piece once", what="repeated piece")
    return pieces


def _read(path: Path) -> bytes:
    try:
        return read_file(path, max_bytes=_MAX_BYTES)
    except OSError as error:
        raise BundleError.unreadable(str(path), error) from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text has a lone surrogate, {text[error.start]!r}, at {error.start}") from error
