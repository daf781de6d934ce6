import math

from dragoman_service.datatypes import Priority, Span
from dragoman_service.request import FixedSpan, RequestContext, TranslationRequest


def test_part_of_a_request_has_the_values_of_its_texts() -> None:
    request = TranslationRequest(
        texts=("a", "bb", "7"),
        source_language="",
        target_language="de",
        target_prefixes=("x", "y", "z"),
        unchanged_texts=frozenset({2}),
        fixed_spans=((), (FixedSpan(span=Span(start=0, end=1), target="B"),), ()),
    )

    assert request.part([1, 2], source_language="en") == TranslationRequest(
        texts=("bb", "7"),
        source_language="en",
        target_language="de",
        target_prefixes=("y", "z"),
        unchanged_texts=frozenset({1}),
        fixed_spans=(request.fixed_spans[1], ()),
    )


def test_default_context_has_no_deadline() -> None:
    context = RequestContext()

    assert (context.caller, context.deadline_s, context.priority) == ("", math.inf, Priority.INTERACTIVE)
