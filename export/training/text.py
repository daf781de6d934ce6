"""Reads and encodes the text of a run, telling of every line and pair that is left out."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from export.corpus.batches import EncodedCorpus, TokenLists
from export.corpus.reader import Corpus, Pair, ParallelFiles, read_corpus
from export.corpus.variation import VariationConfig, vary_all
from export.corpus.vocabulary import TextCodec
from export.errors import CorpusError
from export.training.config import DataConfig
from export.training.evaluation import DevSet
from export.training.report import Report

_AS_IT_IS = VariationConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPairs:
    """What is left of some pairs."""

    corpus: EncodedCorpus
    pairs: tuple[Pair, ...]
    """The pairs of `corpus`, in order."""

    num_too_long: int
    """Pairs left out."""


def encode_pairs(
    pairs: Sequence[Pair], vocabulary: TextCodec, *, max_tokens: int, report: Callable[[str], None]
) -> EncodedPairs:
    """Encode both sides.

    Args:
        pairs: to encode.
        vocabulary: of both sides.
        max_tokens: longest side kept, EOS counted.
        report: called with a line of text for every pair left out.

    Raises:
        CorpusError: if every pair is too long.
    """
    sources = vocabulary.encode([pair.source for pair in pairs])
    targets = vocabulary.encode_targets([pair.target for pair in pairs])
    kept = []
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if max(len(source), len(target)) <= max_tokens:
            kept.append(index)
        else:
            report(f"{pairs[index].location}: {len(source)} and {len(target)} tokens, at most {max_tokens} are used")
    if not kept:
        raise CorpusError(f"every pair has more than {max_tokens} tokens")
    corpus = EncodedCorpus(
        sources=TokenLists([sources[index] for index in kept]),
        targets=TokenLists([targets[index] for index in kept]),
        pad_id=vocabulary.pad_id,
        start_id=vocabulary.start_id,
    )
    return EncodedPairs(corpus=corpus, pairs=tuple(pairs[index] for index in kept), num_too_long=len(pairs) - len(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """What the files of a run hold."""

    train: tuple[Pair, ...]
    dev: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingText:
    """What is learned from and what is measured on."""

    train: EncodedCorpus
    dev: DevSet
    vocabulary: TextCodec
    train_pairs: tuple[Pair, ...] = ()
    """The pairs of `train`, in order; empty if every epoch has the same text and pieces."""

    def drawn(
        self, *, alpha: float, max_tokens: int, seed: int, epoch: int, variation: VariationConfig = _AS_IT_IS
    ) -> EncodedCorpus:
        """Return `train` with text varied and pieces drawn at random, the same for a seed and an epoch.

        See `vary` and, unless `alpha` is 0, `encode_sampled`. A pair that is longer than `max_tokens` on a side that
        way keeps its usual text and pieces.
        """
        seeds = np.random.default_rng((seed, epoch)).integers(1 << 31, size=2)
        texts = zip(*vary_all(texts_of(self.train_pairs), variation, seed=seed, epoch=epoch), strict=True)
        encoders = (self.vocabulary.encode, self.vocabulary.encode_targets)
        sides = [
            self.vocabulary.encode_sampled(text, alpha=alpha, seed=int(side_seed)) if alpha else encode(text)
            for text, side_seed, encode in zip(texts, seeds, encoders, strict=True)
        ]
        usual = (self.train.sources, self.train.targets)
        for index, pair in enumerate(zip(*sides, strict=True)):
            if max(map(len, pair)) > max_tokens:
                for side, lists in zip(sides, usual, strict=True):
                    side[index] = lists[index].tolist()
        sources, targets = map(TokenLists, sides)
        return dataclasses.replace(self.train, sources=sources, targets=targets)


def texts_of(pairs: Iterable[Pair]) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair."""
    return ((pair.source, pair.target) for pair in pairs)


def read_text(data: DataConfig, report: Report) -> PlainText:
    """Read both corpora; CorpusError if one cannot be used."""
    train, dev = (
        _read(name, files, data.max_malformed, report) for name, files in (("train", data.train), ("dev", data.dev))
    )
    return PlainText(train=train.pairs, dev=dev.pairs)


def encode_text(
    text: PlainText, vocabulary: TextCodec, *, max_tokens: int, is_drawn: bool, report: Report
) -> TrainingText:
    """Encode both corpora without the pairs that have more tokens on a side; CorpusError if that is all of them."""
    train, dev = (
        _encode(name, pairs, vocabulary, max_tokens, report)
        for name, pairs in (("train", text.train), ("dev", text.dev))
    )
    references = tuple(pair.target for pair in dev.pairs)
    return TrainingText(
        train=train.corpus,
        dev=DevSet(corpus=dev.corpus, references=references),
        vocabulary=vocabulary,
        train_pairs=train.pairs if is_drawn else (),
    )


def _read(name: str, files: Sequence[ParallelFiles], max_malformed: float, report: Report) -> Corpus:
    corpus = read_corpus(files, max_malformed=max_malformed)
    for line in corpus.malformed:
        report.tell(f"malformed: {line}")
        report.record("malformed", location=line.location, reason=line.reason)
    report.tell(f"{name}: {len(corpus.pairs):,} pairs, {len(corpus.malformed):,} malformed lines")
    report.record("corpus", name=name, pairs=len(corpus.pairs), malformed=len(corpus.malformed))
    return corpus


def _encode(name: str, pairs: Sequence[Pair], vocabulary: TextCodec, max_tokens: int, report: Report) -> EncodedPairs:
    encoded = encode_pairs(pairs, vocabulary, max_tokens=max_tokens, report=report.tell)
    sources, targets = (int(lists.lengths.sum()) for lists in (encoded.corpus.sources, encoded.corpus.targets))
    report.tell(f"{name}: {sources:,} source and {targets:,} target tokens, {encoded.num_too_long:,} pairs too long")
    report.record("encoded", name=name, source_tokens=sources, target_tokens=targets, too_long=encoded.num_too_long)
    return encoded
