"""The owner's end of the connection to one front end: its process, its calls and its references to models."""

import asyncio
import itertools
import logging
import os
import pickle
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from dragoman_service.datatypes import SegmentResult
from dragoman_service.errors import DragomanError, EngineError
from dragoman_service.models.model import Futures, LoadedModel
from dragoman_service.models.registry import ModelRegistry
from dragoman_service.observability.tracing import RequestTrace
from dragoman_service.processes.connection import MessageConnection
from dragoman_service.processes.merged_metrics import Families
from dragoman_service.processes.messages import (
    Answer,
    CancelCommand,
    DrainCommand,
    Drained,
    Failed,
    Listening,
    MetricsReport,
    ModelReleased,
    ModelsChanged,
    ModelsPublished,
    Question,
    SegmentResults,
    StartCommand,
    SubmitCommand,
    Submitted,
    messages_digest,
)
from dragoman_service.request import RequestRecord
from dragoman_service.translation.charging import submit_charged
from dragoman_service.translation.interfaces import Quota

log = logging.getLogger(__name__)

MODULE: Final = "dragoman_service.front_end"
_EXIT_TIMEOUT_S: Final = 2.5  # after the connection was closed


class Services(Protocol):
    """Operations of the owner that a front end calls."""

    @property
    def quota(self) -> Quota:
        """Charges the segments of front ends."""

    async def answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method for a front end."""


class _RemoteTrace(RequestTrace):
    # Trace of a request in a front end.

    def __init__(self, exemplar: dict[str, str]) -> None:
        super().__init__()
        self._exemplar = exemplar

    @property
    def exemplar(self) -> dict[str, str] | None:
        return self._exemplar


@dataclass(slots=True)
class _AdmittedCall:
    futures: Futures
    is_whole: bool
    num_unresolved: int
    results: list[tuple[int, SegmentResult | DragomanError]]  # that have not been sent


class ModelNumbers:
    """Numbers of loaded models, and their pickles for front ends, which are made once."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._known: dict[int, tuple[weakref.ref[LoadedModel], int, bytes]] = {}  # by id of the model

    def number_and_pickle(self, model: LoadedModel) -> tuple[int, bytes]:
        """Return the number of a model, and its pickle without the scheduler."""
        reference, number, pickled = self._known.get(id(model), (None, 0, b""))
        if reference is None or reference() is not model:
            self._known = {key: known for key, known in self._known.items() if known[0]() is not None}
            number = next(self._next)
            pickled = pickle.dumps(replace(model, scheduler=None))  # type: ignore[arg-type] # remote in the front end
            self._known[id(model)] = weakref.ref(model), number, pickled
        return number, pickled


