"""Stages of a scenario, such as faults or attacks, one after the other on a server as long as it runs."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Protocol, TypeVar

from dragoman_service.cli.server_process import STOP_TIMEOUT_S, ServerProcess, ServerProcessError


class StageServer(Protocol):
    """A running server under test."""

    @property
    def process(self) -> ServerProcess:
        """The process of the server."""


_Server = TypeVar("_Server", bound=StageServer)
_Stage = TypeVar("_Stage")
_Result = TypeVar("_Result")


def run_stages(
    stages: Iterable[_Stage],
    start: Callable[[], AbstractContextManager[_Server]],
    run: Callable[[_Server, _Stage], _Result],
    *,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> tuple[list[_Result], list[int | None]]:
    """Run the stages; start another server whenever one has ended, and stop the last.

    Return the results, and the exit codes of the servers: None for a server that did not end within the timeout.
    """
    left, results, exit_codes = deque(stages), list[_Result](), list[int | None]()
    while left:
        with start() as server:
            while left and server.process.exit_code is None:
                results.append(run(server, left.popleft()))
            with suppress(ServerProcessError):
                server.process.stop(timeout_s=stop_timeout_s)
            exit_codes.append(server.process.exit_code)
    return results, exit_codes
