"""Reads and encodes the text of a run and reports every skipped line and pair."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman_export.data.augmentation import AugmentationConfig, augment_all, translations_of
from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.data.lexicon import Translations
from dragoman_export.data.reader import Pair, PairFiles, ParallelFiles
from dragoman_export.data.vocabulary import TextCodec
from dragoman_export.errors import CorpusError
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
) -> EncodedPairs:
    """Encode both sides in chunks and report every pair with more than `max_tokens`, EOS included.

    Token ids are written to files in `directory`; None: the default for temporary files. CorpusError if no pair is
    left.
    """
    kept = bytearray()

    def fitting() -> Iterator[tuple[list[int], list[int]]]:
        for chunk in _chunks(pairs):
            sources = vocabulary.encode([pair.source for pair in chunk])
            targets = vocabulary.encode_targets([pair.target for pair in chunk])
            for pair, source, target in zip(chunk, sources, targets, strict=True):
                kept.append(max(len(source), len(target)) <= max_tokens)
                if kept[-1]:
                    yield source, target
                else:
                    lengths = f"{len(source)} and {len(target)} tokens"
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
        self, *, alpha: float, max_tokens: int, seed: int, epoch: int, augmentation: AugmentationConfig = _AS_IT_IS
    ) -> EncodedCorpus:
        """Return `train` with augmented text and sampled segmentation, deterministic per seed and epoch.

        See `augment` and, unless `alpha` is 0, `encode_sampled`. A pair longer than `max_tokens` keeps its original
        text and segmentation.
        """
        random = np.random.default_rng((seed, epoch))
        texts = augment_all(
            texts_of(self.train_pairs), augmentation, seed=seed, epoch=epoch, translations=self.translations
        )
        encoders = (self.vocabulary.encode, self.vocabulary.encode_targets)

        def drawn() -> Iterator[tuple[Sequence[int], Sequence[int]]]:
            index = 0
            for chunk in _chunks(texts):
                sides = [
                    self.vocabulary.encode_sampled(side, alpha=alpha, seed=int(side_seed)) if alpha else encode(side)
                    for side, side_seed, encode in zip(
                        zip(*chunk, strict=True), random.integers(1 << 31, size=2), encoders, strict=True
                    )
                ]
                for pair in zip(*sides, strict=True):
                    usual = (self.train.sources[index].tolist(), self.train.targets[index].tolist())
                    yield usual if max(map(len, pair)) > max_tokens else pair
                    index += 1

        sources, targets = TokenLists.of_pairs(drawn(), directory=self.directory)
        return dataclasses.replace(self.train, sources=sources, targets=targets)


def texts_of(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair."""
    return ((pair.source, pair.target) for pair in pairs)


def read_text(data: DataConfig, report: Report, augmentation: AugmentationConfig) -> PlainText:
    """Read both corpora and learn translations for the augmentation; CorpusError if a corpus is unusable."""
    train, dev = (
        _read(name, files, data.max_malformed, report) for name, files in (("train", data.train), ("dev", data.dev))
    )
    translations: Translations = {}
    if augmentation.placeholder_words:
        report.message("learning a lexicon")
        translations = translations_of(texts_of(train), num_pairs=train.num_pairs)
        report.message(f"{len(translations):,} words have translations")
    return PlainText(train=train, dev=dev, translations=translations)


def encode_text(
    text: PlainText, vocabulary: TextCodec, *, max_tokens: int, is_drawn: bool, report: Report, directory: Path
) -> TrainingText:
    """Encode both corpora without pairs that are too long; CorpusError if none is left.

    Token ids are written to unnamed files in `directory`.
    """
    train, dev = (
        _encode(name, pairs, vocabulary, max_tokens, report=report, directory=directory)
        for name, pairs in (("train", text.train), ("dev", text.dev))
    )
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
    name: str, pairs: Iterable[Pair], vocabulary: TextCodec, max_tokens: int, *, report: Report, directory: Path
) -> EncodedPairs:
    encoded = encode_pairs(pairs, vocabulary, max_tokens=max_tokens, report=report.message, directory=directory)
    sources, targets = (int(lists.lengths.sum()) for lists in (encoded.corpus.sources, encoded.corpus.targets))
    report.message(f"{name}: {sources:,} source and {targets:,} target tokens, {encoded.num_too_long:,} pairs too long")
    report.record("encoded", name=name, source_tokens=sources, target_tokens=targets, too_long=encoded.num_too_long)
    return encoded
