"""Which target tokens translate which source token: IBM Model 1, learned from parallel text.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1: every target token comes from one
source token, or from none of them (the empty word), all being equally likely beforehand. Expectation maximisation then
finds the probabilities t(target | source) under which the text is likeliest; there is one maximum only, so nothing is
drawn at random and the same text gives the same lexicon.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

IntArray = NDArray[np.int64]
DoubleArray = NDArray[np.float64]

TokenPair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a source and its target."""

Translations = Mapping[str, frozenset[str]]
"""The words of the target language that translate a word of the source language."""

_CHUNK_LINKS: Final = 1 << 21
"""Links looked at together: some 50 bytes each."""

_MIN_COUNT: Final = 5
"""Sentences that a word stands in; what translates rarer ones is a guess."""

_MIN_PROBABILITY: Final = 0.1
"""Of a word and its translation, in both directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    """The probabilities t(target | source) of all tokens that stand in some pair together."""

    vocabulary_size: int
    """V; as a source token, V is the empty word."""
    sources: IntArray
    """[N] ascending."""
    targets: IntArray
    """[N] ascending among those of a source."""
    probabilities: DoubleArray
    """[N]; those of a source add up to 1."""
    log_likelihoods: tuple[float, ...]
    """Of the text, natural, before each iteration: none is smaller than the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """Every link that some pairs may have, those of a target token together."""

    keys: IntArray
    """[N] `source * V + target`."""
    begins: IntArray
    """[T] where the links of each target token begin."""
    counts: IntArray
    """[T] links of each: its sources and the empty word."""


def learn_lexicon(pairs: Sequence[TokenPair], *, vocabulary_size: int, iterations: int = 5) -> Lexicon:
    """Learn t(target | source); shows a progress bar.

    Memory grows with the number of different pairs of tokens that stand in a pair together, by 40 bytes each.

    Args:
        pairs: without special tokens; those with an empty side tell nothing.
        vocabulary_size: V, ids are below it.
        iterations: of expectation maximisation; at least 1.

    Raises:
        ValueError: if no pair has tokens on both sides, or an id is outside the vocabulary.
    """
    pairs = [pair for pair in pairs if pair[0] and pair[1]]
    if not pairs:
        raise ValueError("no pair has tokens on both sides")
    if any(min(side) < 0 or max(side) >= vocabulary_size for pair in pairs for side in pair):
        raise ValueError(f"a token id is outside the vocabulary of {vocabulary_size}")
    chunks = list(_chunks(pairs))
    with tqdm(total=len(chunks) * (1 + iterations), unit="chunk", leave=False) as progress:
        keys = np.zeros(0, np.int64)
        for chunk in chunks:
            keys = np.union1d(keys, _links(chunk, vocabulary_size).keys)
            progress.update()
        sources, targets = np.divmod(keys, vocabulary_size)
        probabilities = _normalized(np.ones(len(keys)), sources)
        log_likelihoods = []
        for _ in range(iterations):
            expected, log_likelihood = np.zeros(len(keys)), 0.0
            for chunk in chunks:
                links = _links(chunk, vocabulary_size)
                log_likelihood += _expect(links, keys, probabilities, expected)
                progress.update()
            probabilities = _normalized(expected, sources)
            log_likelihoods.append(log_likelihood)
    return Lexicon(
        vocabulary_size=vocabulary_size,
        sources=sources,
        targets=targets,
        probabilities=probabilities,
        log_likelihoods=tuple(log_likelihoods),
    )


def learn_translations(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], *, max_share: float = 1.0) -> Translations:
    """Learn which words translate each other: t(target | source) and t(source | target) are both 0.1 or more.

    Args:
        pairs: the words of sources and targets. Words in fewer than five sentences are left out.
        max_share: of the sentences; words that stand in more of them have no translations.
    """
    max_count = max_share * len(pairs)
    sides = [_Side.of([pair[side] for pair in pairs]) for side in (0, 1)]
    size = max(len(side.words) for side in sides)
    links, reverse = (
        _likely(list(zip(first.sentences, second.sentences, strict=True)), vocabulary_size=size)
        for first, second in (sides, sides[::-1])
    )
    translations: dict[str, set[str]] = {}
    for link in links:
        words = [side.words[number] for side, number in zip(sides, link, strict=True)]
        is_rare = all(side.counts[word] <= max_count for side, word in zip(sides, words, strict=True))
        if is_rare and link[::-1] in reverse:
            translations.setdefault(words[0], set()).add(words[1])
    return {source: frozenset(found) for source, found in translations.items()}


