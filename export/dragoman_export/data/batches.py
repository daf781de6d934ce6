"""Token batches of similar lengths, planned per epoch from (seed, epoch) alone."""

import itertools
import mmap
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman_export.data.mixing import CopyArray, draw_copies
from dragoman_export.data.vocabulary import BOS_ID, PAD_ID

IntArray = NDArray[np.int64]
MemberArray = NDArray[np.int32]

_MAX_MEMBERS = 3  # pairs in the longest concatenation
_NO_MEMBER = -1

_WRITTEN_TOKENS = 1 << 18  # tokens per write


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """Options that determine the batches of an epoch."""

    batch_tokens: int  # most tokens on either side, padding included; a batch of one example may exceed it
    max_tokens: int  # longest source or target of a concatenation, EOS included
    concatenate: float = 0.0  # share of examples that join two or three pairs; below 1
    pool_size: int = 1 << 17  # examples that are shuffled, then sorted by length together
    has_rounded_lengths: bool = False  # count lengths as `rounded_lengths`, for batches that are padded to few shapes
    seed: int = 1


class TokenBlock(NamedTuple):
    """Lists of token ids, concatenated."""

    lengths: NDArray[np.int32]  # [N]
    tokens: NDArray[np.int32]  # [sum of the lengths]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int] | NDArray[np.int32]]) -> "TokenBlock":
        """Concatenate lists."""
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        tokens = np.fromiter(itertools.chain.from_iterable(lists), np.int32, int(lengths.sum()))
        return cls(lengths=lengths, tokens=tokens)

    def prefixed(self, prefixes: NDArray[np.int32]) -> "TokenBlock":
        """Return the lists, each after its row of [N, P]."""
        starts = np.cumsum(self.lengths) - self.lengths
        size = prefixes.shape[1]
        return TokenBlock(
            lengths=self.lengths + np.int32(size),
            tokens=np.insert(self.tokens, np.repeat(starts, size), prefixes.ravel()),
        )


