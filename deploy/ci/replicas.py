"""Replicas of the server that come back on the port they had: killed, drained, given another version of the model."""

import os
import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from deploy.ci.model_versions import MODELS, bring_version
from loadtests.target import ServerProcess

_READY_TIMEOUT_S: Final = 60.0
_LOAD_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_SETTINGS: Final = {
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.5",
    # As in deploy/compose/dragoman.env: everybody behind Envoy counts as one caller.
    "DRAGOMAN_SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",
    "DRAGOMAN_SCHEDULING__NUM_DECODING_THREADS": "1",
}


class ReplicaError(Exception):
    """A replica did not do what it was told."""


class Replica:
    """One server with a directory of models of its own."""

    def __init__(self, name: str, port: int, *, directory: Path, callers: Path) -> None:
        """Copy the model that ships; nothing runs yet.

        Args:
            name: for its files.
            port: of gRPC.
            directory: where its models and logs are.
            callers: who may call it.
        """
        self.port = port
        self.name = name
        self._models = directory / f"models-{name}"
        self._logs = directory
        self._callers = callers
        self._num_starts = 0
        self._server: ServerProcess | None = None
        shutil.rmtree(self._models, ignore_errors=True)
        shutil.copytree(MODELS, self._models)

    def start(self) -> None:
        """Start it and wait until it takes calls."""
        self._num_starts += 1
        self._server = ServerProcess(
            self._logs / f"replica-{self.name}-{self._num_starts}.log",
            *("--grpc-port", str(self.port), "--models", str(self._models)),
            environment={**_SETTINGS, "DRAGOMAN_ACCESS__CALLERS_FILE": str(self._callers)},
        )
        self._server.wait_until_ready(timeout_s=_READY_TIMEOUT_S)

    def kill(self) -> int:
        """End it at once, while it has calls; return how many it had.

        Raises:
            ReplicaError: if it never has any.
        """
        server = self._running()
        until_s = time.monotonic() + _LOAD_TIMEOUT_S
        while (num_calls := self.num_calls()) == 0:
            if time.monotonic() > until_s:
                raise ReplicaError(f"replica {self.name} gets no calls")
        os.kill(server.pid, signal.SIGKILL)
        server.__exit__(None, None, None)
        return num_calls

    def drain(self) -> None:
        """Send SIGTERM and wait for its end.

        Raises:
            ReplicaError: if it did not answer everything that it had admitted.
        """
        exit_code = self._running().stop()
        if exit_code:
            raise ReplicaError(f"replica {self.name} ended its drain with exit code {exit_code}")

    def upgrade(self, version: str) -> None:
        """Give it the model under another version, as an operator does, and wait until that answers.

        Raises:
            ReplicaError: if it never loads it.
        """
        bring_version(self._models, version)
        until_s = time.monotonic() + _LOAD_TIMEOUT_S
        while not self._sum("mt_model_state", f'state="ready",version="{version}"'):
            if time.monotonic() > until_s:
                raise ReplicaError(f"replica {self.name} does not load version {version}")
            time.sleep(_POLL_S)

    def num_calls(self) -> int:
        """Return how many calls it is answering."""
        return int(self._sum("mt_requests_in_flight", "method="))

    def sample(self, name: str) -> float:
        """Return one metric, by name with labels; 0 if there is none."""
        return self._running().samples().get(name, 0.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.__exit__(kind, error, traceback)

    def _sum(self, name: str, labels: str) -> float:
        samples = self._running().samples()
        return sum(value for key, value in samples.items() if key.startswith(f"{name}{{") and labels in key)

    def _running(self) -> ServerProcess:
        if self._server is None:
            raise ReplicaError(f"replica {self.name} was never started")
        return self._server
