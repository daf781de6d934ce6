"""The front end's view of the owner: models, queues and quotas."""

import asyncio
import contextlib
import gc
import itertools
import pickle
import socket
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.errors import DragomanError, DrainingError
from dragoman_service.models.model import Futures, LoadedModel, ModelScheduler, ModelStatus, SegmentQueue
from dragoman_service.models.registry import ModelRegistry
from dragoman_service.models.repository import ServedModels
from dragoman_service.observability.metrics import Metrics
from dragoman_service.processes.connection import MessageConnection
from dragoman_service.processes.messages import (
    Answer,
    CancelCommand,
    DrainCommand,
    ModelReleased,
    ModelsChanged,
    ModelsPublished,
    Question,
    SegmentResults,
    StartCommand,
    SubmitCommand,
    Submitted,
)
from dragoman_service.request import RequestRecord
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import AccessSettings


@dataclass(slots=True)
class _SubmittedCall:
    futures: Futures
    is_admitted: asyncio.Future[None]  # done from the start if the results are sent together


class Owner:
    """The connection to the owner; for the event loop, except for `ask_from_thread`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = MessageConnection(self._receive, self._end)
        self._numbers = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._calls: dict[int, _SubmittedCall] = {}
        self._early: list[ModelsChanged] = []
        self._on_models: Callable[[ModelsChanged], None] = self._early.append
        self.started: asyncio.Future[StartCommand] = self._loop.create_future()
        self.must_drain = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def open(self, end: socket.socket) -> None:
        """Use one end of a pair of sockets."""
        await self._connection.open(end)

    def send(self, message: Any) -> None:
        """Send a message."""
        self._connection.send(message)

    def send_from_thread(self, message: Any) -> None:
        """Send a message from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.send, message)

    def call_on_models(self, on_models: Callable[[ModelsChanged], None]) -> None:
        """Call `on_models` for each change of the registry, including those that have arrived."""
        self._on_models = on_models
        for message in self._early:
            on_models(message)
        self._early.clear()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the owner; return its number and its result, or raise its error."""
        number = next(self._numbers)
        answer = self._questions[number] = self._loop.create_future()
        self.send(Question(call=number, method=method, arguments=arguments))
        try:
            return number, await answer
        except asyncio.CancelledError:
            self.send(CancelCommand(call=number))
            raise
        finally:
            self._questions.pop(number, None)

    def ask_from_thread(self, method: str, *arguments: Any) -> Any:
        """Call a method of the owner from another thread; return its result or raise its error."""
        return asyncio.run_coroutine_threadsafe(self.ask(method, *arguments), self._loop).result()[1]

    async def submit(
        self, model_number: int, segments: Sequence[Segment], record: RequestRecord, num_characters: int
    ) -> Futures:
        """Charge and queue segments; raises the errors of `charging.submit_charged`.

        The segments of a whole request, whose number of characters is known, return at once: their rejection is the
        error of each future.
        """
        if self.has_ended.is_set():
            raise DrainingError
        number, is_whole = next(self._numbers), num_characters > 0
        call = _SubmittedCall(tuple(Future() for _ in segments), self._loop.create_future())
        self._calls[number] = call
        self.send(
            SubmitCommand(
                call=number,
                model_number=model_number,
                segments=tuple(segments),
                caller=record.caller,
                priority=record.priority,
                deadline_s=record.deadline_s,
                exemplar=record.trace.exemplar,
                num_characters=num_characters,
                is_whole=is_whole,
            )
        )
        for future in call.futures:
            future.add_done_callback(partial(self._cancel, number))
        if not is_whole:
            try:
                await call.is_admitted
            except BaseException:
                for future in call.futures:
                    future.cancel()
                raise
        return call.futures

    def _cancel(self, number: int, future: "Future[SegmentResult]") -> None:
        # All segments of a call are cancelled together.
        if future.cancelled() and number in self._calls:
            del self._calls[number]
            self.send(CancelCommand(call=number))

    def _receive(self, message: Any) -> None:
        match message:
            case SegmentResults():
                self._resolve(message)
            case Submitted():
                if (call := self._calls.get(message.call)) and not call.is_admitted.done():
                    call.is_admitted.set_result(None)
            case Answer():
                self._answer(message)
            case ModelsChanged():
                self._on_models(message)
            case StartCommand():
                self.started.set_result(message)
            case DrainCommand():
                self.must_drain.set()

    def _resolve(self, message: SegmentResults) -> None:
        call = self._calls.get(message.call)
        if call is None:
            return
        for index, result in message.results:
            future = call.futures[index]
            if isinstance(result, DragomanError):
                future.set_exception(result)
            else:
                future.set_result(result)
        if all(future.done() for future in call.futures):
            self._calls.pop(message.call, None)

    def _answer(self, message: Answer) -> None:
        if question := self._questions.get(message.call):
            if not question.done():
                if message.error:
                    question.set_exception(message.error)
                else:
                    question.set_result(message.value)
        elif (call := self._calls.pop(message.call, None)) and message.error:
            self._reject(call, message.error)

    def _reject(self, call: _SubmittedCall, error: DragomanError) -> None:
        if not call.is_admitted.done():
            call.is_admitted.set_exception(error)
            call.is_admitted.exception()  # nothing awaits it if the results are sent together
        for future in call.futures:
            if not future.done():
                future.set_exception(error)

    def _end(self) -> None:
        self.has_ended.set()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(DrainingError())
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._reject(call, DrainingError())


class RemoteQueue:
    """Queue of a model in the owner; `submit_remotely` submits to it."""

    def __init__(self, owner: Owner, model_number: int) -> None:
        self.owner = owner
        self.model_number = model_number

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestRecord) -> None:
        """Reject nothing: text work of this process does not delay the owner, which rejects the segments."""


async def submit_remotely(
    queue: SegmentQueue, segments: Sequence[Segment], record: RequestRecord, num_characters: int
) -> Futures:
    """Implement `charging.Submit` for the queues of `RemoteModels`."""
    remote = cast("RemoteQueue", queue)
    return await remote.owner.submit(remote.model_number, segments, record, num_characters)


class RemoteModels(ServedModels):
    """The models of the owner, with tokenizers in this process."""

    def __init__(self, owner: Owner) -> None:
        """Publish the models that the owner announces."""
        self._owner = owner
        self._registry = ModelRegistry()
        self._models: dict[int, LoadedModel] = {}  # for new requests, by number
        self._unreleased: set[int] = set()  # models that only current requests use
        self.are_published = asyncio.Event()
        owner.call_on_models(self._publish)

    @property
    def registry(self) -> ModelRegistry:
        """The current registry."""
        return self._registry

    def load(self, model: str) -> tuple[ModelStatus, ...]:
        """Implement `ServedModels.load`."""
        return cast("tuple[ModelStatus, ...]", self._owner.ask_from_thread("load", model))

    def unload(self, model: str) -> None:
        """Implement `ServedModels.unload`."""
        self._owner.ask_from_thread("unload", model)

    def set_label(self, model: str, label: str) -> tuple[ModelStatus, ...]:
        """Implement `ServedModels.set_label`."""
        return cast("tuple[ModelStatus, ...]", self._owner.ask_from_thread("set_label", model, label))

    def collect_unreleased(self) -> None:
        """Free models that only the traceback of a failed request refers to."""
        if self._unreleased:
            gc.collect()

    def _publish(self, message: ModelsChanged) -> None:
        for number, pickled in message.new_models.items():
            model: LoadedModel = pickle.loads(pickled)  # noqa: S301 - of the owner
            queue = cast("ModelScheduler", RemoteQueue(self._owner, number))
            self._models[number] = replace(model, scheduler=queue)
            weakref.finalize(self._models[number], self._release, number).atexit = False
        numbers = message.model_numbers
        entries = {entry.full_name: entry for entry in message.entries}
        for name, number in numbers.items():
            entries[name] = replace(entries[name], model=self._models[number])
        self._registry = ModelRegistry(entries=entries, policies=message.policies)
        del entries
        for number in self._models.keys() - set(numbers.values()):
            self._unreleased.add(number)
            del self._models[number]
        self.are_published.set()
        self._owner.send(ModelsPublished(revision=message.revision))

    def _release(self, number: int) -> None:
        # In the thread that frees the model.
        self._unreleased.discard(number)
        self._owner.send_from_thread(ModelReleased(number=number))


class RemoteAccess(Access):
    """Authenticates in this process and charges in the owner."""

    def __init__(self, owner: Owner, settings: AccessSettings, metrics: Metrics, **options: Any) -> None:
        """Create with the arguments of `Access`; the owner has the connection to the quota store."""
        super().__init__(settings.model_copy(update={"quota_store_url_file": None}), metrics, **options)
        self._owner = owner

    async def take_request(self, caller: str, requests_per_s: float) -> None:
        """Charge a request to a caller; RateLimitedError if it exceeds its quota."""
        await self._owner.ask("take_request", caller, requests_per_s)

    async def take_tokens(
        self,
        caller: str,
        num_tokens: int,
        *,
        decode_cost: Callable[[], int] | None = None,  # noqa: ARG002 - `SubmitCommand` charges it
    ) -> Callable[[], None]:
        """Charge source tokens; return the function that refunds the charge, which the owner keeps as long as it."""
        if self._callers is None:
            return lambda: None
        number, _ = await self._owner.ask("take_tokens", caller, num_tokens)

        def refund() -> None:
            self._owner.send(CancelCommand(call=number, refunds=True))

        weakref.finalize(refund, self._owner.send_from_thread, CancelCommand(call=number)).atexit = False
        return refund