class TokenLists:
    """Lists of token ids in an unnamed temporary file, read one at a time.

    Memory use is 12 bytes per list. The file is deleted with the object or the process.
    """

    def __init__(self, lists: Iterable[Sequence[int]] | None = None, *, directory: Path | None = None) -> None:
        """Write the lists to a file in `directory`; None: the default directory for temporary files."""
        with tempfile.TemporaryFile(dir=directory) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._lengths, self._tokens = array("i"), array("i")
        self._content: NDArray[np.int32] | None = None
        if lists is not None:
            for ids in lists:
                self._append(ids)
            self._finish()

    @classmethod
    def of_pairs(
        cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], *, directory: Path | None = None
    ) -> tuple["TokenLists", "TokenLists"]:
        """Return the sources and the targets of pairs; the pairs are read once."""
        sources, targets = cls(directory=directory), cls(directory=directory)
        for source, target in pairs:
            sources._append(source)
            targets._append(target)
        sources._finish()
        targets._finish()
        return sources, targets

    @classmethod
    def of_blocks(
        cls, blocks: Iterable[tuple[TokenBlock, TokenBlock]], *, directory: Path | None = None
    ) -> tuple["TokenLists", "TokenLists"]:
        """Return the sources and the targets of blocks of both."""
        sides = cls(directory=directory), cls(directory=directory)
        for pair in blocks:
            for side, block in zip(sides, pair, strict=True):
                side._lengths.frombytes(block.lengths.tobytes())
                side._tokens.frombytes(block.tokens.tobytes())
                side._flush()
        for side in sides:
            side._finish()
        return sides

    def _append(self, ids: Sequence[int]) -> None:
        self._lengths.append(len(ids))
        self._tokens.extend(ids)
        if len(self._tokens) >= _WRITTEN_TOKENS:
            self._flush()

    def _flush(self) -> None:
        content = memoryview(self._tokens.tobytes())
        while content:
            content = content[os.write(self._file, content) :]
        self._tokens = array("i")

    def _finish(self) -> None:
        self._flush()
        self.lengths: NDArray[np.int32] = np.frombuffer(self._lengths, np.int32)
        self._ends = np.cumsum(self.lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        length, end = int(self.lengths[index]), int(self._ends[index])
        return self._mapped()[end - length : end]

    def joined(self, members: MemberArray) -> TokenBlock:
        """Return the lists of each row of [B, 1 or 3] members joined, with the last token of the last one only."""
        rows, columns = np.nonzero(members != _NO_MEMBER)
        chosen = members[rows, columns]
        starts = self._ends[chosen] - self.lengths[chosen]
        is_last = np.append(rows[1:] != rows[:-1], True)
        lengths = self.lengths[chosen] - np.where(is_last, 0, 1)
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
        row_lengths = np.bincount(rows, weights=lengths, minlength=len(members)).astype(np.int32)
        return TokenBlock(lengths=row_lengths, tokens=self._mapped()[places])

    def _mapped(self) -> NDArray[np.int32]:
        # The file, whose pages the operating system reads and drops as needed.
        if self._content is None:
            is_empty = not len(self._ends) or not self._ends[-1]
            mapped = b"" if is_empty else mmap.mmap(self._file, 0, prot=mmap.PROT_READ)
            self._content = np.frombuffer(mapped, np.int32)
        return self._content


class CorpusPart(NamedTuple):
    """The pairs of one file."""

    size: int
    weight: float = 1.0  # draws of each pair per epoch, see `draw_copies`
    languages: tuple[str, str] | None = None  # pairs of different languages are never joined
    prefix: tuple[int, ...] = ()  # tokens that start each source; the same number in all parts


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedCorpus:
    """Token ids of both sides of each pair, EOS last, BOS and prefix not stored."""

    sources: TokenLists
    targets: TokenLists
    pad_id: int = PAD_ID
    start_id: int = BOS_ID  # first input of the decoder
    parts: tuple[CorpusPart, ...] = ()  # of all pairs in order; empty: one with default values

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def mixing(self) -> Mapping[str, Any]:
        """Fields of `parts` that differ from their default."""
        values = {name: [getattr(part, name) for part in self.parts] for name in ("weight", "languages")}
        return {name: each for name, each in values.items() if set(each) - {CorpusPart._field_defaults[name]}}

    @property
    def prefix_size(self) -> int:
        """P, the number of tokens that start each source."""
        return len(self.parts[0].prefix) if self.parts else 0

    def prefixes(self) -> NDArray[np.int32]:
        """Return the tokens that start each source [N, P]."""
        rows = np.array([part.prefix for part in self.parts], np.int32).reshape(len(self.parts), self.prefix_size)
        return self._of_pairs(rows)

    def groups(self) -> NDArray[np.int32]:
        """Return a number for the languages of each pair [N]."""
        numbers = {languages: number for number, languages in enumerate({part.languages: 0 for part in self.parts})}
        return self._of_pairs(np.array([numbers[part.languages] for part in self.parts], np.int32))

    def copies(self, seed: int, epoch: int) -> CopyArray:
        """Return how often each pair is drawn in an epoch [N]."""
        if "weight" not in self.mixing:
            return np.ones(len(self), np.int32)
        sizes, weights = ([getattr(part, name) for part in self.parts] for name in ("size", "weight"))
        return draw_copies(sizes, weights, seed=seed, epoch=epoch)

    def _of_pairs(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        # Repeats the row of each part for its pairs.
        if not self.parts:
            return np.zeros((len(self), *rows.shape[1:]), np.int32)
        return np.repeat(rows, [part.size for part in self.parts], axis=0)


class Batch(NamedTuple):
    """Padded examples, all int64 or bool tensors on one device."""

    source_ids: Tensor  # [B, S], EOS last, then padding.
    source_mask: Tensor | None  # [B, S], True at real tokens; None if no row is padded.
    target_ids: Tensor  # [B, T] decoder input, start token first
    label_positions: Tensor  # [N] indices of unpadded positions in the flattened [B * T]
    labels: Tensor  # [N] token to predict at each of them, EOS last in each row

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`; a GPU copies it in the order of its stream, and the caller does not wait."""
        if device.type == "cuda":
            pinned = (None if tensor is None else tensor.pin_memory() for tensor in self)
            return Batch(*(tensor if tensor is None else tensor.to(device, non_blocking=True) for tensor in pinned))  # type: ignore[arg-type]
        return Batch(*(None if tensor is None else tensor.to(device) for tensor in self))  # type: ignore[arg-type]


class Epoch:
    """The batches of one epoch; a function of corpus, configuration and epoch number."""

    def __init__(self, corpus: EncodedCorpus, config: BatchingConfig, epoch: int) -> None:
        """Choose the concatenations, sort by length and cut, seeded by (seed, epoch)."""
        random = np.random.default_rng((config.seed, epoch))
        self._corpus = corpus
        self._prefixes = corpus.prefixes()
        self._members = choose_members(corpus, config, random, copies=corpus.copies(config.seed, epoch))
        source_lengths = joined_lengths(corpus.sources.lengths, self._members) + corpus.prefix_size
        target_lengths = joined_lengths(corpus.targets.lengths, self._members)
        self.num_target_tokens = int(target_lengths.sum())
        self._batches = plan_batches(source_lengths, target_lengths, config, random)

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, index: int) -> Batch:
        """Assemble one batch."""
        members = self._members[self._batches[index]]
        corpus = self._corpus
        sources, targets = (lists.joined(members) for lists in (corpus.sources, corpus.targets))
        sources = sources.prefixed(self._prefixes[members[:, 0]])
        return make_batch(sources, targets, pad_id=corpus.pad_id, start_id=corpus.start_id)


def choose_members(
    corpus: EncodedCorpus, config: BatchingConfig, random: np.random.Generator, *, copies: CopyArray | None = None
) -> MemberArray:
    """Choose the pairs of each example, of the same languages; every copy of a pair is in exactly one example.

    `copies` [N] are those of each pair; None: one.

    Returns:
        [E, 3] pairs of each example in order, -1 if fewer than three; or [E, 1] if no pairs are joined.
    """
    order = np.arange(len(corpus)) if copies is None else np.repeat(np.arange(len(corpus)), copies)
    order = order[random.permutation(len(order))]
    # g concatenations of 2.5 pairs on average give E = n - 1.5 g examples; g / E is the requested share
    num_joined = int(config.concatenate * len(order) / (1 + 1.5 * config.concatenate))
    sizes = random.integers(2, _MAX_MEMBERS + 1, size=num_joined)
    sizes = sizes[np.cumsum(sizes) <= len(order)]
    singles = order[int(sizes.sum()) :]
    joined = np.full((len(sizes), _MAX_MEMBERS), _NO_MEMBER, dtype=np.int32)
    groups, chosen = corpus.groups(), order[: int(sizes.sum())]
    chosen = chosen[np.argsort(groups[chosen], kind="stable")]
    joined[np.arange(_MAX_MEMBERS) < sizes[:, None]] = chosen
    lengths = [joined_lengths(lists.lengths, joined) for lists in (corpus.sources, corpus.targets)]
    fits = np.maximum(lengths[0] + corpus.prefix_size, lengths[1]) <= config.max_tokens
    fits &= groups[joined[:, 0]] == groups[joined[np.arange(len(sizes)), sizes - 1]]
    singles = np.concatenate((singles, joined[~fits][joined[~fits] != _NO_MEMBER]))
    alone = np.full((len(singles), _MAX_MEMBERS if fits.any() else 1), _NO_MEMBER, dtype=np.int32)
    alone[:, 0] = singles
    return np.concatenate((joined[fits], alone)) if fits.any() else alone


def joined_lengths(lengths: NDArray[np.int32], members: MemberArray) -> IntArray:
    """Return the lengths [E] of concatenations [E, 1 or 3], one EOS counted in each."""
    present = members != _NO_MEMBER
    total: IntArray = np.where(present, lengths[members] - 1, 0).sum(axis=1, dtype=np.int64) + 1
    return total


def plan_batches(
    source_lengths: IntArray, target_lengths: IntArray, config: BatchingConfig, random: np.random.Generator
) -> list[IntArray]:
    """Split examples into batches of similar lengths, in random order; every example is in exactly one.

    Lengths [E] include EOS. Advances `random`.
    """
    order = random.permutation(len(source_lengths))
    batches: list[IntArray] = []
    for start in range(0, len(order), config.pool_size):
        pool = order[start : start + config.pool_size]
        # sorted by source length first: the encoder is the deeper stack, and targets skip padding at the output
        pool = pool[np.lexsort((target_lengths[pool], source_lengths[pool]))]
        longest = np.maximum(source_lengths[pool], target_lengths[pool])
        longest = rounded_lengths(longest) if config.has_rounded_lengths else longest
        batches.extend(pool[begin:end] for begin, end in _cuts(longest.tolist(), config.batch_tokens))
    random.shuffle(batches)
    return batches


def rounded_lengths(lengths: IntArray) -> IntArray:
    """Round lengths up to a multiple of 4 up to 32 tokens, of 8 up to 64, and so on; at most 25 % beyond 12 tokens."""
    steps = 2 ** np.maximum(2, np.ceil(np.log2(lengths)).astype(np.int64) - 3)
    rounded: IntArray = -(-lengths // steps) * steps
    return rounded


def _cuts(lengths: Sequence[int], batch_tokens: int) -> list[tuple[int, int]]:
    # (begin, end) of consecutive runs whose size times longest member stays within the budget
    cuts, begin, longest = [], 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if index > begin and longest * (index + 1 - begin) > batch_tokens:
            cuts.append((begin, index))
            begin, longest = index, length
    if lengths:
        cuts.append((begin, len(lengths)))
    return cuts


def make_batch(sources: TokenBlock, targets: TokenBlock, *, pad_id: int = PAD_ID, start_id: int = BOS_ID) -> Batch:
    """Pad token ids, EOS last in each list, into a batch on the CPU."""
    source_ids, is_source = _padded(sources, pad_id)
    labels, is_real = _padded(targets, pad_id)
    target_ids = np.concatenate((np.full((len(labels), 1), start_id), labels[:, :-1]), axis=1)
    return Batch(
        source_ids=torch.from_numpy(source_ids),
        source_mask=None if is_source.all() else torch.from_numpy(is_source),
        target_ids=torch.from_numpy(target_ids),
        label_positions=torch.from_numpy(np.flatnonzero(is_real)),
        labels=torch.from_numpy(targets.tokens.astype(np.int64)),
    )


def _padded(block: TokenBlock, pad_id: int) -> tuple[IntArray, NDArray[np.bool_]]:
    # Token ids [B, S] and a mask that is True at real ones.
    is_real: NDArray[np.bool_] = np.arange(block.lengths.max()) < block.lengths[:, None]
    padded = np.full(is_real.shape, pad_id, dtype=np.int64)
    padded[is_real] = block.tokens
    return padded, is_real
