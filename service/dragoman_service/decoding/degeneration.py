"""Detection of degenerate targets (loops, implausible lengths), and decoding them again.

Token ids are without EOS; source and target share one vocabulary. Copied sources are found in the text, see
`dragoman_service.text.invariants`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    DegenerationReport,
    Hypothesis,
    SearchConfig,
    Segment,
)

MIN_REPEATS = (5, 4, 3, 3, 3, 3, 3, 3)
"""Minimum number of consecutive repeats of 1, 2, ... tokens in a loop. `very, very, very` and `ha ha ha ha` are
emphasis, but a phrase is not repeated three times."""

LOOP_CHECK_STEPS = 16  # target lengths at which a search is checked for a loop are multiples of this; 10 us each

_LONG_FACTOR, _LONG_OFFSET = 3, 20  # a target is too long beyond factor * source + offset
_SHORT_FACTOR, _SHORT_SOURCE_TOKENS = 5, 10  # from 10 source tokens on, it is too short below source / factor

_NO_REPEAT_SIZE = 3  # without repeated 3-grams, no target reaches `MIN_REPEATS`


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Defects of a target.

    The severity is the sum over the defects: the share of the target that loops, 1 for its length, and 1 more for a
    loop that was cut off, because it would have continued.
    """

    defects: tuple[Degeneration, ...]
    severity: float


def find_degenerations(
    source_ids: Sequence[int], target_ids: Sequence[int], *, num_forced: int = 0, is_finished: bool = True
) -> Findings:
    """Return the defects of a target; the `num_forced` tokens of its prefix count only for its length.

    A target that was cut off (not `is_finished`) is not too short.
    """
    chosen_ids = target_ids[num_forced:]
    candidates = [
        _find_repetition(source_ids, chosen_ids),
        _find_length(source_ids, target_ids, is_finished=is_finished),
    ]
    defects = [candidate for candidate in candidates if candidate is not None]
    severity = sum(severity for _, severity in defects) + (candidates[0] is not None and not is_finished)
    return Findings(defects=tuple(defect for defect, _ in defects), severity=float(severity))


def is_looping(source_ids: Sequence[int], target_ids: Sequence[int]) -> bool:
    """Return whether a growing target, without its prefix, ends in a loop."""
    ids = list(target_ids)
    if not any(_ends_in_loop(ids, size, num) for size, num in enumerate(MIN_REPEATS, 1)):
        return False
    return any(_ends_in_loop(ids, size, num) for size, num in enumerate(_loop_limits(source_ids), 1))


def plan_redecode(search: SearchConfig, source_ids: tuple[int, ...], defects: Sequence[Degeneration]) -> SearchConfig:
    """Return the search to decode again without these defects; stricter limits of the caller are kept."""
    kinds = {defect.kind for defect in defects}
    own_size = search.no_repeat_ngram_size or _NO_REPEAT_SIZE
    shortest = search.min_target_tokens
    if DegenerationKind.LENGTH_RATIO in kinds:
        shortest = max(shortest, min(_shortest_target(source_ids), search.max_target_tokens - 1))
    return replace(
        search,
        no_repeat_ngram_size=min(own_size, _NO_REPEAT_SIZE),
        min_target_tokens=shortest,
        repetition_guard=False,
    )


def is_redecode_better(first: tuple[Hypothesis, Findings], second: tuple[Hypothesis, Findings]) -> bool:
    """Return whether the second target is better: fewer defects, a lower severity, or a higher score."""
    (old, old_findings), (new, new_findings) = first, second
    old_rank = len(old_findings.defects), round(old_findings.severity, 3), not old.is_finished, -old.score
    new_rank = len(new_findings.defects), round(new_findings.severity, 3), not new.is_finished, -new.score
    return new_rank < old_rank


def _find_repetition(source_ids: Sequence[int], target_ids: Sequence[int]) -> tuple[Degeneration, float] | None:
    repeats = _repeats_by_size(target_ids)
    if all(num < limit for num, limit in zip(repeats, MIN_REPEATS, strict=True)):
        return None
    for size, (num, limit) in enumerate(zip(repeats, _loop_limits(source_ids), strict=True), 1):
        if num >= limit:
            tokens = "token" if size == 1 else "tokens"
            defect = Degeneration(
                kind=DegenerationKind.REPETITION, detail=f"a run of {size} {tokens} {num} times in a row"
            )
            return defect, size * num / len(target_ids)
    return None


def _loop_limits(source_ids: Sequence[int]) -> list[int]:
    """Return the minimum number of repeats of 1, 2, ... tokens in a loop, given the repeats of the source.

    The translation of a one-token word may have several tokens, and vice versa. So the longest repetition in the source
    counts for all sizes, and a target may repeat twice as often.
    """
    allowed = 2 * max(_repeats_by_size(source_ids))
    return [max(limit, allowed + 1) for limit in MIN_REPEATS]


