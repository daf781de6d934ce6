"""The clients, sync and async. One per process and target is enough: threads and tasks share it.

with TranslationClient("localhost:50051") as client:
    for translation in client.translate(["Hello, world."], source_language="en", target_language="de"):
        print(translation.text, translation.score)
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

from dragoman.calls import Answer, Call, Calls
from dragoman.channel import ChannelSettings, open_channel
from dragoman.errors import rpc_errors_raised
from dragoman.models import Model
from dragoman.requests import RequestSettings, TranslationRequest, translation_message
from dragoman.results import StreamAnswer, TranslatedSentence, TranslationResult
from dragoman.v1 import translation_pb2 as pb

DEFAULT_TIMEOUT_S = 30.0
"""Deadline of a call that names none."""

DEFAULT_CHANNEL = ChannelSettings()
"""No TLS; retries, and fails if no server can be reached."""


class TranslationClient:
    """Calls a server and waits for it.

    Every method takes `timeout_s`, the deadline of the call in seconds, retries included (None: that of the client),
    and raises a `dragoman.errors.DragomanError` if the call does not end with OK.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        metadata: Iterable[tuple[str, str]] = (),
        channel: ChannelSettings = DEFAULT_CHANNEL,
    ) -> None:
        """Prepare a connection; it is made with the first call.

        Args:
            target: `host:port` or another gRPC target, such as `dns:///dragoman.default.svc:50051`.
            timeout_s: deadline of a call that names none, in seconds; finite and above 0.
            metadata: sent with each call, such as `("authorization", "Bearer ...")`.
            channel: how to connect.

        Raises:
            ValueError: if `timeout_s` is out of range.
        """
        self._channel = open_channel(target, channel, is_async=False)
        self._calls = Calls(self._channel, timeout_s=timeout_s, metadata=metadata)

    def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefixes: Sequence[str] = (),
        timeout_s: float | None = None,
        **settings: Unpack[RequestSettings],
    ) -> TranslationResult:
        """Translate 1 to 128 texts; all of them are translated or the call fails.

        Args:
            texts: each up to a limit of the server, by default 10,000 characters.
            target_prefixes: what each translation starts with; empty, or one for each text.
            timeout_s: see the class.
            **settings: see `RequestSettings`; `source_language` and `target_language` are required.

        Raises:
            DragomanError: if the call does not end with OK.
            TypeError: if `texts` is one string, or a setting has the wrong type.
            ValueError: if `timeout_s` is out of range, or a setting is unknown or does not fit its wire type.
        """
        return _answer(self._calls.translate(texts, target_prefixes, settings, timeout_s))

    def translate_document(
        self, text: str, *, timeout_s: float | None = None, **settings: Unpack[RequestSettings]
    ) -> Generator[TranslatedSentence, None, None]:
        """Translate one long text and yield its sentences in order, each as soon as it is finished.

        The joined `text` of all of them is the translation. The call starts with the first sentence asked for;
        closing the iterator cancels it.
        """
        return _answers(self._calls.translate_document(text, settings, timeout_s))

    def translate_stream(
        self, requests: Iterable[TranslationRequest], *, timeout_s: float | None = None
    ) -> Generator[StreamAnswer, None, None]:
        """Translate requests as they come and yield each answer as soon as it is finished, in any order.

        A request that fails is answered alone. `requests` is consumed by a thread of gRPC; the deadline is that of
        the whole stream. The call starts with the first answer asked for; closing the iterator cancels it.
        """
        return _answers(self._calls.translate_stream(map(translation_message, requests), timeout_s))

    def list_models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """Return every model the server knows, sorted by name."""
        return _answer(self._calls.list_models(timeout_s))

    def get_model(self, model: str, *, timeout_s: float | None = None) -> Model:
        """Return one model by `name`, or with one version only by `name/version`."""
        return _answer(self._calls.get_model(model, timeout_s))

    def close(self) -> None:
        """Cancel what is running and disconnect."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncTranslationClient:
    """`TranslationClient` for asyncio: the same methods, to be awaited or iterated over with `async for`.

    It belongs to the event loop that runs when it is made.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        metadata: Iterable[tuple[str, str]] = (),
        channel: ChannelSettings = DEFAULT_CHANNEL,
    ) -> None:
        """See `TranslationClient`."""
        self._channel = open_channel(target, channel, is_async=True)
        self._calls = Calls(self._channel, timeout_s=timeout_s, metadata=metadata)

    async def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefixes: Sequence[str] = (),
        timeout_s: float | None = None,
        **settings: Unpack[RequestSettings],
    ) -> TranslationResult:
        """See `TranslationClient.translate`."""
        return await _awaited_answer(self._calls.translate(texts, target_prefixes, settings, timeout_s))

    def translate_document(
        self, text: str, *, timeout_s: float | None = None, **settings: Unpack[RequestSettings]
    ) -> AsyncGenerator[TranslatedSentence, None]:
        """See `TranslationClient.translate_document`."""
        return _awaited_answers(self._calls.translate_document(text, settings, timeout_s))

    def translate_stream(
        self,
        requests: Iterable[TranslationRequest] | AsyncIterable[TranslationRequest],
        *,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[StreamAnswer, None]:
        """See `TranslationClient.translate_stream`; `requests` is consumed by a task."""
        return _awaited_answers(self._calls.translate_stream(_messages(requests), timeout_s))

    async def list_models(self, *, timeout_s: float | None = None) -> tuple[Model, ...]:
        """See `TranslationClient.list_models`."""
        return await _awaited_answer(self._calls.list_models(timeout_s))

    async def get_model(self, model: str, *, timeout_s: float | None = None) -> Model:
        """See `TranslationClient.get_model`."""
        return await _awaited_answer(self._calls.get_model(model, timeout_s))

    async def close(self) -> None:
        """Cancel what is running and disconnect."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _answer(call: Call[Answer]) -> Answer:
    with rpc_errors_raised(call.request_id):
        return call.read(call.start())


def _answers(call: Call[Answer]) -> Generator[Answer, None, None]:
    with rpc_errors_raised(call.request_id):
        responses = call.start()
        try:
            for response in responses:
                yield call.read(response)
        finally:
            responses.cancel()


async def _awaited_answer(call: Call[Answer]) -> Answer:
    with rpc_errors_raised(call.request_id):
        return call.read(await call.start())


async def _awaited_answers(call: Call[Answer]) -> AsyncGenerator[Answer, None]:
    with rpc_errors_raised(call.request_id):
        responses = call.start()
        try:
            async for response in responses:
                yield call.read(response)
        finally:
            responses.cancel()


async def _messages(
    requests: Iterable[TranslationRequest] | AsyncIterable[TranslationRequest],
) -> AsyncIterator[pb.TranslateRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield translation_message(request)
    else:
        for request in requests:
            yield translation_message(request)
