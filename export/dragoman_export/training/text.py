"""Reads and encodes the text of a run and reports every skipped line and pair."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dragoman_export.data.augmentation import AugmentationConfig, augment_all, translations_of
from dragoman_export.data.batches import CorpusPart, EncodedCorpus, TokenBlock, TokenLists
from dragoman_export.data.lexicon import Translations
from dragoman_export.data.mixing import CopyArray, repeated, temperature_weights
from dragoman_export.data.reader import Pair, PairFiles, ParallelFiles
from dragoman_export.data.vocabulary import TextCodec
from dragoman_export.errors import CorpusError
from dragoman_export.training.checkpoint import write_atomically
from dragoman_export.training.config import DataConfig
from dragoman_export.training.evaluation import DevSet
from dragoman_export.training.report import Report

_AS_IT_IS = AugmentationConfig()

_PAIRS_OF_A_CHUNK = 1 << 14  # pairs encoded together, each side on all cores
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedPairs:
    """Encoded pairs without those that are too long."""

    corpus: EncodedCorpus
    given: Iterable[Pair]
    kept: NDArray[np.bool_]  # mask of `given`

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of `corpus`, in order."""
        return tuple(itertools.compress(self.given, self.kept))

    @property
    def num_too_long(self) -> int:
        """Number of skipped pairs."""
        return int(np.count_nonzero(~self.kept))


def encode_pairs(
    pairs: Iterable[Pair],
    vocabulary: TextCodec,
    *,
    max_tokens: int,
    report: Callable[[str], None],
    directory: Path | None = None,
    prefix_size: int = 0,
) -> EncodedPairs:
    """Encode both sides in chunks and report every pair with more than `max_tokens`, EOS included.

    Sources count with `prefix_size` more tokens. Token ids are written to files in `directory`; None: the default for
    temporary files. CorpusError if no pair is left.
    """
    kept = bytearray()

    def fitting() -> Iterator[tuple[list[int], list[int]]]:
        for chunk in _chunks(pairs):
            sources = vocabulary.encode([pair.source for pair in chunk])
            targets = vocabulary.encode_targets([pair.target for pair in chunk])
            for pair, source, target in zip(chunk, sources, targets, strict=True):
                kept.append(max(len(source) + prefix_size, len(target)) <= max_tokens)
                if kept[-1]:
                    yield source, target
                else:
                    lengths = f"{len(source) + prefix_size} and {len(target)} tokens"
                    report(f"{pair.location}: skipped, {lengths}, limit {max_tokens}")

    sources, targets = TokenLists.of_pairs(fitting(), directory=directory)
    if not len(sources):
        raise CorpusError(f"every pair has more than {max_tokens} tokens")
    corpus = EncodedCorpus(sources=sources, targets=targets, pad_id=vocabulary.pad_id, start_id=vocabulary.start_id)
    return EncodedPairs(corpus=corpus, given=pairs, kept=np.frombuffer(kept, np.bool_))


