"""Fake clients: the real clients on a channel that answers within the process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from dragoman.client.clients import AsyncTranslationClient, TranslationClient
from dragoman.client.connection import Connection
from dragoman.testing.translator import FakeTranslator, Outcome


class _InProcessError(grpc.RpcError):  # type: ignore[misc] # grpc has no types
    """An error as gRPC raises it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self._outcome = outcome

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._outcome.code

    def details(self) -> str:
        """Return the message."""
        return self._outcome.message

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata with the error details."""
        return self._outcome.trailing_metadata


class _SyncStream:
    """Responses of a call, as `grpc.Channel` returns them."""

    def __init__(self, responses: Iterator[Any]) -> None:
        self._responses = responses

    def __iter__(self) -> Iterator[Any]:
        return self._responses

    def cancel(self) -> None:
        """Do nothing: responses are made when they are read."""


class _AsyncStream:
    """Responses of a call, as `grpc.aio.Channel` returns them."""

    def __init__(self, responses: Callable[[asyncio.Event], AsyncIterator[Any]]) -> None:
        self._is_cancelled = asyncio.Event()
        self._responses = responses(self._is_cancelled)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses

    async def wait_for_connection(self) -> None:
        """Return at once."""

    def cancel(self) -> None:
        """End the delay of the next response."""
        self._is_cancelled.set()


class InProcessChannel:
    """The methods of a channel of gRPC that the stubs and the client use."""

    def __init__(self, translator: FakeTranslator, *, is_async: bool) -> None:
        self._translator = translator
        self._is_async = is_async

    def unary_unary(self, path: str, **_: Any) -> Callable[..., Any]:
        """Return a method with one request and one response."""
        return partial(self._async_response if self._is_async else self._response, path.rpartition("/")[2])

    def unary_stream(self, path: str, **_: Any) -> Callable[..., Any]:
        """Return a method with one request and a stream of responses."""
        return partial(self._stream, path.rpartition("/")[2])

    def stream_stream(self, path: str, **_: Any) -> Callable[..., Any]:
        """Return a method with a stream of requests and a stream of responses."""
        return partial(self._stream, path.rpartition("/")[2])

    def close(self) -> Any:
        """Do nothing; awaitable on an asynchronous channel."""
        return asyncio.sleep(0) if self._is_async else None

    def _outcome(self, method: str, request: Any, timeout: float | None, metadata: Any) -> Outcome:
        return self._translator.outcome(method, request, timeout_s=timeout, metadata=dict(metadata))

    def _response(self, method: str, request: Any, *, timeout: float | None, metadata: Any) -> Any:
        outcome = self._outcome(method, request, timeout, metadata)
        time.sleep(outcome.delay_s)
        return _checked(outcome)[0]

    def _async_response(
        self, method: str, request: Any, *, timeout: float | None, metadata: Any
    ) -> "asyncio.Task[Any]":
        async def respond() -> Any:
            outcome = self._outcome(method, request, timeout, metadata)
            await asyncio.sleep(outcome.delay_s)
            return _checked(outcome)[0]

        return asyncio.ensure_future(respond())

    def _stream(
        self, method: str, requests: Any, *, timeout: float | None, metadata: Any
    ) -> _SyncStream | _AsyncStream:
        answer = partial(self._outcome, method, timeout=timeout, metadata=metadata)
        if self._is_async:
            return _AsyncStream(partial(_async_responses, requests, answer))
        return _SyncStream(_responses(requests, answer))


def _responses(requests: Any, answer: Callable[[Any], Outcome]) -> Iterator[Any]:
    is_stream = hasattr(requests, "__next__")
    for request in requests if is_stream else (requests,):
        outcome = answer(request)
        time.sleep(outcome.delay_s)
        yield from outcome.in_stream(request) if is_stream else _checked(outcome)


async def _async_responses(
    requests: Any, answer: Callable[[Any], Outcome], is_cancelled: asyncio.Event
) -> AsyncIterator[Any]:
    is_stream = hasattr(requests, "__anext__")
    async for request in requests if is_stream else _one(requests):
        outcome = answer(request)
        if outcome.delay_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(is_cancelled.wait(), outcome.delay_s)
                return
        for response in outcome.in_stream(request) if is_stream else _checked(outcome):
            yield response


async def _one(request: Any) -> AsyncIterator[Any]:
    yield request


def _checked(outcome: Outcome) -> Any:
    if outcome.status is not None:
        raise _InProcessError(outcome)
    return outcome.responses


class _FakeConnection(Connection):
    """A connection to a translator of this process."""

    def __init__(self, target: str = "localhost", *, translator: FakeTranslator | None = None, **options: Any) -> None:
        """Take the arguments of the real client, and the translator that answers.

        Calls are not retried: an injected failure reaches the caller. `FakeServer` shows retries.

        Args:
            target: in error messages.
            translator: default: a new one.
            **options: see `dragoman.client.connection.Connection`.
        """
        self.translator = translator or FakeTranslator()
        super().__init__(target, **options)

    def _open_channel(self, *_: Any) -> Any:
        return InProcessChannel(self.translator, is_async=self._is_async)


class FakeTranslationClient(_FakeConnection, TranslationClient):
    """A `TranslationClient` whose `translator` answers within the process."""


class FakeAsyncTranslationClient(_FakeConnection, AsyncTranslationClient):
    """An `AsyncTranslationClient` whose `translator` answers within the process."""