class FrontEndSession:
    """One front-end process, from its start to its exit; for the event loop of the owner."""

    def __init__(self, start: StartCommand, services: Services, numbers: ModelNumbers) -> None:
        self._start = start
        self._services = services
        self._numbers = numbers
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._connection = MessageConnection(self._receive, self._end)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            SubmitCommand: self._start_submission,
            CancelCommand: self._cancel,
            Question: self._start_answer,
            MetricsReport: self._keep_metrics,
            ModelReleased: self._release,
            ModelsPublished: self._record_published,
            Listening: self._record_start,
            Failed: self._record_start,
            Drained: self._record_drain,
        }
        self._process: asyncio.subprocess.Process | None = None
        self._started_at_s = time.monotonic()
        self._models: dict[int, LoadedModel] = {}  # keeps the models that the front end uses, by number
        self._tasks: dict[int, asyncio.Task[None]] = {}  # submissions that wait for a quota, and questions
        self._calls: dict[int, _AdmittedCall] = {}
        self._charges: dict[int, Callable[[], None]] = {}  # refunds
        self._resolved: deque[tuple[int, int]] = deque()  # call and position of segments; any thread appends
        self._is_woken = False
        self.published = 0  # revision of the registry
        self.has_published = asyncio.Event()  # set and replaced at each change of `published`
        self.families: Families = {}
        self.listening: asyncio.Future[None] = self._loop.create_future()
        self.drained: asyncio.Future[bool] = self._loop.create_future()
        self.has_ended = asyncio.Event()
        self.is_expected_to_end = False

    @property
    def index(self) -> int:
        """Index of the front end, from 1."""
        return self._start.index

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at_s

    @property
    def is_listening(self) -> bool:
        """True if the front end accepts calls."""
        return self.listening.done() and not self.listening.exception() and not self.has_ended.is_set()

    async def start(self, shared_descriptor: int) -> None:
        """Start the process, with the memory of the call counts; it listens once it has received models."""
        ours, theirs = socket.socketpair()
        await self.connect(ours)
        descriptors = (theirs.fileno(), shared_descriptor)
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", MODULE, *map(str, descriptors), messages_digest()),
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    pass_fds=descriptors,
                    process_group=0,  # the owner drains after a signal to its process group
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                )
            except OSError as error:
                self._end()
                raise EngineError(f"front end {self.index} could not be started: {error}") from error

    async def connect(self, end: socket.socket) -> None:
        """Use one end of a pair of sockets and send the start command."""
        await self._connection.open(end)
        self._connection.send(self._start)

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def announce(self, registry: ModelRegistry, revision: int) -> None:
        """Send the registry to the front end, and keep its models until the front end releases them."""
        numbers: dict[str, int] = {}
        new: dict[int, bytes] = {}
        for entry in registry.entries.values():
            if entry.model is not None:
                number, pickled = self._numbers.number_and_pickle(entry.model)
                numbers[entry.full_name] = number
                if number not in self._models:
                    self._models[number], new[number] = entry.model, pickled
        self._connection.send(
            ModelsChanged(
                revision=revision,
                entries=tuple(replace(entry, model=None) for entry in registry.entries.values()),
                policies=registry.policies,
                model_numbers=numbers,
                new_models=new,
            )
        )

    def drain(self) -> None:
        """Let the front end reject new calls and answer the admitted ones; `drained` has the result."""
        self._connection.send(DrainCommand())

    async def stop(self) -> None:
        """End the process; kill it if it does not exit in time."""
        self.is_expected_to_end = True
        self._connection.close()
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """Kill the process."""
        if self._process and self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> int:
        """Return the exit code of the process when it has exited and its calls have ended."""
        await self.has_ended.wait()
        return await self._process.wait() if self._process else 0

    def _receive(self, message: Any) -> None:
        self._handlers[type(message)](message)

    def _start_submission(self, message: SubmitCommand) -> None:
        self._run(message.call, self._submit(message))

    def _start_answer(self, question: Question) -> None:
        self._run(question.call, self._answer(question))

    def _keep_metrics(self, report: MetricsReport) -> None:
        self.families = report.families

    def _release(self, released: ModelReleased) -> None:
        self._models.pop(released.number, None)

    def _record_published(self, published: ModelsPublished) -> None:
        self.published = published.revision
        self.has_published.set()
        self.has_published = asyncio.Event()

    def _record_start(self, message: Listening | Failed) -> None:
        if isinstance(message, Failed):
            self.listening.set_exception(message.error)
        else:
            self.listening.set_result(None)

    def _record_drain(self, drained: Drained) -> None:
        if not self.drained.done():
            self.drained.set_result(drained.is_complete)

    def _run(self, call: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[call] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(call, None))

    async def _submit(self, message: SubmitCommand) -> None:
        trace = _RemoteTrace(dict(message.exemplar)) if message.exemplar else RequestTrace()
        record = RequestRecord(
            caller=message.caller, deadline_s=message.deadline_s, priority=message.priority, trace=trace
        )
        try:
            queue = self._models[message.model_number].scheduler
            futures = await submit_charged(
                self._services.quota, queue, message.segments, record, message.num_characters
            )
        except Exception as error:  # noqa: BLE001 - raised in the front end
            self._connection.send(Answer(call=message.call, error=_portable(error)))
            return
        self._calls[message.call] = _AdmittedCall(futures, message.is_whole, len(futures), [])
        if not message.is_whole:
            self._connection.send(Submitted(call=message.call))
        for index, future in enumerate(futures):
            future.add_done_callback(partial(self._on_resolved, message.call, index))

    def _on_resolved(self, call: int, index: int, _future: "Future[SegmentResult]") -> None:
        # In the thread that resolves the segment, usually that of the event loop.
        self._resolved.append((call, index))
        if not self._is_woken:
            self._is_woken = True
            is_own_thread = threading.get_ident() == self._thread_id
            (self._loop.call_soon if is_own_thread else self._loop.call_soon_threadsafe)(self._send_results)

    def _send_results(self) -> None:
        self._is_woken = False
        while self._resolved:
            number, index = self._resolved.popleft()
            if (call := self._calls.get(number)) is None:
                continue  # cancelled
            result = _outcome(call.futures[index])
            call.results.append((index, result))
            call.num_unresolved -= 1
            if not call.num_unresolved:
                del self._calls[number]
            if not (call.is_whole and call.num_unresolved) or isinstance(result, DragomanError):
                self._connection.send(SegmentResults(call=number, results=tuple(call.results)))
                call.results.clear()

    async def _answer(self, question: Question) -> None:
        try:
            value = await self._services.answer(question.method, question.arguments)
        except Exception as error:  # noqa: BLE001 - raised in the front end
            self._connection.send(Answer(call=question.call, error=_portable(error)))
            return
        if question.method == "take_tokens":
            self._charges[question.call], value = value, None
        self._connection.send(Answer(call=question.call, value=value))

    def _cancel(self, message: CancelCommand) -> None:
        if task := self._tasks.pop(message.call, None):
            task.cancel()
        if call := self._calls.pop(message.call, None):
            for future in call.futures:
                future.cancel()
        if (refund := self._charges.pop(message.call, None)) and message.refunds:
            refund()

    def _end(self) -> None:
        # The process has exited or closes the connection: nothing of its calls may remain.
        for number in [*self._calls]:
            self._cancel(CancelCommand(call=number))
        for number in [*self._charges]:
            self._cancel(CancelCommand(call=number, refunds=True))
        for task in self._tasks.values():
            task.cancel()
        self._models.clear()
        if not self.is_expected_to_end:
            self.kill()
        if not self.drained.done():
            self.drained.set_result(False)
        if not self.listening.done():
            self.listening.set_exception(EngineError(f"front end {self.index} exited before it was ready"))
        self.listening.exception()
        self.has_published.set()
        self.has_ended.set()


def _outcome(future: "Future[SegmentResult]") -> SegmentResult | DragomanError:
    if future.cancelled():
        return EngineError("segment cancelled without a result")
    error = future.exception()
    return future.result() if error is None else _portable(error)


def _portable(error: BaseException) -> DragomanError:
    # Returns an error that the front end can unpickle.
    if isinstance(error, DragomanError):
        return error
    log.error("request of a front end failed", exc_info=error)
    return EngineError("the owner could not process the request")