@dataclass(frozen=True, slots=True)
class _Side:
    """The sentences of a language."""

    counts: Mapping[str, int]
    """Sentences that each word stands in."""
    words: Sequence[str]
    """Those that are frequent enough."""
    sentences: Sequence[Sequence[int]]
    """As indices of `words`."""

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> "_Side":
        counts = Counter(word for sentence in sentences for word in set(sentence))
        words = [word for word, count in counts.items() if count >= _MIN_COUNT]
        numbers = {word: number for number, word in enumerate(words)}
        return cls(counts, words, [[numbers[word] for word in sentence if word in numbers] for sentence in sentences])


def _likely(pairs: Sequence[TokenPair], *, vocabulary_size: int) -> set[tuple[int, int]]:
    """Return the links (source, target) that are likely; none if no pair has words on both sides."""
    if not any(source and target for source, target in pairs):
        return set()
    lexicon = learn_lexicon(pairs, vocabulary_size=vocabulary_size)
    is_likely = (lexicon.probabilities >= _MIN_PROBABILITY) & (lexicon.sources < vocabulary_size)
    return set(zip(lexicon.sources[is_likely].tolist(), lexicon.targets[is_likely].tolist(), strict=True))


def _expect(links: _Links, keys: IntArray, probabilities: DoubleArray, expected: DoubleArray) -> float:
    """Add to `expected` [N] how often each link is expected; return the log-likelihood of the target tokens."""
    different, places = np.unique(links.keys, return_inverse=True)
    indices = np.searchsorted(keys, different)
    weights = probabilities[indices][places]
    sums = np.add.reduceat(weights, links.begins)
    shares = weights / np.repeat(sums, links.counts)
    expected[indices] += np.bincount(places, shares)
    return float(np.log(sums / links.counts).sum())


def _normalized(values: DoubleArray, sources: IntArray) -> DoubleArray:
    """Return values [N] divided by the sum over their source."""
    sums = np.bincount(sources, values)
    return values / sums[sources]


def _chunks(pairs: Sequence[TokenPair]) -> Iterator[Sequence[TokenPair]]:
    """Yield pairs in order, so many at a time that their links fit into memory."""
    sizes = np.array([(len(source) + 1) * len(target) for source, target in pairs], np.int64)
    numbers = np.cumsum(sizes) // _CHUNK_LINKS
    ends = [0, *(np.flatnonzero(np.diff(numbers, append=-1)) + 1).tolist()]
    for begin, end in itertools.pairwise(ends):
        yield pairs[begin:end]


def _links(pairs: Sequence[TokenPair], vocabulary_size: int) -> _Links:
    """Return all links of some pairs."""
    source_counts = np.array([len(source) + 1 for source, _ in pairs], np.int64)
    target_counts = np.array([len(target) for _, target in pairs], np.int64)
    sources = np.array([token for source, _ in pairs for token in (*source, vocabulary_size)], np.int64)
    targets = np.array([token for _, target in pairs for token in target], np.int64)
    counts = np.repeat(source_counts, target_counts)  # [T]
    ends = np.cumsum(counts)
    first_sources = np.repeat(np.cumsum(source_counts) - source_counts, target_counts)  # [T]
    # Link n of the target token that begins at link b has source n - b of its pair.
    places = np.arange(ends[-1]) + np.repeat(first_sources - (ends - counts), counts)
    keys = sources[places] * vocabulary_size + np.repeat(targets, counts)
    return _Links(keys=keys, begins=ends - counts, counts=counts)
