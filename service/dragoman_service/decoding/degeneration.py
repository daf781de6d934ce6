"""The repetition guard: finds defective targets, plans a second search, and chooses between the two results.

Token ids are without EOS; source and target share one vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dragoman_service.datatypes import Degeneration, DegenerationKind, GuardReport, Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.constraints import SearchPlan

_MIN_REPEATS = (5, 4, 3, 3, 3, 3, 3, 3)
"""How often 1, 2, ... tokens occur back to back in a loop, at least. People write `very, very, very` and `ha ha ha ha`,
but not the same phrase three times."""

_LONG_FACTOR, _LONG_OFFSET = 3, 20
"""A target is too long beyond this many times its source, plus this."""

_SHORT_FACTOR, _SHORT_SOURCE_TOKENS = 5, 10
"""From this many source tokens on, a target is too short below the source divided by the factor."""

_MIN_COPIED_TOKENS, _MIN_COPIED_SHARE = 8, 0.6
"""A copy is a run of so many tokens and such a share of the target; names, numbers and short addresses are less."""

_AVOIDED_SIZE = 4
"""The second search takes no run of so many tokens from a copied source: names of three pieces are still possible."""

_NO_REPEAT_SIZE = 3
"""Where no run of three tokens occurs twice, nothing occurs back to back as often as `_MIN_REPEATS`."""

_MIN_MEAN_LOG_PROB = -1.5
"""A copy is replaced only by a target with a higher mean log-probability per token: a long address is rightly copied,
and any other target is far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The defects of a target."""

    defects: tuple[Degeneration, ...]
    severity: float
    """Sum over the defects, each up to 1: the share of the target that loops or is copied, 1 for its length; 1 more for
    a loop that was cut off, as it would have gone on."""


def judge(
    source_ids: Sequence[int], target_ids: Sequence[int], *, num_forced: int = 0, is_finished: bool = True
) -> Verdict:
    """Return the defects of a target, of which only the length counts the `num_forced` tokens of its prefix.

    One that was cut off (not `is_finished`) is not too short.
    """
    chosen_ids = target_ids[num_forced:]
    found = [
        _find_repetition(source_ids, chosen_ids),
        _find_copy(source_ids, chosen_ids),
        _find_length(source_ids, target_ids, is_finished=is_finished),
    ]
    defects = [finding for finding in found if finding is not None]
    severity = sum(severity for _, severity in defects) + (found[0] is not None and not is_finished)
    return Verdict(defects=tuple(defect for defect, _ in defects), severity=float(severity))


def is_looping(source_ids: Sequence[int], target_ids: Sequence[int]) -> bool:
    """Return whether a target, without prefix and still growing, ends in what `judge` calls a repetition."""
    ids = list(target_ids)
    if not any(_ends_in_loop(ids, size, num) for size, num in enumerate(_MIN_REPEATS, 1)):
        return False
    return any(_ends_in_loop(ids, size, num) for size, num in enumerate(_loop_limits(source_ids), 1))


def plan_second_search(
    search: SearchConfig, source_ids: tuple[int, ...], defects: Sequence[Degeneration]
) -> SearchPlan:
    """Return how to search once more for a target without these defects; stricter limits of the caller stay."""
    kinds = {defect.kind for defect in defects}
    own_size = search.no_repeat_ngram_size or _NO_REPEAT_SIZE
    shortest = search.min_target_tokens
    if DegenerationKind.LENGTH_RATIO in kinds:
        shortest = max(shortest, min(_shortest_target(source_ids), search.max_target_tokens - 1))
    is_copy = DegenerationKind.COPIED_SOURCE in kinds
    return SearchPlan(
        search=replace(
            search,
            no_repeat_ngram_size=min(own_size, _NO_REPEAT_SIZE),
            min_target_tokens=shortest,
            repetition_guard=False,
        ),
        avoided_ids=source_ids if is_copy else (),
        avoided_size=_AVOIDED_SIZE if is_copy else 0,
    )


def is_second_better(first: tuple[Hypothesis, Verdict], second: tuple[Hypothesis, Verdict]) -> bool:
    """Return whether the best target of the second search is better: fewer or lesser defects, or a higher score.

    A copy is only replaced by a target that the model finds likely.
    """
    (old, old_verdict), (new, new_verdict) = first, second
    kinds = {defect.kind for defect in old_verdict.defects}
    if kinds == {DegenerationKind.COPIED_SOURCE} and new.log_prob < _MIN_MEAN_LOG_PROB * len(new.token_ids):
        return False
    old_badness = len(old_verdict.defects), round(old_verdict.severity, 3), not old.is_finished, -old.score
    new_badness = len(new_verdict.defects), round(new_verdict.severity, 3), not new.is_finished, -new.score
    return new_badness < old_badness


def _find_repetition(source_ids: Sequence[int], target_ids: Sequence[int]) -> tuple[Degeneration, float] | None:
    repeats = _repeats_by_size(target_ids)
    if all(num < limit for num, limit in zip(repeats, _MIN_REPEATS, strict=True)):
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
    """Return how often 1, 2, ... tokens must occur back to back to be a loop, given what the source repeats.

    A word of one token may be translated by several and the other way round, so the longest repetition in the source
    counts for all sizes, and a target may repeat twice as often.
    """
    allowed = 2 * max(_repeats_by_size(source_ids))
    return [max(limit, allowed + 1) for limit in _MIN_REPEATS]


def _repeats_by_size(ids: Sequence[int]) -> list[int]:
    """Return for 1, 2, ... tokens how often any run of so many occurs back to back, at most; exact from 2 on."""
    array = np.asarray(ids)
    return [_count_repeats(array, size) for size in range(1, len(_MIN_REPEATS) + 1)]


def _count_repeats(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> int:
    is_equal = array[size:] == array[:-size]
    if np.count_nonzero(is_equal) < size:  # most texts, most sizes
        return 1
    breaks = np.flatnonzero(~np.concatenate(([False], is_equal, [False])))
    longest = int(np.diff(breaks).max()) - 1
    return longest // size + 1


def _ends_in_loop(ids: list[int], size: int, num_repeats: int) -> bool:
    span = size * num_repeats
    return len(ids) >= span and ids[-span:-size] == ids[len(ids) - span + size :]


def _find_copy(source_ids: Sequence[int], target_ids: Sequence[int]) -> tuple[Degeneration, float] | None:
    needed = max(_MIN_COPIED_TOKENS, _MIN_COPIED_SHARE * len(target_ids))
    known = set(source_ids)
    if sum(token in known for token in target_ids) < needed:
        return None
    num_copied = _longest_common_run(source_ids, target_ids)
    if num_copied < needed:
        return None
    detail = f"{num_copied} of {len(target_ids)} tokens in a row are those of the source"
    return Degeneration(kind=DegenerationKind.COPIED_SOURCE, detail=detail), num_copied / len(target_ids)


def _longest_common_run(first: Sequence[int], second: Sequence[int]) -> int:
    is_equal = np.asarray(first)[:, None] == np.asarray(second)
    ending = np.zeros(len(second) + 1, np.int64)  # run that ends at each token of `second`
    longest = 0
    for row in is_equal:
        ending[1:] = np.where(row, ending[:-1] + 1, 0)
        longest = max(longest, int(ending.max()))
    return longest


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
    """Return the fewest tokens that are not too short for a source; 0 if it may have no translation."""
    num_source = len(source_ids)
    if num_source >= _SHORT_SOURCE_TOKENS:
        return -(-num_source // _SHORT_FACTOR)
    return 1 if num_source >= 2 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnd:
    """How one search of a segment ended."""

    hypotheses: tuple[Hypothesis, ...]
    num_steps: int
    looping_ids: tuple[int, ...] = ()
    """The best live hypothesis if the search was ended early because it looped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSegment:
    """A segment whose search has ended."""

    segment_id: int
    """Its id, see `RunningBatch.start`."""

    hypotheses: tuple[Hypothesis, ...]
    """Best first; empty only if the model gave no possible continuation (a broken network)."""

    num_steps: int
    """Decoder steps it took part in, those of a second search included."""

    guard: GuardReport | None = None
    """Report of the repetition guard; None if it was off or found nothing."""


