"""The steps of a translation: plan, decode, decode some parts again, assemble.

`translation_steps` is a generator that yields segments and receives their results. The scheduler drives it for
requests and documents, `translate_offline` for datasets and evaluation, so all of them give the same texts.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from dragoman_service.datatypes import Segment, SegmentResult, Translation
from dragoman_service.text.attempts import Attempt
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.plans import TextPlan

RULES_VERSION = 1
"""Version of the rules that prepare, check and correct texts; increases when the same model gives other texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """Segments to decode. The results of second searches are optional."""

    segments: list[Segment]
    is_second: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The translations of the texts of a request, and the results behind them."""

    pipeline: TextPipeline
    translations: tuple[Translation, ...]
    plans: Sequence[TextPlan]
    first: Sequence[Attempt]  # one for each part
    chosen: Sequence[Attempt]  # the same, or the second attempt
    num_second: int = 0  # parts with a second search
    is_skipped: bool = False  # whether the second searches have no results

    @property
    def results(self) -> list[SegmentResult]:
        """The chosen result of each part."""
        return [attempt.result for attempt in self.chosen]

    @property
    def num_replaced(self) -> int:
        """Parts whose second result was chosen."""
        return sum(old is not new for old, new in zip(self.first, self.chosen, strict=True) if not new.is_skipped)


Steps = Generator[Searches, Sequence[SegmentResult] | None, Outcome]


def translation_steps(pipeline: TextPipeline, plans: Sequence[TextPlan] | None = None) -> Steps:
    """Yield the searches of a request; each needs one result per segment, or None for second searches.

    Args:
        pipeline: the text side of the request.
        plans: plans of some of its texts; None: plan all texts.
    """
    plans = pipeline.plan() if plans is None else plans
    parts = [part for plan in plans for part in plan.parts]
    results: Sequence[SegmentResult] | None = ()
    if parts:
        results = yield Searches(segments=[part.segment for part in parts])
    if results is None:
        raise ValueError("first searches need results")
    first = pipeline.attempts(plans, results)
    again = {index: part for index, each in enumerate(first) if (part := pipeline.second_part(each)) is not None}
    chosen = list(first)
    second: Sequence[SegmentResult] | None = ()
    if again:
        second = yield Searches(segments=[part.segment for part in again.values()], is_second=True)
        for number, (index, part) in enumerate(again.items()):
            result = None if second is None else second[number]
            chosen[index] = pipeline.better(first[index], part, result)
    return Outcome(
        pipeline=pipeline,
        translations=pipeline.assemble(plans, chosen),
        plans=plans,
        first=first,
        chosen=chosen,
        num_second=len(again),
        is_skipped=second is None,
    )


def advance(steps: Steps, results: Sequence[SegmentResult] | None = None) -> Searches | Outcome:
    """Start the steps, or send the results of the last searches; return the next searches or the outcome."""
    try:
        return steps.send(results)  # a generator that has not started receives None
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def translate_offline(
    requests: Sequence[Steps], decode: Callable[[list[Segment]], Sequence[SegmentResult]]
) -> list[Outcome]:
    """Return the outcome of each request; the searches of all requests are decoded together.

    Args:
        requests: steps that have not started.
        decode: returns one result for each segment, in order.
    """
    states = [advance(steps) for steps in requests]
    while waiting := [index for index, state in enumerate(states) if isinstance(state, Searches)]:
        searches = [state.segments for state in states if isinstance(state, Searches)]
        results = iter(decode(list(chain.from_iterable(searches))))
        for index, segments in zip(waiting, searches, strict=True):
            states[index] = advance(requests[index], list(islice(results, len(segments))))
    return [state for state in states if isinstance(state, Outcome)]
