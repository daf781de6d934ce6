"""Turns the pairs that were read into token ids, leaving out and reporting those that are too long."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from export.corpus.batches import EncodedCorpus, TokenLists
from export.corpus.reader import Pair
from export.corpus.vocabulary import Vocabulary
from export.errors import CorpusError


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPairs:
    """What is left of some pairs."""

    corpus: EncodedCorpus
    pairs: tuple[Pair, ...]
    """The pairs of `corpus`, in order."""

    num_too_long: int
    """Pairs left out."""


def encode_pairs(
    pairs: Sequence[Pair], vocabulary: Vocabulary, *, max_tokens: int, report: Callable[[str], None]
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
    targets = vocabulary.encode([pair.target for pair in pairs])
    kept = []
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if max(len(source), len(target)) <= max_tokens:
            kept.append(index)
        else:
            report(f"{pairs[index].location}: {len(source)} and {len(target)} tokens, at most {max_tokens} are used")
    if not kept:
        raise CorpusError(f"every pair has more than {max_tokens} tokens")
    corpus = EncodedCorpus(
        sources=TokenLists([sources[index] for index in kept]), targets=TokenLists([targets[index] for index in kept])
    )
    return EncodedPairs(corpus=corpus, pairs=tuple(pairs[index] for index in kept), num_too_long=len(pairs) - len(kept))
