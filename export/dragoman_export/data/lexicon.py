"""Learns a translation lexicon from parallel text with IBM Model 1.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1: every target token has one source
token, or the empty word; all alignments are equally likely a priori. Expectation maximisation finds the probabilities
t(target | source) with the highest likelihood. The only maximum is global, so the result is deterministic.
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

TokenPair = tuple[Sequence[int], Sequence[int]]  # token ids of a source and of its target
Translations = Mapping[str, frozenset[str]]  # source word -> its translations
_CHUNK_LINKS: Final = 1 << 21  # links processed together, about 50 bytes each
_MIN_COUNT: Final = 5  # sentences with a word; translations of rarer words are unreliable
_MIN_PROBABILITY: Final = 0.1  # of a word and its translation, in both directions


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    """The probabilities t(target | source) of all tokens that occur together in a pair."""

    vocabulary_size: int  # V; as a source token, V is the empty word
    sources: IntArray  # [N] ascending
    targets: IntArray  # [N] ascending within a source
    probabilities: DoubleArray  # [N]; they sum to 1 per source
    log_likelihoods: tuple[float, ...]  # natural, of the text before each iteration; non-decreasing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    # All candidate links of some pairs, grouped by target token.
    keys: IntArray  # [N] `source * V + target`
    begins: IntArray  # [T] first link of each target token
    counts: IntArray  # [T] links of each target token: the source tokens and the empty word


def learn_lexicon(pairs: Sequence[TokenPair], *, vocabulary_size: int, iterations: int = 5) -> Lexicon:
    """Learn t(target | source) of pairs without special tokens, and show a progress bar.

    Memory grows by 40 bytes per distinct pair of tokens that occur together. ValueError if no pair has tokens on both
    sides, or an id is outside the vocabulary.
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
    """Learn the words that translate each other: t(target | source) and t(source | target) >= 0.1.

    Words in fewer than five sentences, or in a larger share than `max_share`, have no translations.
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
    # The sentences of one language.
    counts: Mapping[str, int]  # sentences with each word
    words: Sequence[str]  # frequent words
    sentences: Sequence[Sequence[int]]  # indices into `words`

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> "_Side":
        counts = Counter(word for sentence in sentences for word in set(sentence))
        words = [word for word, count in counts.items() if count >= _MIN_COUNT]
        numbers = {word: number for number, word in enumerate(words)}
        return cls(counts, words, [[numbers[word] for word in sentence if word in numbers] for sentence in sentences])


def _likely(pairs: Sequence[TokenPair], *, vocabulary_size: int) -> set[tuple[int, int]]:
    if not any(source and target for source, target in pairs):
        return set()
    lexicon = learn_lexicon(pairs, vocabulary_size=vocabulary_size)
    is_likely = (lexicon.probabilities >= _MIN_PROBABILITY) & (lexicon.sources < vocabulary_size)
    return set(zip(lexicon.sources[is_likely].tolist(), lexicon.targets[is_likely].tolist(), strict=True))


def _expect(links: _Links, keys: IntArray, probabilities: DoubleArray, expected: DoubleArray) -> float:
    # Adds the expected count of each link to `expected` [N]; returns the log-likelihood of the target tokens.
    distinct, places = np.unique(links.keys, return_inverse=True)
    indices = np.searchsorted(keys, distinct)
    weights = probabilities[indices][places]
    sums = np.add.reduceat(weights, links.begins)
    shares = weights / np.repeat(sums, links.counts)
    expected[indices] += np.bincount(places, shares)
    return float(np.log(sums / links.counts).sum())


def _normalized(values: DoubleArray, sources: IntArray) -> DoubleArray:
    sums = np.bincount(sources, values)
    return values / sums[sources]


def _chunks(pairs: Sequence[TokenPair]) -> Iterator[Sequence[TokenPair]]:
    # Consecutive pairs with at most about `_CHUNK_LINKS` links.
    sizes = np.array([(len(source) + 1) * len(target) for source, target in pairs], np.int64)
    numbers = np.cumsum(sizes) // _CHUNK_LINKS
    ends = [0, *(np.flatnonzero(np.diff(numbers, append=-1)) + 1).tolist()]
    for begin, end in itertools.pairwise(ends):
        yield pairs[begin:end]


def _links(pairs: Sequence[TokenPair], vocabulary_size: int) -> _Links:
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
