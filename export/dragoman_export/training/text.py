"""Reads and encodes the text of a run, telling of every line and pair that is left out."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman_export.data.augmentation import VariationConfig, translations_of, vary_all
from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.data.lexicon import Translations
from dragoman_export.data.reader import Pair, PairFiles, ParallelFiles
from dragoman_export.data.vocabulary import TextCodec
from dragoman_export.errors import CorpusError
from dragoman_export.training.config import DataConfig
from dragoman_export.training.evaluation import DevSet
from dragoman_export.training.report import Report

_AS_IT_IS = VariationConfig()

_PAIRS_OF_A_CHUNK = 1 << 14
"""Pairs that are encoded together, each side by all cores."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedPairs:
    """What is left of some pairs."""

    corpus: EncodedCorpus
    given: Iterable[Pair]
    kept: NDArray[np.bool_]
    """Which of those given are in `corpus`."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs of `corpus`, in order."""
        return tuple(itertools.compress(self.given, self.kept))

    @property
    def num_too_long(self) -> int:
        """Pairs left out."""
        return int(np.count_nonzero(~self.kept))


def encode_pairs(
    pairs: Iterable[Pair],
    vocabulary: TextCodec,
    *,
    max_tokens: int,
    report: Callable[[str], None],
    directory: Path | None = None,
) -> EncodedPairs:
    """Encode both sides, some thousand pairs at a time.

    Args:
        pairs: to encode.
        vocabulary: of both sides.
        max_tokens: longest side kept, EOS counted.
        report: called with a line of text for every pair left out.
        directory: where the token ids are written; None: where temporary files are.

    Raises:
        CorpusError: if every pair is too long.
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
                    report(f"{pair.location}: {lengths}, at most {max_tokens} are used")

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
    """What the files of a run hold."""

    train: PairFiles
    dev: PairFiles
    translations: Translations = field(default_factory=dict)
    """Of words of `train`; none if no variation of pairs needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingText:
    """What is learned from and what is measured on."""

    train: EncodedCorpus
    dev: DevSet
    vocabulary: TextCodec
    train_pairs: Iterable[Pair] = ()
    """The pairs of `train`, in order; empty if every epoch has the same text and pieces."""
    translations: Translations = field(default_factory=dict)
    """Of words, learned from the training text if the variation of pairs needs them."""
    directory: Path | None = None
    """Where token ids are written; None: where temporary files are."""

    def drawn(
        self, *, alpha: float, max_tokens: int, seed: int, epoch: int, variation: VariationConfig = _AS_IT_IS
    ) -> EncodedCorpus:
        """Return `train` with text varied and pieces drawn at random, the same for a seed and an epoch.

        See `vary` and, unless `alpha` is 0, `encode_sampled`. A pair that is longer than `max_tokens` on a side that
        way keeps its usual text and pieces.
        """
        random = np.random.default_rng((seed, epoch))
        texts = vary_all(texts_of(self.train_pairs), variation, seed=seed, epoch=epoch, translations=self.translations)
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
                for source, target in zip(*sides, strict=True):
                    is_too_long = max(len(source), len(target)) > max_tokens
                    yield self._usual(index) if is_too_long else (source, target)
                    index += 1

        sources, targets = TokenLists.of_pairs(drawn(), directory=self.directory)
        return dataclasses.replace(self.train, sources=sources, targets=targets)

    def _usual(self, index: int) -> tuple[list[int], list[int]]:
        return self.train.sources[index].tolist(), self.train.targets[index].tolist()


def texts_of(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair."""
    return ((pair.source, pair.target) for pair in pairs)


def read_text(data: DataConfig, report: Report, variation: VariationConfig) -> PlainText:
    """Read both corpora, and learn what the variation of pairs needs; CorpusError if a corpus cannot be used."""
    train, dev = (
        _read(name, files, data.max_malformed, report) for name, files in (("train", data.train), ("dev", data.dev))
    )
    translations: Translations = {}
    if variation.placeholder_words:
        report.tell("learning which words translate each other")
        translations = translations_of(texts_of(train), num_pairs=train.num_pairs)
        report.tell(f"{len(translations):,} words have translations")
    return PlainText(train=train, dev=dev, translations=translations)


def encode_text(
    text: PlainText, vocabulary: TextCodec, *, max_tokens: int, is_drawn: bool, report: Report, directory: Path
) -> TrainingText:
    """Encode both corpora without the pairs that have more tokens on a side; CorpusError if that is all of them.

    Token ids are written to files without a name in a directory.
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
        report.tell(f"malformed: {line}")
        report.record("malformed", location=line.location, reason=line.reason)
    report.tell(f"{name}: {corpus.num_pairs:,} pairs, {len(corpus.malformed):,} malformed lines")
    report.record("corpus", name=name, pairs=corpus.num_pairs, malformed=len(corpus.malformed))
    return corpus


def _encode(
    name: str, pairs: Iterable[Pair], vocabulary: TextCodec, max_tokens: int, *, report: Report, directory: Path
) -> EncodedPairs:
    encoded = encode_pairs(pairs, vocabulary, max_tokens=max_tokens, report=report.tell, directory=directory)
    sources, targets = (int(lists.lengths.sum()) for lists in (encoded.corpus.sources, encoded.corpus.targets))
    report.tell(f"{name}: {sources:,} source and {targets:,} target tokens, {encoded.num_too_long:,} pairs too long")
    report.record("encoded", name=name, source_tokens=sources, target_tokens=targets, too_long=encoded.num_too_long)
    return encoded
