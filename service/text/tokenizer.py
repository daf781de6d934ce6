"""Text to token ids and back, by the SentencePiece model of a bundle."""

from collections.abc import Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from service.bundle import Bundle, read_file
from service.errors import BundleError

_MAX_BYTES = 64 << 20
"""Of a model: pieces and their scores take some 20 bytes each."""


class SentencePieceTokenizer:
    """The vocabulary of one model: text to token ids and back.

    The model normalises what it reads (NFKC-like, white space collapsed) and spells characters it has no piece for
    in bytes, so that no visible character is lost. A text with a lone surrogate, which no encoding of Unicode can
    carry, and an id outside the vocabulary raise ValueError. Safe to share between threads: nothing changes after
    construction.
    """

    def __init__(self, model_file: Path) -> None:
        """Load a SentencePiece model; BundleError if the file cannot be read, is none, or lacks a special token."""
        self._processor = _load(model_file)
        self.pad_id: int = self._special_id(model_file, "pad")
        """Fills rows of a batch up to the longest; never part of a text."""
        self.bos_id: int = self._special_id(model_file, "bos")
        """What the decoder starts from."""
        self.eos_id: int = self._special_id(model_file, "eos")
        """Ends every source and every finished target."""
        self.unk_id: int = self._special_id(model_file, "unk")
        """Stands for what the vocabulary cannot spell; not met in texts where the model falls back to bytes."""
        self.vocabulary_size: int = int(self._processor.GetPieceSize())
        """Token ids are below this."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without BOS and EOS; empty if nothing visible is in it."""
        return [int(token_id) for token_id in self._processor.EncodeAsIds(_utf8(text))]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens are skipped, bytes that are no UTF-8 become U+FFFD."""
        special = (self.pad_id, self.bos_id, self.eos_id)
        return str(self._processor.DecodeIds([i for i in self._checked(token_ids) if i not in special]))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end, in code points, of what each token of `encode` was made from.

        In order and without overlap; white space before a word is the word's. Of several tokens that were made from
        one character, such as its bytes, the last has it and the others have nothing.
        """
        _utf8(text)
        return [tuple(offset) for offset in self._processor.EncodeAsOffsetMapping(text)["offsets"]]

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return what `decode` does and the begin and end of each token in it, as `offsets` does; none is special."""
        decoded = self._processor.Decode(self._checked(token_ids), return_type="offset_mapping")
        return str(decoded["text"]), [tuple(offset) for offset in decoded["offsets"]]

    def token_id(self, piece: str) -> int | None:
        """Return the token spelled like this by `pieces`; None if there is none or it is special."""
        try:
            _utf8(piece)
        except ValueError:
            return None
        token_id = int(self._processor.PieceToId(piece))  # the unknown token for what is no piece
        return None if token_id in (self.pad_id, self.bos_id, self.eos_id, self.unk_id) else token_id

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's spelling of each token, such as `▁Hello`, `<0xE4>` or `</s>`."""
        return [str(self._processor.IdToPiece(token_id)) for token_id in self._checked(token_ids)]

    def _special_id(self, model_file: Path, name: str) -> int:
        token_id = int(getattr(self._processor, f"{name}_id")())
        if token_id < 0:
            raise BundleError(str(model_file), found="missing", expected="a token id", what=f"special token {name!r}")
        return token_id

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        for token_id in token_ids:
            if not 0 <= token_id < self.vocabulary_size:
                raise ValueError(f"token id {token_id} is outside the vocabulary of {self.vocabulary_size}")
        return [int(token_id) for token_id in token_ids]


def open_tokenizer(bundle: Bundle) -> SentencePieceTokenizer:
    """Return the tokenizer of a bundle; BundleError if it differs from the manifest in size or special ids."""
    tokenizer = SentencePieceTokenizer(bundle.tokenizer_path)
    special_ids = bundle.manifest.special_ids
    for what, found, expected in (
        ("vocabulary size", tokenizer.vocabulary_size, bundle.manifest.architecture.vocabulary_size),
        ("id of padding", tokenizer.pad_id, special_ids.pad),
        ("id of BOS", tokenizer.bos_id, special_ids.bos),
        ("id of EOS", tokenizer.eos_id, special_ids.eos),
        ("id of unknown tokens", tokenizer.unk_id, special_ids.unk),
    ):
        if found != expected:
            raise BundleError(str(bundle.tokenizer_path), found=found, expected=expected, what=what)
    return tokenizer


def _load(model_file: Path) -> SentencePieceProcessor:
    try:
        serialized = read_file(model_file, max_bytes=_MAX_BYTES)
    except OSError as error:
        raise BundleError(str(model_file), found=error.strerror, expected="a readable file", what="access") from error
    if not serialized:  # an empty model would load without complaint and answer zero to everything
        raise BundleError(str(model_file), found="empty", expected="a SentencePiece model", what="content")
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(serialized)
    except RuntimeError as error:
        expected = "a SentencePiece model"
        raise BundleError(str(model_file), found="unparsable", expected=expected, what="content") from error
    return processor


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text has a lone surrogate, {text[error.start]!r}, at {error.start}") from error
