"""Learns a shortlist from parallel text; `dragoman_service.runtimes.shortlist` describes the format and its use."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman_export.data.lexicon import TokenPair, learn_lexicon
from dragoman_service.runtimes.shortlist import SIZE_STEP, Shortlist
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# of expectation maximisation: lists of 512 contain 99.17, 99.23 and 99.18 % of the bundled model's translations of
# tatoeba's test set after 2, 3 and 5
_ITERATIONS: Final = 3
# entries below this fraction of the threshold are dropped; they rarely decide whether a token is listed
_SMALLEST_PART: Final = 0.2
_MIN_PROBABILITY: Final = 1e-6  # of an entry, whatever the threshold; above the smallest positive half-precision number
_SAMPLE: Final = 256  # sources whose scores determine the threshold
_WORD_BEGIN: Final = "▁"  # SentencePiece's mark of white space before a word


def make_shortlist(
    pairs: Sequence[TokenPair], tokenizer: SentencePieceTokenizer, *, mean_size: int, max_size: int
) -> Shortlist:
    """Learn which target tokens are likely for which source.

    EOS, digits and punctuation are always listed. So are the tokens of the source itself, spelled with and without
    white space before them, because names and numbers are copied. `mean_size` is the number of tokens above the
    threshold, on average over the sources; `max_size` is rounded up to a multiple of `SIZE_STEP`. ValueError if no pair
    has tokens on both sides, or the sizes are inconsistent with each other or the vocabulary.
    """
    vocabulary_size = tokenizer.vocabulary_size
    max_size = min(-(-max_size // SIZE_STEP) * SIZE_STEP, vocabulary_size)
    if not 1 <= mean_size < max_size:
        raise ValueError(f"mean size {mean_size}: expected 1 to {max_size - 1}")
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
    # Share of each token in target text; 1 for tokens that are always listed.
    counts = np.bincount([token for target in targets for token in target], minlength=tokenizer.vocabulary_size)
    shares: NDArray[np.float32] = (counts / counts.sum()).astype(np.float32)
    for token, text in _words(tokenizer):
        if len(text) < 2 and all(unicodedata.category(character)[0] in "NP" for character in text):
            shares[token] = 1
    shares[tokenizer.eos_id] = 1
    return shares


def _copies(tokenizer: SentencePieceTokenizer) -> Iterator[tuple[int, int]]:
    # Every token with itself, and with its variant with or without white space before it.
    for token, text in _words(tokenizer):
        for piece in (text, _WORD_BEGIN + text):
            copy = tokenizer.token_id(piece)
            if copy is not None:
                yield token, copy


def _words(tokenizer: SentencePieceTokenizer) -> Iterator[tuple[int, str]]:
    # Every non-special token and its text without white space.
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    for token, piece in enumerate(tokenizer.pieces(range(tokenizer.vocabulary_size))):
        if token not in special:
            yield token, piece.removeprefix(_WORD_BEGIN)


def _threshold(shortlist: Shortlist, sources: Sequence[Sequence[int]], *, mean_size: int) -> float:
    # float32 threshold that `mean_size` scores reach on average; at most 1
    scores = np.concatenate([shortlist.scores(source).astype(np.float32) for source in sources])
    place = len(scores) - mean_size * len(sources)
    smallest = np.finfo(np.float32).tiny
    return float(np.partition(scores, place)[place].clip(smallest, 1))


def _cut(shortlist: Shortlist, threshold: float) -> Shortlist:
    # Sets a threshold and drops the entries far below it.
    is_kept = shortlist.probabilities >= threshold * _SMALLEST_PART
    before = np.concatenate([[0], np.cumsum(is_kept)])
    return replace(
        shortlist,
        threshold=threshold,
        begins=before[shortlist.begins].astype(np.int32),
        token_ids=shortlist.token_ids[is_kept],
        probabilities=shortlist.probabilities[is_kept],
    )
