"""Supervisor of the front ends: starts, drains and restarts them, and keeps their limits, models and metrics exact."""

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from dragoman_service.config import Settings
from dragoman_service.errors import ConfigError, DragomanError, EngineError
from dragoman_service.models.repository import ModelRepository
from dragoman_service.observability.metrics import Metrics
from dragoman_service.processes.call_count import SharedCallCount
from dragoman_service.processes.merged_metrics import Families, MergedRegistry, added, without_gauges
from dragoman_service.processes.messages import StartCommand
from dragoman_service.processes.session import FrontEndSession, ModelNumbers
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import UNIX_SCHEME

log = logging.getLogger(__name__)

_STABLE_AGE_S: Final = 10.0  # a front end that lives longer is restarted without a growing delay
_MIN_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 30.0
_NUM_ADMIN_THREADS: Final = 4  # models that are loaded or unloaded at the same time
_PUBLISH_TIMEOUT_S: Final = 10.0
_REPORT_S: Final = 0.5  # for the report of a drain that timed out in a front end


class FrontEnds:
    """The front ends of a server; for one event loop, except for `registry`."""

    def __init__(self, settings: Settings, *, models: ModelRepository, access: Access, metrics: Metrics) -> None:
        """Create without processes; ConfigError if the settings do not allow several processes."""
        check_support(settings)
        self._settings = settings
        self._models = models
        self._metrics = metrics
        self._access = access
        self.calls = SharedCallCount.create(settings.grpc.processes + 1)
        self.registry = MergedRegistry(metrics.registry, self._reports)
        self._loop = asyncio.get_running_loop()
        self._admin_threads = ThreadPoolExecutor(_NUM_ADMIN_THREADS, thread_name_prefix="model-admin")
        self._numbers = ModelNumbers()
        self._revision = 0
        self._sessions: dict[int, FrontEndSession] = {}  # by index
        self._supervising: list[asyncio.Task[None]] = []
        self._ended: Families = {}  # counters of the processes that have ended
        self._reporting = threading.Lock()  # a scrape, in its own thread, counts each report once
        self._reservation: socket.socket | None = None
        self._is_stopping = False
        metrics.front_ends.set_function(lambda: sum(session.is_listening for session in [*self._sessions.values()]))
        models.call_on_change(self._announce_soon)

    @property
    def quota(self) -> Access:
        """Implement `session.Services`."""
        return self._access

    @property
    def is_serving(self) -> bool:
        """True if at least one front end accepts calls."""
        return any(session.is_listening for session in self._sessions.values())

    def reserve_port(self) -> int:
        """Bind the port of the front ends without listening, and return it; ConfigError if it is in use."""
        grpc = self._settings.grpc
        try:
            (family, _, _, _, address), *_ = socket.getaddrinfo(
                grpc.host.strip("[]"), grpc.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            with _bound(family, address, shares_port=False):
                pass  # fails if another server listens, even one that shares its port
            self._reservation = _bound(family, address, shares_port=True)
        except OSError as error:
            raise ConfigError("grpc.port", f"{grpc.host}:{grpc.port}", "an available address") from error
        port: int = self._reservation.getsockname()[1]
        self._settings = self._settings.model_copy(update={"grpc": grpc.model_copy(update={"port": port})})
        return port

    async def start(self) -> None:
        """Start all front ends; return when they listen. Raises DragomanError if one cannot start."""
        indices = range(1, self._settings.grpc.processes + 1)
        sessions = await asyncio.gather(*map(self._launch, indices))
        self._supervising = [asyncio.create_task(self._supervise(session)) for session in sessions]

    async def drain(self, timeout_s: float) -> bool:
        """Let all front ends answer their calls and reject others; return False if one could not in time."""
        self._is_stopping = True
        for task in self._supervising:
            task.cancel()
        for session in self._sessions.values():
            session.drain()
        drained = [session.drained for session in self._sessions.values() if session.is_listening]
        if not drained:
            return True
        done, pending = await asyncio.wait(drained, timeout=timeout_s + _REPORT_S)
        return not pending and all(one.result() for one in done)

    async def stop(self) -> None:
        """End all front ends."""
        self._is_stopping = True
        for task in self._supervising:
            task.cancel()
        await asyncio.gather(*(session.stop() for session in self._sessions.values()))
        self._admin_threads.shutdown(wait=False)
        if self._reservation:
            self._reservation.close()

    async def answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Implement `session.Services`."""
        match method:
            case "take_request":
                return await self.quota.take_request(*arguments)
            case "take_tokens":
                return await self.quota.take_tokens(*arguments)
            case "load":
                return await self._change_models(partial(self._models.load, *arguments))
            case "unload":
                return await self._change_models(partial(self._models.unload, *arguments))
            case "set_label":
                return await self._change_models(partial(self._models.set_label, *arguments))
        raise AssertionError(f"unknown method {method}")

    async def _change_models(self, change: Callable[[], Any]) -> Any:
        # Returns when all front ends use the changed registry, as the next call may go to any of them.
        result = await self._loop.run_in_executor(self._admin_threads, change)
        revision = self._revision  # `_announce` has run: it was scheduled first
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                for session in [*self._sessions.values()]:
                    while session.published < revision and not session.has_ended.is_set():
                        await session.has_published.wait()
        return result

    def _announce_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        self._revision += 1
        registry = self._models.registry
        for session in self._sessions.values():
            session.announce(registry, self._revision)

    async def _launch(self, index: int) -> FrontEndSession:
        # Starts a front end; returns when it listens.
        start = StartCommand(settings=self._settings, index=index)
        session = FrontEndSession(start, self, self._numbers)
        self._sessions[index] = session
        timeout_s = self._settings.models.load_timeout_s
        try:
            await session.start(self.calls.descriptor)
            session.announce(self._models.registry, self._revision)
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(session.listening)
        except TimeoutError:
            session.kill()
            await self._clean_up(session)
            raise EngineError(f"front end {index} was not ready within {timeout_s:g} s") from None
        except DragomanError:
            session.kill()
            await self._clean_up(session)
            raise
        log.info("front end ready", extra={"front_end": index, "pid": session.pid})
        return session

    async def _supervise(self, session: FrontEndSession) -> None:
        index, delay_s = session.index, _MIN_DELAY_S
        while True:
            exit_code = await self._clean_up(session)
            fields = {"front_end": index, "pid": session.pid, "exit_code": exit_code}
            log.error("front end exited", extra=fields)
            if session.age_s > _STABLE_AGE_S:
                delay_s = _MIN_DELAY_S
            restarted = None
            while restarted is None:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MAX_DELAY_S)
                try:
                    restarted = await self._launch(index)
                except DragomanError as error:
                    log.error("front end could not be restarted", extra={"front_end": index, "fault": str(error)})  # noqa: TRY400
            self._metrics.front_end_restarts.inc()
            session = restarted

    async def _clean_up(self, session: FrontEndSession) -> int:
        # Waits for the exit of a front end; keeps its counters and ends its calls.
        exit_code = await session.wait()
        self.calls.clear(session.index)
        with self._reporting:
            self._ended, session.families = added([self._ended, without_gauges(session.families)]), {}
        return exit_code

    def _reports(self) -> list[Families]:
        with self._reporting:
            return [self._ended, *(session.families for session in [*self._sessions.values()])]


def check_support(settings: Settings) -> None:
    """Raise ConfigError if several processes cannot serve with these settings."""
    processes = settings.grpc.processes
    if sys.platform != "linux":
        raise ConfigError("grpc.processes", processes, "1 on systems other than Linux")
    if settings.grpc.host.startswith(UNIX_SCHEME):
        raise ConfigError("grpc.processes", processes, f"1 with grpc.host = {settings.grpc.host!r}")


def _bound(family: int, address: Any, *, shares_port: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares_port))
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
