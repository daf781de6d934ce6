"""The text side of models whose vocabularies are plain lists of tokens, beside SentencePiece models.

CTranslate2, OpenNMT-py and eole know tokens only: their callers split the text. What a bundle needs beyond their
lists is added here: a token for padding, and special tokens that have the same ids on both sides.
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

_SUFFIXES: Final = (".spm", ".model")
"""Of the names of SentencePiece models."""

_PADDING: Final = ("<pad>", "<blank>")
"""How systems spell it."""

_LEAST_KNOWN: Final = 0.5
"""Share of the pieces of a SentencePiece model that its own vocabulary has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceFiles:
    """SentencePiece models of both sides, which may be one."""

    source: Path
    target: Path

    @classmethod
    def find(
        cls,
        directory: Path,
        source: Path | None,
        target: Path | None,
        languages: Sequence[str] = ("source", "target"),
    ) -> "SentencePieceFiles":
        """Return the files that are given, of which one is enough, or else those that lie in a directory.

        Args:
            directory: with the only file that is called `.spm` or `.model`, or one for each side that has its language
                between dots in its name, as `source.spm` and `spm.de.model`.
            source: that of sources.
            target: that of targets.
            languages: what to look for in the names.

        Raises:
            ImportFormatError: saying what to give, if there are none, or too many to know which is whose.
        """
        given = source or target
        if given is not None:
            return cls(source=source or given, target=target or given)
        found = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES and path.is_file())
        if not found:
            raise ImportFormatError(
                f"{directory} has no SentencePiece model (.model or .spm): give --source-spm and --target-spm, or one "
                "of them if it is of both languages; text that is split in other ways, such as by subword-nmt or "
                "fastBPE after Moses, cannot be served"
            )
        sides = []
        for language in languages:
            own = [path for path in found if language in path.name.split(".")]
            candidates = own if len(own) == 1 else found
            if len(candidates) > 1:
                names = ", ".join(path.name for path in found)
                raise ImportFormatError(
                    f"{directory}: which of {names} is for {language}? Give it by a flag (--source-spm, --target-spm)"
                )
            sides.append(candidates[0])
        return cls(source=sides[0], target=sides[1])

    def read(self) -> tuple[bytes, bytes]:
        """Return the content of both."""
        return read_plain(self.source), read_plain(self.target)

    def is_of_sources(self, piece: str) -> bool:
        """Return whether a source may be split into this piece, learned from texts, and others."""
        return piece in _pieces(self.source)[0]

    def check(self, vocabularies: tuple[Pieces, Pieces]) -> set[str]:
        """Return the pieces that both learned from texts, symbols that were defined for them left out.

        Raises:
            ImportFormatError: if a model knows other pieces than the vocabulary of its side.
        """
        learned: set[str] = set()
        for path, vocabulary in zip((self.source, self.target), vocabularies, strict=True):
            pieces, symbols = _pieces(path)
            num_known = len(pieces & set(vocabulary))
            if num_known < _LEAST_KNOWN * len(pieces):
                share = f"{num_known} of its {len(pieces)} pieces are in the vocabulary"
                raise ImportFormatError(f"{path} is not the SentencePiece model of these vocabularies: {share}")
            learned |= pieces - symbols
        return learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabularies:
    """Tokens of both sides by their ids, which may differ from where their rows are stored."""

    source: Pieces
    target: Pieces
    source_rows: tuple[int | None, ...]
    """Which row of the stored table each token has; None: it has none."""
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

        Args:
            source: tokens by the rows of their table.
            target: the same.
            eos: spelling of EOS.
            unk: spelling of the unknown token.
            start: what decoding begins with; None: a token of its own, whose embedding is zero.
            origin: what errors name.

        Raises:
            ImportFormatError: naming a token that is missing, or twice there.
        """
        for side in (source, target):
            repeated = [token for token, count in Counter(side).items() if count > 1]
            if repeated:
                raise ImportFormatError(f"{origin}: the token {repeated[0]!r} is twice in a vocabulary")
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
    """Return the rows [V, ...] of a stored table by token id; those of tokens that have none are zero."""
    padded = torch.cat((table, torch.zeros_like(table[:1])))
    return padded[[len(table) if row is None else row for row in rows]]


def _place(entries: list[tuple[str | None, int | None]], token: str | None, token_id: int) -> None:
    """Give a token an id in exchange with the one that has it, both of them new if need be."""
    at = next(
        (index for index, (spelling, _) in enumerate(entries) if spelling is not None and spelling == token), None
    )
    if at is None:
        at = len(entries)
        entries.append((token, None))
    entries += [(None, None)] * (token_id + 1 - len(entries))
    entries[at], entries[token_id] = entries[token_id], entries[at]


def _pieces(path: Path) -> tuple[set[str], set[str]]:
    """Return the pieces that a text can consist of, those of single bytes left out, and which are defined symbols."""
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(read_plain(path))
    except DecodeError as error:
        raise ImportFormatError(f"{path} is no SentencePiece model") from error
    kinds = model.SentencePiece
    pieces = {piece.piece for piece in model.pieces if piece.type not in (kinds.CONTROL, kinds.UNKNOWN, kinds.BYTE)}
    if not pieces:
        raise ImportFormatError(f"{path} is no SentencePiece model: it has no pieces")
    return pieces, {piece.piece for piece in model.pieces if piece.type == kinds.USER_DEFINED}