def _chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, _PAIRS_OF_A_CHUNK)):
        yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """Text of the files of a run."""

    train: PairFiles
    dev: PairFiles
    weights: tuple[float, ...]  # draws of each pair per epoch, for each file of `train`
    # of words of `train`; empty if the augmentation does not need them
    translations: Translations = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingText:
    """Encoded training and development text."""

    train: EncodedCorpus
    dev: DevSet
    vocabulary: TextCodec
    train_pairs: Iterable[Pair] = ()  # of `train`, in order; empty if all epochs are equal
    translations: Translations = field(default_factory=dict)  # of words, for the augmentation
    directory: Path | None = None  # of the files with token ids; None: the default for temporary files

    def drawn(
        self,
        *,
        alpha: float,
        max_tokens: int,
        seed: int,
        epoch: int,
        augmentation: AugmentationConfig = _AS_IT_IS,
        workers: int = 0,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> EncodedCorpus:
        """Return the pairs of an epoch with augmented text and sampled segmentation, deterministic per seed and epoch.

        Each copy of a pair has its own augmentation and segmentation. See `augment` and, unless `alpha` is 0,
        `encode_sampled`. A pair longer than `max_tokens` keeps its original text and segmentation. `workers` are
        processes that share the work; 0: this one. If `is_cancelled` returns True, the rest of the text is left out.
        """
        copies = self.train.copies(seed, epoch)
        chunks = _DrawnChunks(
            self.train_pairs,
            copies,
            self.vocabulary,
            self.translations,
            alpha=alpha,
            max_tokens=(max_tokens - self.train.prefix_size, max_tokens),
            seed=(seed, epoch),
            augmentation=augmentation,
        )
        # own generator: the default would advance the global one, which draws dropout in another thread
        generator = torch.Generator()
        loader = DataLoader(chunks, batch_size=None, num_workers=workers, collate_fn=_unchanged, generator=generator)
        blocks = itertools.takewhile(lambda _: not is_cancelled(), loader)
        sources, targets = TokenLists.of_blocks(blocks, directory=self.directory)
        ends = np.cumsum([0, *(part.size for part in self.train.parts)])
        sizes = np.diff(np.append(0, np.cumsum(copies))[ends]).tolist()
        parts = tuple(part._replace(size=size, weight=1.0) for part, size in zip(self.train.parts, sizes, strict=True))
        return dataclasses.replace(self.train, sources=sources, targets=targets, parts=parts)


_SideBlocks = tuple[TokenBlock, TokenBlock]


class _DrawnChunks(IterableDataset[_SideBlocks]):
    """Chunks of the text of an epoch, augmented and encoded; each worker of a DataLoader takes every n-th."""

    def __init__(
        self,
        pairs: Iterable[Pair],
        copies: CopyArray,
        vocabulary: TextCodec,
        translations: Translations,
        *,
        alpha: float,
        max_tokens: tuple[int, int],
        seed: tuple[int, int],
        augmentation: AugmentationConfig,
    ) -> None:
        self._pairs, self._copies, self._vocabulary, self._translations = pairs, copies, vocabulary, translations
        self._alpha, self._max_tokens = alpha, max_tokens
        self._seed, self._augmentation = seed, augmentation

    def __iter__(self) -> Iterator[_SideBlocks]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number, chunk in enumerate(_chunks(repeated(texts_of(self._pairs), self._copies))):
            if number % step == first:
                yield self._draw(number, chunk)

    def _draw(self, number: int, chunk: list[tuple[str, str]]) -> _SideBlocks:
        # The seeds depend on the chunk, so the result does not depend on the number of workers.
        vocabulary, alpha = self._vocabulary, self._alpha
        augmented = augment_all(chunk, self._augmentation, seed=(*self._seed, number), translations=self._translations)
        encoders = (vocabulary.encode, vocabulary.encode_targets)
        side_seeds = np.random.default_rng((*self._seed, number)).integers(1 << 31, size=2).tolist()
        sides = [
            vocabulary.encode_sampled(side, alpha=alpha, seed=side_seed) if alpha else encode(side)
            for side, side_seed, encode in zip(zip(*augmented, strict=True), side_seeds, encoders, strict=True)
        ]
        for index, ids in enumerate(zip(*sides, strict=True)):
            if any(len(side_ids) > limit for side_ids, limit in zip(ids, self._max_tokens, strict=True)):
                for side, text, encode in zip(sides, chunk[index], encoders, strict=True):
                    side[index] = encode([text])[0]
        source, target = (TokenBlock.of(side) for side in sides)
        return source, target


def _unchanged(blocks: Any) -> Any:
    return blocks


def _report_overlap(train: PairFiles, dev: PairFiles, report: Report) -> None:
    sources = {pair.source for pair in dev}
    num_sources = len(sources)
    for pair in train:
        sources.discard(pair.source)
    if found := num_sources - len(sources):
        report.message(f"{found:,} of {num_sources:,} dev sources are in the training text: dev scores are too good")
        report.record("overlap", dev_sources=num_sources, found=found)


def write_translations(path: Path, translations: Translations) -> None:
    """Write a lexicon as JSON: each word with its translations."""
    content = {word: sorted(found) for word, found in sorted(translations.items())}
    write_atomically(path, json.dumps(content, ensure_ascii=False, indent=0).encode())


def read_translations(path: Path) -> Translations:
    """Read a lexicon from `write_translations`; CorpusError if that fails."""
    try:
        content = TypeAdapter(dict[str, frozenset[str]]).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CorpusError(f"cannot read lexicon {path}: {error}") from error
    return content


def texts_of(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair."""
    return ((pair.source, pair.target) for pair in pairs)


def read_text(
    data: DataConfig, report: Report, augmentation: AugmentationConfig, lexicon: Path | None = None
) -> PlainText:
    """Read both corpora, and read or learn the translations that the augmentation needs.

    CorpusError if a corpus or the file `lexicon` is unusable.
    """
    train, dev = (
        _read(name, files, data.max_malformed, report) for name, files in (("train", data.train), ("dev", data.dev))
    )
    _report_overlap(train, dev, report)
    translations: Translations = {}
    if augmentation.needs_lexicon and lexicon is not None:
        translations = read_translations(lexicon)
    elif augmentation.needs_lexicon:
        report.message("learning a lexicon")
        translations = translations_of(texts_of(train), num_pairs=train.num_pairs)
        report.message(f"{len(translations):,} words have translations")
    weights = data.weights or (1.0,) * len(train.sizes)
    if data.temperature is not None:
        groups = [file.languages or str(file.source) for file in train.files]
        weights = temperature_weights(train.sizes, groups, data.temperature)
    if weights != (1.0,) * len(weights):
        for file, size, weight in zip(train.files, train.sizes, weights, strict=True):
            report.message(f"weight {weight:.3f}: {file.source}, {size:,} pairs, {weight * size:,.0f} per epoch")
    return PlainText(train=train, dev=dev, weights=weights, translations=translations)


def encode_text(
    text: PlainText, vocabulary: TextCodec, *, max_tokens: int, is_drawn: bool, report: Report, directory: Path
) -> TrainingText:
    """Encode both corpora without pairs that are too long; CorpusError if none is left, or none is drawn.

    Token ids are written to unnamed files in `directory`.
    """
    train, dev = (
        _encode(name, pairs, vocabulary, max_tokens, weights=weights, report=report, directory=directory)
        for name, pairs, weights in (
            ("train", text.train, text.weights),
            ("dev", text.dev, (1.0,) * len(text.dev.sizes)),
        )
    )
    if not sum(int(part.size * part.weight) for part in train.corpus.parts):
        raise CorpusError(f"the weights {text.weights} draw less than one pair per epoch: give larger weights")
    references = tuple(pair.target for pair in dev.pairs)
    return TrainingText(
        train=train.corpus,
        dev=DevSet(corpus=dev.corpus, references=references),
        vocabulary=vocabulary,
        train_pairs=dataclasses.replace(text.train, kept=train.kept) if is_drawn else (),
        translations=text.translations,
        directory=directory,
    )


def _read(name: str, files: Sequence[ParallelFiles], max_malformed: float, report: Report) -> PairFiles:
    corpus = PairFiles.scan(files, max_malformed=max_malformed)
    for line in corpus.malformed:
        report.message(f"malformed: {line}")
        report.record("malformed", location=line.location, reason=line.reason)
    report.message(f"{name}: {corpus.num_pairs:,} pairs, {len(corpus.malformed):,} malformed lines")
    report.record("corpus", name=name, pairs=corpus.num_pairs, malformed=len(corpus.malformed))
    return corpus


def _encode(
    name: str,
    pairs: PairFiles,
    vocabulary: TextCodec,
    max_tokens: int,
    *,
    weights: Sequence[float],
    report: Report,
    directory: Path,
) -> EncodedPairs:
    prefixes = [vocabulary.language_prefix(*file.languages) if file.languages else () for file in pairs.files]
    encoded = encode_pairs(
        pairs,
        vocabulary,
        max_tokens=max_tokens,
        report=report.message,
        directory=directory,
        prefix_size=len(prefixes[0]),
    )
    sizes = dataclasses.replace(pairs, kept=encoded.kept).kept_sizes
    columns = (sizes, weights, (file.languages for file in pairs.files), prefixes)
    parts = tuple(itertools.starmap(CorpusPart, zip(*columns, strict=True)))
    encoded = dataclasses.replace(encoded, corpus=dataclasses.replace(encoded.corpus, parts=parts))
    sources, targets = (int(lists.lengths.sum()) for lists in (encoded.corpus.sources, encoded.corpus.targets))
    report.message(f"{name}: {sources:,} source and {targets:,} target tokens, {encoded.num_too_long:,} pairs too long")
    report.record("encoded", name=name, source_tokens=sources, target_tokens=targets, too_long=encoded.num_too_long)
    return encoded
