"""Text to token ids and back, by the SentencePiece models of a bundle or its byte-level BPE."""

from collections import Counter
from collections.abc import Container, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError
from sentencepiece import SentencePieceProcessor

from dragoman_service.bundle.files import Bundle, read_file
from dragoman_service.bundle.manifest import SpecialIds, Tokenization
from dragoman_service.errors import BundleError
from dragoman_service.text.byte_level_bpe import ByteLevelBpe

_MAX_BYTES = 64 << 20
"""Of a model: pieces and their scores take some 20 bytes each."""

_Pieces = tuple[str | None, ...]
_PIECES: Final[TypeAdapter[_Pieces]] = TypeAdapter(_Pieces)

_SPACE: Final = "▁"
"""What SentencePiece writes for a space."""

_ONE_MODEL: Final = Tokenization()


class _Vocabulary:
    """SentencePiece model of one side, and the spelling of its tokens if they do not have SentencePiece's own ids."""

    def __init__(self, processor: Any, pieces: _Pieces | None, *, unk_id: int, never: Container[int]) -> None:
        """Take a model; `never` are the ids that no text has, whatever it spells, of those that are in `pieces`."""
        self.processor = processor
        self.size: int = int(processor.GetPieceSize()) if pieces is None else len(pieces)
        self._pieces = pieces
        self._ids = {piece: i for i, piece in enumerate(pieces or ()) if piece is not None and i not in never}
        self._unk_id = unk_id

    def encode(self, text: str) -> list[int]:
        """Return token ids."""
        if self._pieces is None:
            return [int(token_id) for token_id in self.processor.EncodeAsIds(_utf8(text))]
        # What this model does not know may be known all the same, as a piece of the other side's.
        return [self._ids.get(piece, self._unk_id) for piece in self.processor.EncodeAsPieces(_utf8(text))]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, none of them special."""
        if self._pieces is None:
            return str(self.processor.DecodeIds(list(token_ids)))
        # A piece that only the other side's model has comes out as it is spelled.
        return str(self.processor.DecodePieces(self.spell(token_ids))).replace(_SPACE, " ")

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the same and the begin and end of each token in it."""
        tokens = list(token_ids) if self._pieces is None else self.spell(token_ids)
        decoded = self.processor.Decode(tokens, return_type="offset_mapping")
        text = str(decoded["text"])
        return text if self._pieces is None else text.replace(_SPACE, " "), [tuple(at) for at in decoded["offsets"]]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end, in code points, of what each token of `encode` was made from."""
        _utf8(text)
        return [tuple(offset) for offset in self.processor.EncodeAsOffsetMapping(text)["offsets"]]

    def spell(self, token_ids: Sequence[int]) -> list[str]:
        """Return the spelling of each token; one that has none is empty."""
        if self._pieces is None:
            return [str(self.processor.IdToPiece(token_id)) for token_id in token_ids]
        return [self._pieces[token_id] or "" for token_id in token_ids]

    def find(self, piece: str) -> int | None:
        """Return the token of a spelling, None or the unknown token if there is none."""
        return int(self.processor.PieceToId(piece)) if self._pieces is None else self._ids.get(piece)

    def checked(self, token_ids: Sequence[int]) -> list[int]:
        """Return token ids as plain integers; ValueError if one is outside the vocabulary."""
        for token_id in token_ids:
            if not 0 <= token_id < self.size:
                raise ValueError(f"token id {token_id} is outside the vocabulary of {self.size}")
        return [int(token_id) for token_id in token_ids]


class _ByteLevelVocabulary(_Vocabulary):
    """The same by byte-level BPE, whose pieces the bundle spells."""

    def __init__(self, splitter: ByteLevelBpe, pieces: _Pieces, *, unk_id: int, never: Container[int]) -> None:
        """Take the merges; else as above."""
        super().__init__(None, pieces, unk_id=unk_id, never=never)
        self._splitter = splitter

    def encode(self, text: str) -> list[int]:
        """Return token ids."""
        _utf8(text)
        return [self._ids.get(piece, self._unk_id) for piece in self._splitter.split(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, none of them special."""
        return self.decode_with_offsets(token_ids)[0]

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the same and the begin and end of each token in it."""
        return self._splitter.join_with_offsets(self.spell(token_ids))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end, in code points, of what each token of `encode` was made from."""
        _utf8(text)
        return self._splitter.offsets(text)


