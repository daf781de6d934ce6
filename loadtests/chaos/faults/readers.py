"""Callers who ask for much and never read the answer."""

import time
from contextlib import ExitStack
from typing import Final

from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.chaos import http2
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.limits import Limits
from loadtests.chaos.raw_connection import RawConnection
from loadtests.chaos.venue import text_from

_NO_WINDOW: Final = {http2.SETTING_INITIAL_WINDOW_SIZE: 0}
"""The server may send statuses, and not a byte of data."""

_SENTENCE: Final = "The weather is nice today, and the children play in the garden. "
_NUM_SENTENCES: Final = 900
"""Of each document: many times what the server has in work for one, and no more bytes than a peer may send unasked."""

_NUM_STREAMED: Final = 200
_SOURCE_TOKENS: Final = "mt_source_tokens_total"
_MAX_SHARE_DONE: Final = 0.5
"""Of the documents, how much the server may translate although nobody takes it."""

_SLACK_S: Final = 5.0
_STREAM: Final = 1

_DOCUMENTS_LATE: Final = 'mt_requests_total{method="TranslateDocument",status="DEADLINE_EXCEEDED"}'
_DOCUMENTS_REFUSED: Final = 'mt_requests_total{method="TranslateDocument",status="RESOURCE_EXHAUSTED"}'
_STREAM_OVER: Final = '"event": "stream"'
_STREAM_LATE: Final = '"status": "DEADLINE_EXCEEDED"'
_METHODS: Final = (wire.Method.TRANSLATE_DOCUMENT, wire.Method.TRANSLATE_STREAM)


def _never_read(stage: Stage) -> str:
    """Ask for documents and streams and read nothing until the deadline; the server ends them, and not its memory."""
    documents_before, tokens_before = stage.samples(_DOCUMENTS_LATE), stage.samples(_SOURCE_TOKENS)
    refused_before = stage.samples(_DOCUMENTS_REFUSED)
    log_before = stage.venue.log.stat().st_size
    timeout_s = stage.scale.reading_timeout_s
    with ExitStack() as stack:
        for number in range(stage.scale.num_readers):
            method = _METHODS[number % len(_METHODS)]
            _ask(stack.enter_context(RawConnection(stage.target)), method, timeout_s)
        _sleep_until_over(stage, timeout_s)
    num_documents = round(stage.samples(_DOCUMENTS_LATE) - documents_before)
    num_streams = _streams_late(text_from(stage.venue.log, log_before))
    num_refused = round(stage.samples(_DOCUMENTS_REFUSED) - refused_before)
    stage.hits.update({"DEADLINE_EXCEEDED": num_documents + num_streams, "RESOURCE_EXHAUSTED": num_refused})
    stage.require(
        stage.hits.total() == stage.scale.num_readers,
        f"of {stage.scale.num_readers} callers who never read, {num_documents} with documents and {num_streams} with "
        f"streams ran into their deadline, and {num_refused} were refused",
    )
    num_each = stage.scale.num_readers // len(_METHODS)
    asked_tokens = num_each * (_NUM_SENTENCES + _NUM_STREAMED) * len(_SENTENCE.split())
    done = (stage.samples(_SOURCE_TOKENS) - tokens_before) / asked_tokens
    stage.require(done < _MAX_SHARE_DONE, f"{done:.0%} of what nobody read was translated")
    return f"mt_requests_total{{DEADLINE_EXCEEDED}}{num_documents:+d}" if num_documents else ""


def _streams_late(log: str) -> int:
    """Return how many streams ended at their deadline; metrics count their requests, and the log each of them."""
    return sum(_STREAM_OVER in line and _STREAM_LATE in line for line in log.splitlines())


def _ask(connection: RawConnection, method: wire.Method, timeout_s: float) -> None:
    connection.begin(_NO_WINDOW)
    block = http2.grpc_headers(method.path, timeout_s=timeout_s)
    connection.send(http2.headers_frames(block, stream=_STREAM))
    if method is wire.Method.TRANSLATE_DOCUMENT:
        content = http2.grpc_message(_document())
        flags = http2.END_STREAM
    else:
        content = b"".join(http2.grpc_message(_request(number)) for number in range(_NUM_STREAMED))
        flags = 0
    connection.send(http2.data_frames(content, stream=_STREAM, flags=flags))


def _document() -> bytes:
    request = pb.TranslateDocumentRequest(text=_SENTENCE * _NUM_SENTENCES, source_language="en", target_language="de")
    return request.SerializeToString()


def _request(number: int) -> bytes:
    request = pb.TranslateRequest(
        texts=[_SENTENCE], source_language="en", target_language="de", request_id=f"unread-{number}"
    )
    return request.SerializeToString()


def _sleep_until_over(stage: Stage, timeout_s: float) -> None:
    """Wait until the server has ended all of these calls, or should have long ago."""
    until_s = time.monotonic() + timeout_s + _SLACK_S
    streams = ('mt_requests_in_flight{method="TranslateDocument"}', "mt_open_streams")
    while time.monotonic() < until_s:
        time.sleep(0.1)
        if time.monotonic() > until_s - _SLACK_S and not any(map(stage.samples, streams)):
            return


NEVER_READ: Final = Fault(
    name="reader-stalls",
    summary="callers ask for long documents and streams and never read",
    run=_never_read,
    limits=Limits(max_bystander_s=5.0),  # whoever asks for so much has his turn, too
)
