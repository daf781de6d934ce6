"""Both servers as processes; whoever has no turn stands still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.peers.model_files import ModelFiles
from loadtests.peers.serving.settings import BatchingSettings
from loadtests.peers.systems import Peer
from loadtests.peers.workspace import served_models
from loadtests.records import Summary
from loadtests.sending import Sender
from loadtests.target import ServerProcess

_START_S: Final = 120.0


class PausedServer:
    """A server that runs only while load is offered to it; stopped (SIGSTOP) it takes nothing from the other."""

    def __init__(self, process: ServerProcess, sender: Sender) -> None:
        """Stop it; it must be ready."""
        self._process = process
        self._sender = sender
        self._stop()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def offer(self, *, rate_per_s: float, duration_s: float, seed: int) -> Summary:
        """Let it run under so many calls a second."""
        with self._running() as target:
            return self._sender.offer(target, rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)

    def throughput_per_s(self, *, duration_s: float) -> float:
        """Let it run for callers who wait."""
        with self._running() as target:
            return self._sender.throughput_per_s(target, duration_s=duration_s)

    def answers(self, *, count: int) -> list[pb.TranslateResponse]:
        """Let it answer so many requests."""
        with self._running() as target:
            return self._sender.answers(target, count=count)

    @contextmanager
    def _running(self) -> Iterator[str]:
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield self._process.target
        finally:
            self._stop()

    def _stop(self) -> None:
        """Return once none of its threads runs, or if it has ended."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def our_server(files: ModelFiles, sender: Sender, *, log: Path) -> Iterator[PausedServer]:
    """Serve a model as an operator would, with all defaults.

    Raises:
        ServerError: if it does not start.
    """
    with ServerProcess(log, "--models", str(served_models(files).resolve())) as process:
        process.wait_until_ready(timeout_s=_START_S)
        yield PausedServer(process, sender)


@contextmanager
def their_server(
    files: ModelFiles, sender: Sender, peer: Peer, settings: BatchingSettings, *, log: Path
) -> Iterator[PausedServer]:
    """Serve a model with another system.

    Raises:
        ServerError: if it does not start.
    """
    module = ("loadtests.peers", "serve", "--port", "0")
    flags = ("--system", peer, "--files", str(files.directory.resolve()), "--settings", settings.name)
    with ServerProcess(log, *flags, module=module) as process:
        process.wait_until_ready(timeout_s=_START_S)
        yield PausedServer(process, sender)