class SentencePieceTokenizer:
    """The vocabulary of one model: text to token ids and back.

    SentencePiece normalises what it reads (most models: NFKC-like, white space collapsed). Characters it has no piece
    for are spelled in bytes, so that no visible character is lost; a model that was trained without bytes has the
    unknown token for them. Byte-level BPE, whose file is named `.json`, changes nothing and knows every text. A lone
    surrogate, which no encoding of Unicode can carry, and an id outside the vocabulary raise ValueError. Safe to share
    between threads: nothing changes after construction.
    """

    def __init__(
        self,
        model_file: Path,
        tokenization: Tokenization = _ONE_MODEL,
        special_ids: SpecialIds | None = None,
    ) -> None:
        """Load a SentencePiece model or the merges of byte-level BPE, and what `tokenization` names beside it.

        Args:
            model_file: of targets, and of sources unless they have their own.
            tokenization: see `dragoman_service.bundle.manifest.Tokenization`.
            special_ids: needed if tokens have other ids than SentencePiece's, whose special ids they are else.

        Raises:
            BundleError: if a file cannot be read, is none, or lacks a special token.
        """
        processor = _load(model_file)
        own = special_ids or _special_ids(model_file, processor)
        of_sources, of_targets = tokenization.fixed_tokens()
        self._tokenization = tokenization
        self._without_text = of_targets.union((own.pad, own.bos, own.eos))

        def vocabulary(model: SentencePieceProcessor | ByteLevelBpe, pieces_name: str | None) -> _Vocabulary:
            pieces = None if pieces_name is None else _load_pieces(model_file.parent / pieces_name)
            never = self._without_text | of_sources
            if isinstance(model, ByteLevelBpe):
                return _ByteLevelVocabulary(model, pieces or (), unk_id=own.unk, never=never)
            return _Vocabulary(model, pieces, unk_id=own.unk, never=never)

        self._target = self._source = vocabulary(processor, tokenization.pieces)
        if tokenization.source_model is not None or tokenization.source_pieces is not None:
            own_model = tokenization.source_model
            model = processor if own_model is None else _load(model_file.parent / own_model)
            self._source = vocabulary(model, tokenization.source_pieces or tokenization.pieces)
        self.pad_id: int = own.pad
        """Fills rows of a batch up to the longest; never part of a text."""
        self.bos_id: int = own.bos
        """What the decoder starts from."""
        self.eos_id: int = own.eos
        """Ends every finished target, and sources unless `source_suffix` says otherwise."""
        self.unk_id: int = own.unk
        """Stands for what the vocabulary cannot spell; not met in texts where the model falls back to bytes."""
        self.source_prefix: tuple[int, ...] = tokenization.source_prefix
        """What every source begins with; `encode` leaves it out. Of many languages: see `for_pair`."""
        suffix = tokenization.source_suffix
        self.source_suffix: tuple[int, ...] = (own.eos,) if suffix is None else suffix
        """What every source ends with; `encode` leaves it out."""
        self.target_prefix: tuple[int, ...] = tokenization.target_prefix
        """What every target is made to begin with; it has no text."""
        self.placeholders: tuple[str, ...] = tokenization.placeholders
        """Pieces of source and target that the model was taught to copy."""
        self.placeholder_ids: tuple[tuple[int, int], ...] = ()
        """Source and target token of each of `placeholders`."""
        for piece in self.placeholders:
            sides = (self._source, self._target)
            ids = [token_id for side in sides for token_id in side.encode(piece) if side.spell([token_id]) == [piece]]
            if len(ids) != len(sides):
                found, expected = "spelled by several tokens", "one token"
                raise BundleError(str(model_file), found=found, expected=expected, what=f"placeholder {piece}")
            self.placeholder_ids += ((ids[0], ids[1]),)
        self.vocabulary_size: int = self._target.size
        """Token ids of targets are below this."""
        self.source_vocabulary_size: int = self._source.size
        """Token ids of sources are below this."""

    def for_pair(self, source_language: str, target_language: str) -> Self:
        """Return the same vocabulary with the prefixes of a language pair; KeyError if there is no such language."""
        of_pair = copy(self)
        of_pair.source_prefix, of_pair.target_prefix = self._tokenization.prefixes(source_language, target_language)
        return of_pair

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a source, without prefix and suffix; empty if nothing visible is in it."""
        return self._source.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of a target, without prefix, BOS and EOS; empty if nothing visible is in it."""
        return self._target.encode(text)

    def encode_pair(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Return all token ids of a source and a target: prefix, text, suffix or EOS."""
        source_ids = [*self.source_prefix, *self.encode(source), *self.source_suffix]
        return source_ids, [*self.target_prefix, *self.encode_target(target), self.eos_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a target; special tokens and prefix are skipped, bytes that are no UTF-8 become U+FFFD."""
        return self._target.decode([i for i in self._target.checked(token_ids) if i not in self._without_text])

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end, in code points, of what each token of `encode` was made from.

        In order and without overlap; white space before a word is the word's. Of several tokens that were made from
        one character, such as its bytes, the last has it and the others have nothing.
        """
        return self._source.offsets(text)

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return what `decode` does and the begin and end of each token in it, as `offsets` does; none is special."""
        return self._target.decode_with_offsets(self._target.checked(token_ids))

    def token_id(self, piece: str) -> int | None:
        """Return the target token spelled like this by `pieces`; None if there is none or it is special."""
        try:
            _utf8(piece)
        except ValueError:
            return None
        token_id = self._target.find(piece)
        return None if token_id in self._without_text or token_id == self.unk_id else token_id

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of each target token, such as `▁Hello`, `<0xE4>` or `</s>`."""
        return self._target.spell(self._target.checked(token_ids))

    def source_pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the same of source tokens."""
        return self._source.spell(self._source.checked(token_ids))


def open_tokenizer(bundle: Bundle) -> SentencePieceTokenizer:
    """Return the tokenizer of a bundle, for the language pair that its manifest names first.

    BundleError if it differs from the manifest in size or special ids.
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
    """Return the special ids of a SentencePiece model; BundleError if it lacks one."""
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
    if not serialized:  # an empty model would load without complaint and answer zero to everything
        raise BundleError(str(model_file), found="empty", expected="a SentencePiece model", what="content")
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(serialized)
    except RuntimeError as error:
        expected = "a SentencePiece model"
        raise BundleError(str(model_file), found="unparsable", expected=expected, what="content") from error
    return processor


def _load_pieces(path: Path) -> _Pieces:
    """Read the spelling of each token; BundleError if the file is no array of different strings and nulls."""
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
        raise BundleError(str(path), found=error.strerror, expected="a readable file", what="access") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text has a lone surrogate, {text[error.start]!r}, at {error.start}") from error
