"""Makes a shortlist of parallel text; `dragoman_service.runtimes.shortlist` says what it is and how it is used."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman_export.data.lexicon import TokenPair, learn_lexicon
from dragoman_service.runtimes.shortlist import SIZE_STEP, Shortlist
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_ITERATIONS: Final = 3
"""Of expectation maximisation: lists of 512 held 99.17, 99.23 and 99.18 % of the shipped model's translations of
tatoeba's test set after 2, 3 and 5."""

_SMALLEST_PART: Final = 0.2
"""Entries below this part of the threshold are left out: they hardly ever decide whether a token is listed."""

_MIN_PROBABILITY: Final = 1e-6
"""Of an entry, whatever the threshold; half precision still tells it from 0."""

_SAMPLE: Final = 256
"""Sources whose scores are looked at to find the threshold."""

_WORD_BEGIN: Final = "▁"
"""SentencePiece's mark of the white space before a word."""


def make_shortlist(
    pairs: Sequence[TokenPair], tokenizer: SentencePieceTokenizer, *, mean_size: int, max_size: int
) -> Shortlist:
    """Learn which target tokens are likely for which source.

    Always listed are the end of the sentence, digits and punctuation, and the tokens of the source itself, spelled with
    and without white space before them, as names and numbers are copied.

    Args:
        pairs: token ids of sources and targets, without special tokens.
        tokenizer: of the bundle.
        mean_size: tokens that reach the threshold, on average over the sources of the text.
        max_size: most tokens of a list; rounded up to a multiple of `SIZE_STEP`.

    Raises:
        ValueError: if no pair has tokens on both sides, or the sizes do not fit each other and the vocabulary.
    """
    vocabulary_size = tokenizer.vocabulary_size
    max_size = min(-(-max_size // SIZE_STEP) * SIZE_STEP, vocabulary_size)
    if not 1 <= mean_size < max_size:
        raise ValueError(f"a mean size of {mean_size}, expected 1 to {max_size - 1}")
    lexicon = learn_lexicon(pairs, vocabulary_size=vocabulary_size, iterations=_ITERATIONS)
    is_entry = (lexicon.sources < vocabulary_size) & (lexicon.probabilities >= _MIN_PROBABILITY)
    copies = np.array(list(_copies(tokenizer)), np.int64).reshape(-1, 2)
    sources = np.concatenate([copies[:, 0], lexicon.sources[is_entry]])
    targets = np.concatenate([copies[:, 1], lexicon.targets[is_entry]])
    probabilities = np.concatenate([np.ones(len(copies)), lexicon.probabilities[is_entry]])
    _, first = np.unique(sources * vocabulary_size + targets, return_index=True)  # a copy comes before its entry
    order = first[np.lexsort((targets[first], -probabilities[first], sources[first]))]
    all_entries = Shortlist(
        threshold=1.0,
        max_size=max_size,
        begins=np.searchsorted(sources[order], np.arange(vocabulary_size + 1)).astype(np.int32),
        token_ids=targets[order].astype(np.int32),
        shares=_shares([target for _, target in pairs], tokenizer),
        probabilities=probabilities[order].astype(np.float16),
    )
    sample = [source for source, _ in pairs[:: -(-len(pairs) // _SAMPLE)]]
    return _cut(all_entries, _threshold(all_entries, sample, mean_size=mean_size))


def _shares(targets: Sequence[Sequence[int]], tokenizer: SentencePieceTokenizer) -> NDArray[np.float32]:
    """Return the share of each token in target text; 1 for those that are always listed."""
    counts = np.bincount([token for target in targets for token in target], minlength=tokenizer.vocabulary_size)
    shares: NDArray[np.float32] = (counts / counts.sum()).astype(np.float32)
    for token, text in _words(tokenizer):
        if len(text) < 2 and all(unicodedata.category(character)[0] in "NP" for character in text):
            shares[token] = 1
    shares[tokenizer.eos_id] = 1
    return shares


def _copies(tokenizer: SentencePieceTokenizer) -> Iterator[tuple[int, int]]:
    """Yield every token with itself, and with the one that differs in the white space before it."""
    for token, text in _words(tokenizer):
        for piece in (text, _WORD_BEGIN + text):
            copy = tokenizer.token_id(piece)
            if copy is not None:
                yield token, copy


def _words(tokenizer: SentencePieceTokenizer) -> Iterator[tuple[int, str]]:
    """Yield every token that may stand in a text and its text, without white space."""
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    for token, piece in enumerate(tokenizer.pieces(range(tokenizer.vocabulary_size))):
        if token not in special:
            yield token, piece.removeprefix(_WORD_BEGIN)


def _threshold(shortlist: Shortlist, sources: Sequence[Sequence[int]], *, mean_size: int) -> float:
    """Return the float32 that so many scores reach, on average over some sources; at most 1."""
    scores = np.concatenate([shortlist.scores(source).astype(np.float32) for source in sources])
    place = len(scores) - mean_size * len(sources)
    smallest = np.finfo(np.float32).tiny
    return float(np.partition(scores, place)[place].clip(smallest, 1))


def _cut(shortlist: Shortlist, threshold: float) -> Shortlist:
    """Set a threshold, and leave out the entries that are small beside it."""
    is_kept = shortlist.probabilities >= threshold * _SMALLEST_PART
    before = np.concatenate([[0], np.cumsum(is_kept)])
    return replace(
        shortlist,
        threshold=threshold,
        begins=before[shortlist.begins].astype(np.int32),
        token_ids=shortlist.token_ids[is_kept],
        probabilities=shortlist.probabilities[is_kept],
    )