class SecondSearches:
    """The second searches of one running batch; segments are named by their ids."""

    def __init__(self, *, eos_id: int) -> None:
        """Begin without any."""
        self._eos_id = eos_id
        self._firsts: dict[int, tuple[SearchEnd, Verdict]] = {}

    def is_looping(self, segment: Segment, best_ids: list[int]) -> bool:
        """Return whether a first search can be ended because its best live hypothesis loops."""
        return is_looping(self._source(segment), best_ids[len(segment.search.target_prefix) :])

    def settle(self, segment_id: int, segment: Segment, end: SearchEnd) -> EndedSegment | SearchPlan:
        """Return the result of a segment after one of its searches has ended, or how to search it once more."""
        if segment_id in self._firsts:
            first, verdict = self._firsts.pop(segment_id)
            return self._choose(segment_id, segment, (first, verdict), end)
        if segment.search.repetition_guard and end.hypotheses:
            verdict = (
                self._judge_ids(segment, end.looping_ids, is_finished=False)
                if end.looping_ids
                else self._judge(segment, end.hypotheses[0])
            )
            if verdict.defects:
                self._firsts[segment_id] = end, verdict
                return plan_second_search(segment.search, self._source(segment), verdict.defects)
        return EndedSegment(segment_id=segment_id, hypotheses=end.hypotheses, num_steps=end.num_steps)

    def forget(self, segment_id: int) -> None:
        """Forget a segment that leaves."""
        self._firsts.pop(segment_id, None)

    def _choose(
        self, segment_id: int, segment: Segment, judged: tuple[SearchEnd, Verdict], second: SearchEnd
    ) -> EndedSegment:
        """Return the better of two results; the first if the second search found nothing."""
        first, found = judged
        best, verdict = first.hypotheses[0], self._judge(segment, first.hypotheses[0])
        is_replaced = False
        if second.hypotheses:
            new = second.hypotheses[0], self._judge(segment, second.hypotheses[0])
            is_replaced = is_second_better((best, verdict), new)
            verdict = new[1] if is_replaced else verdict
        return EndedSegment(
            segment_id=segment_id,
            hypotheses=(second if is_replaced else first).hypotheses,
            num_steps=first.num_steps + second.num_steps,
            guard=GuardReport(found=found.defects, remaining=verdict.defects, is_replaced=is_replaced),
        )

    def _judge(self, segment: Segment, hypothesis: Hypothesis) -> Verdict:
        ids = hypothesis.token_ids[:-1] if hypothesis.is_finished else hypothesis.token_ids
        return self._judge_ids(segment, ids, is_finished=hypothesis.is_finished)

    def _judge_ids(self, segment: Segment, target_ids: tuple[int, ...], *, is_finished: bool) -> Verdict:
        num_forced = len(segment.search.target_prefix)
        return judge(self._source(segment), target_ids, num_forced=num_forced, is_finished=is_finished)

    def _source(self, segment: Segment) -> tuple[int, ...]:
        """Return the source without EOS."""
        ids = segment.source_ids
        return ids[:-1] if ids[-1] == self._eos_id else ids
