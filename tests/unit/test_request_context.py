import math

from service.datatypes import Priority
from service.request_context import RequestContext


def test_without_a_call_there_is_a_context_that_records_nothing_and_never_ends() -> None:
    context, other = RequestContext(), RequestContext()

    context.trace.add("queue", began_s=0.0, ended_s=1.0)
    context.trace.end(status="OK", attributes={})
    context.access_record.add_texts(["a"])

    assert (context.trace.trace_id, other.access_record.num_texts) == ("", 0)
    assert (context.caller, context.deadline_s, context.priority) == ("", math.inf, Priority.INTERACTIVE)
