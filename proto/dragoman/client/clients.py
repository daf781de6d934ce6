"""The clients. One per process and target is enough: threads and tasks share it.

`Calls` declares the methods. The wrappers below give each client its blocking or asynchronous form of them.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

from dragoman.client.call_runner import async_response, async_responses, response, responses
from dragoman.client.calls import Call, Calls
from dragoman.client.channel import Balancing
from dragoman.client.connection import AsyncConnection, SyncConnection
from dragoman.client.credentials import Metadata
from dragoman.client.request import TranslationRequest
from dragoman.client.request_stream import AsyncRequestStream, SyncRequestStream
from dragoman.client.results import StreamAnswer

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Callable[..., Any])

_ADMIN_TIMEOUT_S = 300.0  # enough to load and warm up a large model


def _blocking(build: Callable[Concatenate[Calls, P], Call[R]]) -> Callable[Concatenate[SyncConnection, P], R]:
    def method(self: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return response(build(self._calls, *args, **kwargs))

    return _described(method, build)


def _blocking_stream(
    build: Callable[Concatenate[Calls, P], Call[R]],
) -> Callable[Concatenate[SyncConnection, P], Generator[R, None, None]]:
    def method(self: SyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        return responses(build(self._calls, *args, **kwargs))

    return _described(method, build, Generator)


def _awaitable(
    build: Callable[Concatenate[Calls, P], Call[R]],
) -> Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, R]]:
    async def method(self: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await async_response(build(self._calls, *args, **kwargs))

    return _described(method, build)


def _awaitable_stream(
    build: Callable[Concatenate[Calls, P], Call[R]],
) -> Callable[Concatenate[AsyncConnection, P], AsyncGenerator[R, None]]:
    def method(self: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        return async_responses(build(self._calls, *args, **kwargs))

    return _described(method, build, AsyncGenerator)


def _described(method: M, build: Callable[..., Any], stream: Any = None) -> M:
    """Copy name, docstring and signature from a method of `Calls`, with the result type in place of `Call`."""
    signature = inspect.signature(build)
    (result,) = get_args(signature.return_annotation)
    update_wrapper(method, build)
    described: Any = method
    described.__signature__ = signature.replace(return_annotation=result if stream is None else stream[result, None])
    return method


class TranslationClient(SyncConnection):
    """Calls a server and waits for it.

    Every method takes `timeout_s`, the deadline of the call in seconds, including retries (None: the default of the
    client, 30 s, and none for documents and streams), and `metadata` to send in addition to the metadata of the client,
    such as a `traceparent`. Where OpenTelemetry is installed, the current trace is propagated. Every method raises a
    `DragomanError` if the call does not end with OK.
    """

    translate = _blocking(Calls.translate)
    translate_document = _blocking_stream(Calls.translate_document)
    detect_languages = _blocking(Calls.detect_languages)
    list_models = _blocking(Calls.list_models)
    list_glossaries = _blocking(Calls.list_glossaries)
    get_model = _blocking(Calls.get_model)

    def translate_stream(
        self, requests: Iterable[TranslationRequest], *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Generator[StreamAnswer, None, None]:
        """Translate requests as they arrive and yield each answer as soon as it is finished, in any order.

        A request that the server rejects gets an answer with an error in `StreamAnswer.outcome`. If `requests` raises,
        or yields an item that cannot be sent, sending stops; the error is raised after the answers to earlier requests.
        A thread of gRPC consumes `requests`. The deadline applies to the whole stream. The call starts when the first
        answer is requested; closing the generator cancels it.
        """
        return responses(self._calls.translate_stream(SyncRequestStream(requests), timeout_s, metadata))


class AsyncTranslationClient(AsyncConnection):
    """Calls a server from asyncio; see `TranslationClient`. It belongs to the event loop in which it is created.

    Cancelling the task that waits for a call cancels the call, as `asyncio.timeout` does. Close generators that you do
    not exhaust with `aclose()` or `contextlib.aclosing`. Otherwise their calls run until the deadline or until the
    garbage collector finds them.
    """

    translate = _awaitable(Calls.translate)
    translate_document = _awaitable_stream(Calls.translate_document)
    detect_languages = _awaitable(Calls.detect_languages)
    list_models = _awaitable(Calls.list_models)
    list_glossaries = _awaitable(Calls.list_glossaries)
    get_model = _awaitable(Calls.get_model)

    def translate_stream(
        self,
        requests: Iterable[TranslationRequest] | AsyncIterable[TranslationRequest],
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[StreamAnswer, None]:
        """See `TranslationClient.translate_stream`; a task consumes `requests`."""
        return async_responses(self._calls.translate_stream(AsyncRequestStream(requests), timeout_s, metadata))


class ModelAdminClient(SyncConnection):
    """Loads, unloads and labels models of one replica. Its API key needs a permission for that.

    A call changes one replica, therefore the target must name one. If the target has several addresses, all calls go to
    the same one. Calls are not retried, because a second attempt could change another replica. `timeout_s` and
    `metadata` are as in `TranslationClient`, but the default deadline is 300 s.
    """

    _balancing = Balancing.PICK_FIRST
    _default_timeout_s = _ADMIN_TIMEOUT_S
    load_model = _blocking(Calls.load_model)
    unload_model = _blocking(Calls.unload_model)
    set_model_label = _blocking(Calls.set_model_label)
    remove_model_label = _blocking(Calls.remove_model_label)


class AsyncModelAdminClient(AsyncConnection):
    """Loads, unloads and labels models of one replica from asyncio; see `ModelAdminClient`."""

    _balancing = Balancing.PICK_FIRST
    _default_timeout_s = _ADMIN_TIMEOUT_S
    load_model = _awaitable(Calls.load_model)
    unload_model = _awaitable(Calls.unload_model)
    set_model_label = _awaitable(Calls.set_model_label)
    remove_model_label = _awaitable(Calls.remove_model_label)
