"""Both servers as processes; whoever has no turn stands still."""

import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests.generator import Generator
from loadtests.peers.model_files import ModelFiles
from loadtests.peers.serving.settings import BatchingSettings
from loadtests.peers.systems import Peer
from loadtests.peers.workspace import served_models
from loadtests.records import Summary
from loadtests.target import ServerProcess, Target
from loadtests.wire import TRANSLATE
from loadtests.workload import Workload

_START_S: Final = 120.0
_NUM_CALLERS: Final = 8
_PATIENCE_S: Final = 120.0
"""Of callers who want to know what is answered, not how quickly."""


class PausedServer:
    """A server that runs only while load is offered to it; stopped (SIGSTOP) it takes nothing from the other."""

    def __init__(self, process: ServerProcess, workload: Workload) -> None:
        """Stop it; it must be ready."""
        self._process = process
        self._generator = Generator(target=Target(address=process.target), workload=workload)
        self._stop()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Let it run under so many calls a second."""
        with self._running():
            return self._generator.offer(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)

    def throughput_per_s(self, *, duration_s: float) -> float:
        """Let it run for callers who wait."""
        with self._running():
            return self._generator.throughput_per_s(duration_s=duration_s)

    def answers(self, *, count: int) -> list[pb.TranslateResponse]:
        """Let it answer so many requests."""
        calls = itertools.islice(self._generator.workload.calls(0), count)
        with (
            self._running(),
            grpc.insecure_channel(self._process.target) as channel,
            ThreadPoolExecutor(_NUM_CALLERS) as pool,
        ):
            method = channel.unary_unary(TRANSLATE, response_deserializer=pb.TranslateResponse.FromString)
            ask = partial(method, timeout=_PATIENCE_S, wait_for_ready=True)
            return list(pool.map(ask, [call.messages[0] for call in calls]))

    @contextmanager
    def _running(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        """Return once none of its threads runs, or if it has ended."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def our_server(files: ModelFiles, workload: Workload, *, log: Path) -> Iterator[PausedServer]:
    """Serve a model as an operator would, with all defaults.

    Raises:
        ServerError: if it does not start.
    """
    with ServerProcess(log, "--models", str(served_models(files).resolve())) as process:
        process.wait_until_ready(timeout_s=_START_S)
        yield PausedServer(process, workload)


@contextmanager
def their_server(
    files: ModelFiles, workload: Workload, peer: Peer, settings: BatchingSettings, *, log: Path
) -> Iterator[PausedServer]:
    """Serve a model with another system.

    Raises:
        ServerError: if it does not start.
    """
    module = ("loadtests.peers", "serve", "--port", "0")
    flags = ("--system", peer, "--files", str(files.directory.resolve()), "--settings", settings.name)
    with ServerProcess(log, *flags, module=module) as process:
        process.wait_until_ready(timeout_s=_START_S)
        yield PausedServer(process, workload)
