"""Requests whose answers never change, whatever else the server does and however often its version changes."""

from collections.abc import Sequence
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests.soak.answers import meaning
from loadtests.soak.book import Book
from loadtests.soak.callers import REQUEST_ID_KEY, connect, seen_unary
from loadtests.soak.judging import judge
from loadtests.soak.plan import PATIENT_S, PlannedCall
from loadtests.texts import SENTENCES
from loadtests.wire import Method

_OPTIONS: Final = (
    pb.DecodingOptions(beam_size=1),
    pb.DecodingOptions(),
    pb.DecodingOptions(beam_size=5, num_hypotheses=5),
    pb.DecodingOptions(target_prefix="Das", no_repeat_ngram_size=3, length_penalty=1.0),
    pb.DecodingOptions(sampling=pb.SamplingOptions(seed=7, temperature=0.7, top_k=20), num_hypotheses=2),
)
_NUM_TEXTS: Final = 2


def probe_requests() -> list[bytes]:
    """Return the requests: greedy search, the defaults, n-best lists, a prefix with penalties, a seeded draw."""
    return [
        pb.TranslateRequest(
            texts=[SENTENCES[(_NUM_TEXTS * index + offset) % len(SENTENCES)] for offset in range(_NUM_TEXTS)],
            source_language="en",
            target_language="de",
            options=options,
        ).SerializeToString()
        for index, options in enumerate(_OPTIONS)
    ]


def first_answers(target: str, probes: Sequence[bytes], book: Book) -> list[bytes]:
    """Return what the answers mean while nobody else asks.

    Raises:
        RuntimeError: if one is not answered.
    """
    channel = connect(target)
    try:
        return [_first_answer(channel, index, raw, book) for index, raw in enumerate(probes)]
    finally:
        channel.close()


def _first_answer(channel: grpc.Channel, index: int, raw: bytes, book: Book) -> bytes:
    method, request_id = Method.TRANSLATE, f"first-{index}"
    call = channel.unary_unary(method.path).future(raw, timeout=PATIENT_S, metadata=((REQUEST_ID_KEY, request_id),))
    ended = seen_unary(call)
    planned = PlannedCall(
        request_id=request_id, kind="probe", method=method, path=method.path, raw=(raw,), answers=("OK",), probe=index
    )
    book.note(judge(planned, ended))
    if not ended.messages:
        raise RuntimeError(f"probe {index} was not answered by an idle server: {ended.status}: {ended.details}")
    return meaning(ended.messages[0])
