"""Vocabularies that are plain lists of tokens, with separate SentencePiece models.

Callers of CTranslate2, OpenNMT-py and eole tokenize, so these models store tokens only. A bundle also needs a padding
token, and special tokens with the same ids on both sides. Both are added here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import read_plain
from dragoman_export.importers.huggingface_text import Pieces

_SUFFIXES: Final = (".spm", ".model")  # of SentencePiece models
_PADDING: Final = ("<pad>", "<blank>")  # spellings of the padding token
# bias of tokens outside the vocabulary: probability zero, and precise enough log-probabilities for `verify`
_NO_LOGIT: Final = -500.0
_MIN_KNOWN_SHARE: Final = 0.5  # smallest share of the pieces of a SentencePiece model that its vocabulary contains


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceFiles:
    """SentencePiece models of sources and targets, possibly the same file."""

    source: Path
    target: Path

    @classmethod
    def find(
        cls, directory: Path, source: Path | None, target: Path | None, languages: Sequence[str] = ("source", "target")
    ) -> "SentencePieceFiles":
        """Return the given files, of which one suffices, or else the files in a directory.

        A directory has a single `.spm` or `.model` file, or one per side with its language between dots in the name,
        such as `source.spm` and `spm.de.model`. ImportFormatError if there are none, or the choice is ambiguous.
        """
        given = source or target
        if given is not None:
            return cls(source=source or given, target=target or given)
        found = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES and path.is_file())
        if not found:
            raise ImportFormatError(
                f"{directory} has no SentencePiece model (.model or .spm): give --source-spm and --target-spm, or one "
                "of them for both languages; other tokenizers, such as subword-nmt or fastBPE after Moses, are not "
                "supported"
            )
        sides = []
        for language in languages:
            own = [path for path in found if language in path.name.split(".")]
            candidates = own if len(own) == 1 else found
            if len(candidates) > 1:
                names = ", ".join(path.name for path in found)
                hint = "give --source-spm and --target-spm"
                raise ImportFormatError(f"{directory}: ambiguous SentencePiece model for {language} ({names}): {hint}")
            sides.append(candidates[0])
        return cls(source=sides[0], target=sides[1])

    def read(self) -> tuple[bytes, bytes]:
        """Return the content of both."""
        return read_plain(self.source), read_plain(self.target)

    def is_of_sources(self, piece: str) -> bool:
        """Return whether the tokenizer of sources may produce this piece."""
        return piece in _pieces(self.source)[0]

    def check(self, vocabularies: tuple[Pieces, Pieces]) -> set[str]:
        """Return the learned pieces of both models; ImportFormatError if one does not match its vocabulary."""
        learned: set[str] = set()
        for path, vocabulary in zip((self.source, self.target), vocabularies, strict=True):
            pieces, symbols = _pieces(path)
            num_known = len(pieces & set(vocabulary))
            if num_known < _MIN_KNOWN_SHARE * len(pieces):
                share = f"{num_known} of its {len(pieces)} pieces are in the vocabulary"
                raise ImportFormatError(f"{path} does not match the vocabulary: {share}")
            learned |= pieces - symbols
        return learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabularies:
    """Tokens of both sides by id, with the rows of their stored embeddings."""

    source: Pieces
    target: Pieces
    source_rows: tuple[int | None, ...]  # row of each token in the stored table; None: it has none
    target_rows: tuple[int | None, ...]
    pad_id: int
    eos_id: int
    unk_id: int
    start_id: int

    @classmethod
    def fitted(
        cls, source: Sequence[str], target: Sequence[str], *, eos: str, unk: str, start: str | None, origin: Path
    ) -> "Vocabularies":
        """Return vocabularies in which special tokens have the same ids on both sides.

        `source` and `target` are ordered by the rows of their tables; `start` None adds a start token with zero
        embedding. ImportFormatError if a token is missing or duplicated.
        """
        for side in (source, target):
            repeated = [token for token, count in Counter(side).items() if count > 1]
            if repeated:
                raise ImportFormatError(f"{origin}: duplicate token {repeated[0]!r} in a vocabulary")
        for token in (eos, unk, start):
            if token is not None and token not in target:
                raise ImportFormatError(f"{origin}: the vocabulary has no {token}")
        targets: list[tuple[str | None, int | None]] = [(token, row) for row, token in enumerate(target)]
        padding = next((token for token in _PADDING if start is not None and token in target), None)
        if padding is None:
            targets.append((None if _PADDING[0] in target else _PADDING[0], None))
        pad_id = len(target) if padding is None else target.index(padding)
        eos_id, unk_id = target.index(eos), target.index(unk)
        start_id = pad_id if start is None else target.index(start)
        sources = targets
        if list(source) != list(target):
            sources = [(token, row) for row, token in enumerate(source)]
            for token_id in {pad_id, eos_id, unk_id, start_id}:
                _place(sources, targets[token_id][0], token_id)
        return cls(
            source=tuple(token for token, _ in sources),
            target=tuple(token for token, _ in targets),
            source_rows=tuple(row for _, row in sources),
            target_rows=tuple(row for _, row in targets),
            pad_id=pad_id,
            eos_id=eos_id,
            unk_id=unk_id,
            start_id=start_id,
        )


def arranged(table: Tensor, rows: Iterable[int | None]) -> Tensor:
    """Return the rows [V, ...] of a stored table by token id; tokens without a row get zeros."""
    padded = torch.cat((table, torch.zeros_like(table[:1])))
    return padded[[len(table) if row is None else row for row in rows]]


def projection_bias(stored: Tensor, rows: Sequence[int | None]) -> Tensor:
    """Return the stored bias [V] by token id; tokens without a row are never chosen."""
    bias = arranged(stored, rows)
    bias[[row is None for row in rows]] = _NO_LOGIT
    return bias


def _place(entries: list[tuple[str | None, int | None]], token: str | None, token_id: int) -> None:
    # Swaps a token with the one that has its id; creates entries as needed.
    at = next(
        (index for index, (spelling, _) in enumerate(entries) if spelling is not None and spelling == token), None
    )
    if at is None:
        at = len(entries)
        entries.append((token, None))
    entries += [(None, None)] * (token_id + 1 - len(entries))
    entries[at], entries[token_id] = entries[token_id], entries[at]


def _pieces(path: Path) -> tuple[set[str], set[str]]:
    # Returns the pieces of text except single bytes, and the user-defined symbols among them.
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(read_plain(path))
    except DecodeError as error:
        raise ImportFormatError(f"{path} is not a SentencePiece model") from error
    kinds = model.SentencePiece
    pieces = {piece.piece for piece in model.pieces if piece.type not in (kinds.CONTROL, kinds.UNKNOWN, kinds.BYTE)}
    if not pieces:
        raise ImportFormatError(f"{path} is not a SentencePiece model: it has no pieces")
    return pieces, {piece.piece for piece in model.pieces if piece.type == kinds.USER_DEFINED}