def _repeats_by_size(ids: Sequence[int]) -> list[int]:
    """Return the maximum number of consecutive repeats of runs of 1, 2, ... tokens; exact if it is at least 2."""
    array = np.asarray(ids)
    return [_count_repeats(array, size) for size in range(1, len(MIN_REPEATS) + 1)]


def _count_repeats(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> int:
    is_equal = array[size:] == array[:-size]
    if np.count_nonzero(is_equal) < size:  # for most texts and sizes
        return 1
    breaks = np.flatnonzero(~np.concatenate(([False], is_equal, [False])))
    longest = int(np.diff(breaks).max()) - 1
    return longest // size + 1


def _ends_in_loop(ids: list[int], size: int, num_repeats: int) -> bool:
    span = size * num_repeats
    return len(ids) >= span and ids[-span:-size] == ids[len(ids) - span + size :]


def _find_length(
    source_ids: Sequence[int], target_ids: Sequence[int], *, is_finished: bool
) -> tuple[Degeneration, float] | None:
    num_source, num_target = len(source_ids), len(target_ids)
    is_long = num_target > _LONG_FACTOR * num_source + _LONG_OFFSET
    is_short = is_finished and num_target < _shortest_target(source_ids)
    if not is_long and not is_short:
        return None
    detail = f"{num_target} tokens for a source of {num_source}"
    return Degeneration(kind=DegenerationKind.LENGTH_RATIO, detail=detail), 1.0


def _shortest_target(source_ids: Sequence[int]) -> int:
    """Return the length of the shortest plausible target."""
    num_source = len(source_ids)
    return -(-num_source // _SHORT_FACTOR) if num_source >= _SHORT_SOURCE_TOKENS else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSegment:
    """A segment that was decoded."""

    segment_id: int  # see `RunningBatch.start`
    hypotheses: tuple[Hypothesis, ...]  # best first; empty only if all candidates were masked or NaN
    num_steps: int  # of all searches
    degeneration: DegenerationReport | None = None  # None: no defect was found, or `repetition_guard` was off


class Redecoder:
    """Decides which segments of a running batch are decoded again, and chooses between both results."""

    def __init__(self, *, eos_id: int) -> None:
        self._eos_id = eos_id
        self._first: dict[int, tuple[EndedSegment, Findings]] = {}  # of segments in their second search, by id

    def is_looping(self, segment: Segment, best_ids: list[int]) -> bool:
        """Return whether a search can stop because its best live hypothesis loops."""
        return is_looping(self._source(segment), best_ids[len(segment.search.target_prefix) :])

    def handle(
        self, segment: Segment, ended: EndedSegment, *, looping_ids: tuple[int, ...] = ()
    ) -> EndedSegment | SearchConfig:
        """Return the result of a segment after one of its searches, or the search to decode it again.

        `looping_ids` is the best live hypothesis, if the search was stopped because it loops.
        """
        if first := self._first.pop(ended.segment_id, None):
            return self._choose(segment, *first, ended)
        if segment.search.repetition_guard and ended.hypotheses:
            findings = (
                self._find_in_ids(segment, looping_ids, is_finished=False)
                if looping_ids
                else self._find(segment, ended.hypotheses[0])
            )
            if findings.defects:
                self._first[ended.segment_id] = ended, findings
                return plan_redecode(segment.search, self._source(segment), findings.defects)
        return ended

    def forget(self, segment_id: int) -> None:
        """Forget a segment that leaves the batch."""
        self._first.pop(segment_id, None)

    def _choose(self, segment: Segment, first: EndedSegment, findings: Findings, second: EndedSegment) -> EndedSegment:
        """Return the better of two results; the first if the second search has no hypothesis."""
        best, remaining = first.hypotheses[0], self._find(segment, first.hypotheses[0])
        is_replaced = False
        if second.hypotheses:
            new_findings = self._find(segment, second.hypotheses[0])
            is_replaced = is_redecode_better((best, remaining), (second.hypotheses[0], new_findings))
            remaining = new_findings if is_replaced else remaining
        report = DegenerationReport(found=findings.defects, remaining=remaining.defects, is_replaced=is_replaced)
        num_steps = first.num_steps + second.num_steps
        return replace(second if is_replaced else first, num_steps=num_steps, degeneration=report)

    def _find(self, segment: Segment, hypothesis: Hypothesis) -> Findings:
        ids = hypothesis.token_ids[:-1] if hypothesis.is_finished else hypothesis.token_ids
        return self._find_in_ids(segment, ids, is_finished=hypothesis.is_finished)

    def _find_in_ids(self, segment: Segment, target_ids: tuple[int, ...], *, is_finished: bool) -> Findings:
        num_forced = len(segment.search.target_prefix)
        return find_degenerations(self._source(segment), target_ids, num_forced=num_forced, is_finished=is_finished)

    def _source(self, segment: Segment) -> tuple[int, ...]:
        ids = segment.source_ids
        return ids[:-1] if ids[-1] == self._eos_id else ids
