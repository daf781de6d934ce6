import dataclasses
import io
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.models.model import ModelRuntime
from dragoman_service.observability.logs import LogSettings, configure_logs
from tests.integration.running_server import RunningServer, observed_server, request

PRIVATE = "Zwergohreule"  # in letters that the tiny vocabulary can spell
FAULT = "Faulty"
KEY = "dgm_0123456789"
KEYS = (("authorization", f"Bearer {KEY}"), ("x-api-key", KEY))
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = (("traceparent", f"00-{TRACE_ID}-b7ad6b7169203331-01"),)


class QuotingTokenizer:
    """A model that fails on some texts with an error message that quotes the text."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str) -> list[int]:
        if FAULT in text:
            raise ValueError(f"cannot encode {text!r}")
        ids: list[int] = self._inner.encode(text)
        return ids


def quoting(parts: ModelRuntime) -> ModelRuntime:
    tokenizer: Any = QuotingTokenizer(parts.tokenizer)
    return dataclasses.replace(parts, tokenizer=tokenizer)


class Log:
    """Log of the service."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def configure(self, **settings: Any) -> None:
        configure_logs(LogSettings(format="json", **settings), stream=self._stream)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "request"]


@pytest.fixture
def log() -> Iterator[Log]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield Log(io.StringIO())
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


async def call_in_every_way(server: RunningServer) -> str:
    """Send the secret where callers can send text, with and without success; return its translation."""
    response: pb.TranslateResponse = await server.translate(f"A {PRIVATE}. A man.")
    options = pb.DecodingOptions
    for message in (
        request(f"{FAULT} {PRIVATE}"),
        request(PRIVATE * 1000),
        request(PRIVATE, model=PRIVATE),
        request(PRIVATE, source_language=f"{PRIVATE} {PRIVATE}"),
        request(PRIVATE, options=options(target_prefix=PRIVATE * 100)),
        request(PRIVATE, options=options(suppressed_tokens=[PRIVATE])),
        request(PRIVATE, options=options(beam_size=99)),
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await server.translation.Translate(message, metadata=KEYS)
    document = pb.TranslateDocumentRequest(text=f"{PRIVATE}. {FAULT}.", source_language="en", target_language="de")
    with pytest.raises(grpc.aio.AioRpcError):
        async for _sentence in server.translation.TranslateDocument(document, metadata=KEYS):
            pass
    streamed = [request(f"{text} {PRIVATE}.", request_id=text) for text in ("A", FAULT)]
    assert len([answer async for answer in server.translation.TranslateStream(iter(streamed), metadata=KEYS)]) == 2
    late = request(f"{PRIVATE} rides a bicycle. " * 300)
    with pytest.raises(grpc.aio.AioRpcError):
        await server.translation.Translate(late, timeout=0.2)
    with pytest.raises(grpc.aio.AioRpcError):
        await server.channel.unary_unary("/dragoman.v1.TranslationService/Translate")(b"\xff" + PRIVATE.encode())
    return response.translations[0].hypotheses[0].text


async def test_texts_are_never_logged_by_default(tiny_model: Path, log: Log) -> None:
    log.configure(level="debug")

    async with observed_server(tiny_model, alter=quoting) as server:
        translation = await call_in_every_way(server)

    assert "ValueError" in log.text  # the failure itself is logged
    assert [text in log.text for text in (PRIVATE, translation, KEY)] == [False, False, False]


async def test_texts_are_logged_if_enabled(tiny_model: Path, log: Log) -> None:
    log.configure(include_texts=True)

    async with observed_server(tiny_model, alter=quoting, logs__include_texts=True) as server:
        translation = await call_in_every_way(server)

    assert "texts of callers are written into the log" in log.text
    answered, failed, *_ = log.requests
    assert answered["request_texts"] == [f"A {PRIVATE}. A man."]
    assert answered["translations"] == [translation]
    assert (failed["request_texts"], failed["translations"]) == ([f"{FAULT} {PRIVATE}"], [])
    assert f"cannot encode '{FAULT} {PRIVATE}" in log.text
    assert KEY not in log.text


async def test_each_request_has_one_log_line(tiny_model: Path, log: Log) -> None:
    log.configure()

    async with observed_server(tiny_model) as server:
        response = await server.translate("A man. Two children.", "Rain.", metadata=TRACEPARENT, request_id="r1")

    (line,) = log.requests
    assert {name: line[name] for name in ("method", "status", "model", "texts", "request_id", "trace_id")} == {
        "method": "Translate",
        "status": "OK",
        "model": "tiny/1",
        "texts": 2,
        "request_id": "r1",
        "trace_id": TRACE_ID,
    }
    assert (line["source_tokens"], line["target_tokens"]) == (response.num_source_tokens, response.num_target_tokens)
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert line["caller"]
    assert 0 < line["queue_s"] + line["encode_s"] + line["decode_s"] <= line["duration_s"]
    assert line["timestamp"].startswith(time.strftime("%Y-", time.gmtime()))
