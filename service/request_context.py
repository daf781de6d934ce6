"""What goes with a request from the call to the decoding: who asks, until when, how urgently, where it is recorded."""

import math
from dataclasses import dataclass, field

from service.datatypes import Priority
from service.telemetry.access_record import AccessRecord
from service.telemetry.tracing import RequestTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Passed along with a request, and changed by none of those who see it; only its trace and record grow."""

    caller: str = ""
    """Name of the caller, for fairness and limits; empty for what the server asks itself."""

    deadline_s: float = math.inf
    """On the service's clock; infinite: the request is never given up."""

    priority: Priority = Priority.INTERACTIVE
    trace: RequestTrace = field(default_factory=RequestTrace)
    access_record: AccessRecord = field(default_factory=AccessRecord)
