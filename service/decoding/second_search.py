"""Which segments are searched twice: keeps what the first search found until the second has ended."""

from dataclasses import dataclass

from service.datatypes import GuardReport, Hypothesis, Segment
from service.decoding.constraints import SearchPlan
from service.decoding.guard import Verdict, is_looping, is_second_better, judge, plan_second_search


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnd:
    """How one search of a segment ended."""

    hypotheses: tuple[Hypothesis, ...]
    num_steps: int
    looping_ids: tuple[int, ...] = ()
    """The best live hypothesis, if the search was ended early because it ran in a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a segment is answered with."""

    hypotheses: tuple[Hypothesis, ...]
    num_steps: int
    """Of both searches, if there were two."""

    guard: GuardReport | None = None


class SecondSearches:
    """The guard of one running batch; segments go by their handles."""

    def __init__(self, *, eos_id: int) -> None:
        """Begin with none."""
        self._eos_id = eos_id
        self._firsts: dict[int, tuple[SearchEnd, Verdict]] = {}

    def is_looping(self, segment: Segment, best_ids: list[int]) -> bool:
        """Return whether a first search need not go on, as its best live hypothesis runs in a loop."""
        return is_looping(self._source(segment), best_ids[len(segment.search.target_prefix) :])

    def settle(self, handle: int, segment: Segment, end: SearchEnd) -> Answer | SearchPlan:
        """Return the answer to a segment, one of whose searches has ended, or how to search it once more."""
        if handle in self._firsts:
            first, verdict = self._firsts.pop(handle)
            return self._choose(segment, first, verdict, end)
        if segment.search.has_guard and end.hypotheses:
            verdict = self._judge_end(segment, end)
            if verdict.defects:
                self._firsts[handle] = end, verdict
                return plan_second_search(segment.search, self._source(segment), verdict.defects)
        return Answer(hypotheses=end.hypotheses, num_steps=end.num_steps)

    def forget(self, handle: int) -> None:
        """Drop what is known of a segment that leaves."""
        self._firsts.pop(handle, None)

    def _choose(self, segment: Segment, first: SearchEnd, found: Verdict, second: SearchEnd) -> Answer:
        """Return the better of two answers; a second search that found nothing leaves the first."""
        best, verdict = first.hypotheses[0], self._judge(segment, first.hypotheses[0])
        is_replaced = False
        if second.hypotheses:
            new = second.hypotheses[0], self._judge(segment, second.hypotheses[0])
            is_replaced = is_second_better((best, verdict), new)
            verdict = new[1] if is_replaced else verdict
        return Answer(
            hypotheses=(second if is_replaced else first).hypotheses,
            num_steps=first.num_steps + second.num_steps,
            guard=GuardReport(found=found.defects, remaining=verdict.defects, is_replaced=is_replaced),
        )

    def _judge_end(self, segment: Segment, end: SearchEnd) -> Verdict:
        if end.looping_ids:
            return self._judge_ids(segment, end.looping_ids, is_finished=False)
        return self._judge(segment, end.hypotheses[0])

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
