"""The shortlist of a bundle: the target tokens that the translation of a source is likely to hold.

The projection to the vocabulary is the largest product of a decoder step. With a shortlist the step projects onto the
likely tokens of each segment only; all others have a log-probability of minus infinity and no part in the softmax.
L'Hostis et al. 2016 (arXiv:1610.00072) compare ways to choose them. Every segment has a list of its own, made of its
source alone, so that its translation does not depend on its company.

A token's score is how often it is expected in the target: the sum, over the tokens of the source, of the probabilities
to be translated by it (IBM Model 1), and its share of all target text. The list holds the tokens whose scores reach a
threshold, so it is longer for long and for ambiguous sources.

Layout of the file, little-endian, without padding:

    magic "DRGMSL01", V (uint32), N entries (uint32), largest size (uint32), threshold (float32)
    int32 [V + 1]    where the entries of each source token begin, and the end
    int32 [N]        target token of each entry
    float32 [V]      share of each token in target text; 1 for those that are always listed
    float16 [N]      probability of each entry
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.files import Bundle, read_file
from dragoman_service.errors import BundleError

SIZE_STEP: Final = 64
"""The size of a list is a multiple of this: products of whole blocks of columns take no longer."""

_MAX_BYTES: Final = 1 << 30
_MAGIC: Final = b"DRGMSL01"
_HEADER: Final = struct.Struct("<8sIIIf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist:
    """Scores of target tokens for every source token; safe to share between threads."""

    threshold: float
    """Smallest score of a token that is listed; above 0."""
    max_size: int
    """Most tokens of a list; a multiple of `SIZE_STEP`, or V if that is smaller."""
    begins: NDArray[np.int32]
    """[V + 1] where the entries of each source token begin, and the end."""
    token_ids: NDArray[np.int32]
    """[N] target token of each entry, those of a source token different and with falling probability."""
    shares: NDArray[np.float32]
    """[V] of each token in target text, from 0 to 1; 1 for those that are always listed."""
    probabilities: NDArray[np.float16]
    """[N] of each entry, above 0, at most 1."""

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return len(self.shares)

    def of(self, source_ids: Sequence[int]) -> NDArray[np.int32]:
        """Return the tokens that the translation of a source may hold, ascending.

        As many as reach the threshold, rounded up with the next best to a multiple of `SIZE_STEP`, at most `max_size`
        or V; of tokens with the same score the smaller id is better.
        """
        scores = self.scores(source_ids)
        num_likely = int(np.count_nonzero(scores >= self.threshold))
        size = min(max(-(-num_likely // SIZE_STEP), 1) * SIZE_STEP, self.max_size)
        smallest = np.partition(scores, len(scores) - size)[len(scores) - size]
        is_listed = scores > smallest
        ties = np.flatnonzero(scores == smallest)
        is_listed[ties[: size - np.count_nonzero(is_listed)]] = True
        return np.flatnonzero(is_listed).astype(np.int32)

    def scores(self, source_ids: Sequence[int]) -> NDArray[np.float64]:
        """Return how often each token is expected in the target [V]."""
        sources = np.asarray(source_ids, dtype=np.int64)
        begins = self.begins[sources]
        counts = self.begins[sources + 1] - begins
        offsets = np.cumsum(counts) - counts
        entries = np.arange(counts.sum()) + np.repeat(begins - offsets, counts)
        probabilities = self.probabilities[entries].astype(np.float64)
        expected = np.bincount(self.token_ids[entries], probabilities, minlength=len(self.shares))
        return expected.astype(np.float64, copy=False) + self.shares

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        header = _HEADER.pack(_MAGIC, self.vocabulary_size, len(self.token_ids), self.max_size, self.threshold)
        arrays = (self.begins, self.token_ids, self.shares, self.probabilities)
        return b"".join([header, *(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the content of a file; ValueError says what is wrong with it."""
        if len(content) < _HEADER.size or not content.startswith(_MAGIC):
            raise ValueError("no shortlist of this version")
        _, size, num_entries, max_size, threshold = _HEADER.unpack_from(content)
        counts = {"<i4": (size + 1, num_entries), "<f4": (size,), "<f2": (num_entries,)}
        arrays: list[NDArray[Any]] = []
        position = _HEADER.size
        for dtype, lengths in counts.items():
            for length in lengths:
                num_bytes = length * np.dtype(dtype).itemsize
                if position + num_bytes > len(content):
                    raise ValueError(f"{len(content)} bytes, too few for {size} tokens and {num_entries} entries")
                arrays.append(np.frombuffer(content, dtype, length, position))
                position += num_bytes
        if position != len(content):
            raise ValueError(f"{len(content)} bytes, expected {position}")
        begins, token_ids, shares, probabilities = arrays
        shortlist = cls(
            threshold=threshold,
            max_size=max_size,
            begins=begins,
            token_ids=token_ids,
            shares=shares,
            probabilities=probabilities,
        )
        shortlist.check()
        return shortlist

    def check(self) -> None:
        """Raise ValueError unless all fields are what they say."""
        size, num_entries = self.vocabulary_size, len(self.token_ids)
        facts = {
            "threshold": 0 < self.threshold <= 1,
            "max_size": 1 <= self.max_size <= size and (self.max_size % SIZE_STEP == 0 or self.max_size == size),
            "begins": len(self.begins) == size + 1
            and self.begins[0] == 0
            and self.begins[-1] == num_entries
            and bool((self.begins[1:] >= self.begins[:-1]).all()),
            "token_ids": bool(((self.token_ids >= 0) & (self.token_ids < size)).all()),
            "shares": bool(((self.shares >= 0) & (self.shares <= 1)).all()),
            "probabilities": len(self.probabilities) == num_entries
            and bool(((self.probabilities > 0) & (self.probabilities <= 1)).all()),
        }
        if wrong := [name for name, holds in facts.items() if not holds]:
            raise ValueError(f"not as documented: {', '.join(wrong)}")


def open_shortlist(bundle: Bundle) -> Shortlist:
    """Return the shortlist of a bundle; BundleError if there is none, or it is damaged or of another vocabulary."""
    path = bundle.shortlist_path
    expected = "a shortlist this service can read"
    try:
        shortlist = Shortlist.from_bytes(read_file(path, max_bytes=_MAX_BYTES))
    except OSError as error:
        raise BundleError(str(path), found=error.strerror, expected="a readable file", what="access") from error
    except ValueError as error:
        raise BundleError(str(path), found=str(error), expected=expected, what="content") from error
    shape = bundle.manifest.architecture
    found = shortlist.vocabulary_size
    for what, size in (("", shape.vocabulary_size), (" of sources", shape.num_source_tokens)):
        if found != size:  # its lists are those of source tokens, and of as many target tokens
            raise BundleError(str(path), found=found, expected=size, what=f"vocabulary size{what}")
    return shortlist
