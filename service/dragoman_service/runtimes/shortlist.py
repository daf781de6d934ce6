"""Vocabulary shortlist of a bundle: the target tokens that are likely in the translation of a source.

The projection to the vocabulary is the largest matrix product of a decoder step. With a shortlist, the step projects
only onto the likely tokens of each segment; all other tokens have a log-probability of minus infinity and are excluded
from the softmax. L'Hostis et al. 2016 (arXiv:1610.00072) compare ways to choose the tokens. Each segment has its own
list, computed from its source only, so that its translation does not depend on the other segments of the batch.

The score of a token is its expected number of occurrences in the target: the sum of its translation probabilities (IBM
Model 1) over the source tokens, plus its relative frequency in target text. The list contains the tokens whose scores
reach a threshold, so it is longer for long and for ambiguous sources.

Layout of the file, little-endian, without padding:

    magic "DRGMSL01", V (uint32), N entries (uint32), largest size (uint32), threshold (float32)
    int32 [V + 1]    index of the first entry of each source token, then N
    int32 [N]        target token of each entry
    float32 [V]      relative frequency of each token in target text; 1 for tokens that are always listed
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
"""List sizes are multiples of this size, because the matrix products process whole blocks of columns."""

_MAX_BYTES: Final = 1 << 30
_MAGIC: Final = b"DRGMSL01"
_HEADER: Final = struct.Struct("<8sIIIf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shortlist:
    """Scores of target tokens for every source token; safe to share between threads."""

    threshold: float  # minimum score of a listed token; above 0
    max_size: int  # maximum number of tokens of a list; a multiple of `SIZE_STEP`, or V if that is smaller
    begins: NDArray[np.int32]  # [V + 1] index of the first entry of each source token, then N
    token_ids: NDArray[np.int32]
    """[N] target token of each entry; unique per source token and sorted by descending probability."""
    shares: NDArray[np.float32]
    """[V] relative frequency of each token in target text, from 0 to 1; 1 for tokens that are always listed."""
    probabilities: NDArray[np.float16]  # [N] translation probability of each entry, above 0, at most 1

    @property
    def vocabulary_size(self) -> int:
        """Vocabulary size, V."""
        return len(self.shares)

    def of(self, source_ids: Sequence[int]) -> NDArray[np.int32]:
        """Return the ids of the tokens allowed in the translation of a source, in ascending order.

        The list contains the tokens that reach the threshold and is filled up with the next best tokens to a multiple
        of `SIZE_STEP`, at most `max_size`. Ties go to the smaller id.
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
        """Return the expected number of occurrences of each token in the target [V]."""
        sources = np.asarray(source_ids, dtype=np.int64)
        begins = self.begins[sources]
        counts = self.begins[sources + 1] - begins
        offsets = np.cumsum(counts) - counts
        entries = np.arange(counts.sum()) + np.repeat(begins - offsets, counts)
        probabilities = self.probabilities[entries].astype(np.float64)
        expected = np.bincount(self.token_ids[entries], probabilities, minlength=len(self.shares))
        return expected.astype(np.float64, copy=False) + self.shares

    def to_bytes(self) -> bytes:
        """Serialize to the file format."""
        header = _HEADER.pack(_MAGIC, self.vocabulary_size, len(self.token_ids), self.max_size, self.threshold)
        arrays = (self.begins, self.token_ids, self.shares, self.probabilities)
        return b"".join([header, *(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Parse the content of a file; raises ValueError if it is invalid."""
        if len(content) < _HEADER.size or not content.startswith(_MAGIC):
            raise ValueError("not a shortlist of a supported version")
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
        """Raise ValueError, with the names of the fields, if fields are inconsistent or out of range."""
        size, num_entries = self.vocabulary_size, len(self.token_ids)
        is_valid = {
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
        if invalid := [name for name, holds in is_valid.items() if not holds]:
            raise ValueError(f"invalid fields: {', '.join(invalid)}")


def open_shortlist(bundle: Bundle) -> Shortlist:
    """Read the shortlist of a bundle; raises BundleError if it is missing, invalid or for another vocabulary."""
    path = bundle.shortlist_path
    expected = "a shortlist that this service can read"
    try:
        shortlist = Shortlist.from_bytes(read_file(path, max_bytes=_MAX_BYTES))
    except OSError as error:
        raise BundleError.unreadable(str(path), error) from error
    except ValueError as error:
        raise BundleError(str(path), found=str(error), expected=expected, what="content") from error
    shape = bundle.manifest.architecture
    found = shortlist.vocabulary_size
    for what, size in (("", shape.vocabulary_size), (" of sources", shape.num_source_tokens)):
        if found != size:  # it has a list for each source token, and the same number of target tokens
            raise BundleError(str(path), found=found, expected=size, what=f"vocabulary size{what}")
    return shortlist
