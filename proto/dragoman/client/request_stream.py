"""Request streams. gRPC discards exceptions of request iterators; these classes keep them for the caller."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Protocol, Self

from dragoman.client.request import TranslationRequest, translation_message
from dragoman.v1 import translation_pb2 as pb


class RequestStream(Protocol):
    """Requests that a call consumes."""

    error: Exception | None
    """Exception that ended the requests; None so far."""

    def stop(self) -> None:
        """End the requests early because the call has ended."""


class SyncRequestStream:
    """Converts requests to messages; consumed by a thread of gRPC."""

    def __init__(self, requests: Iterable[TranslationRequest]) -> None:
        """Read a request whenever gRPC sends one."""
        self.error: Exception | None = None
        self._requests = iter(requests)
        self._is_stopped = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pb.TranslateRequest:
        if self._is_stopped:
            raise StopIteration
        try:
            return translation_message(next(self._requests))
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - any exception of the caller's iterator
            self.error = error
            raise StopIteration from None

    def stop(self) -> None:
        """See `RequestStream`; takes effect when the pending request arrives."""
        self._is_stopped = True


class AsyncRequestStream:
    """Converts requests to messages; consumed by a task of gRPC."""

    def __init__(self, requests: Iterable[TranslationRequest] | AsyncIterable[TranslationRequest]) -> None:
        """Read a request whenever gRPC sends one."""
        self.error: Exception | None = None
        self._requests = aiter(requests) if isinstance(requests, AsyncIterable) else _async_iterator(requests)
        self._next: asyncio.Future[TranslationRequest] | None = None
        self._is_stopped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.TranslateRequest:
        if self._is_stopped:
            raise StopAsyncIteration
        self._next = asyncio.ensure_future(_next(self._requests))
        try:
            return translation_message(await self._next)
        except StopAsyncIteration:
            raise
        except Exception as error:  # noqa: BLE001 - any exception of the caller's iterator
            self.error = error
            raise StopAsyncIteration from None

    def stop(self) -> None:
        """See `RequestStream`; cancels the wait for the pending request."""
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()


async def _async_iterator(requests: Iterable[TranslationRequest]) -> AsyncIterator[TranslationRequest]:
    for request in requests:
        yield request


async def _next(requests: AsyncIterator[TranslationRequest]) -> TranslationRequest:
    return await anext(requests)
