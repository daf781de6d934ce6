"""What makes the server start every thread that it starts only when it needs one, before its threads are counted."""

from typing import Final

from loadtests.soak.book import Book
from loadtests.soak.callers import REQUEST_ID_KEY, connect, seen_unary
from loadtests.soak.judging import judge
from loadtests.soak.plan import PATIENT_S, refused_call
from loadtests.soak.refusals import TOO_MANY_SENTENCES
from loadtests.soak.swaps import Operator

_AT_ONCE: Final = 40
"""More calls than the pool for text work has threads: 32 at most, as Python makes it."""

_ADMIN_AT_ONCE: Final = 8
"""More than are loaded or unloaded at a time."""


def fill_pools(target: str, operator: Operator, book: Book) -> None:
    """Ask, many times at once, for what is worked on in threads, and comes to nothing."""
    operator.load_again(_ADMIN_AT_ONCE)
    channel = connect(target)
    try:
        planned = [refused_call(f"fill-{index}", TOO_MANY_SENTENCES) for index in range(_AT_ONCE)]
        method = channel.unary_unary(TOO_MANY_SENTENCES.path)
        calls = [
            method.future(call.raw[0], timeout=PATIENT_S, metadata=((REQUEST_ID_KEY, call.request_id),))
            for call in planned
        ]
        for made, call in zip(planned, calls, strict=True):
            book.note(judge(made, seen_unary(call)))
    finally:
        channel.close()
