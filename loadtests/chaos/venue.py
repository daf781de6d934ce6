"""The server that faults are done to: a process with models of its own and somebody inside who takes orders."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.chaos.agent import INSIDE, SOCKET_VARIABLE, Agent
from loadtests.target import ServerProcess

SHIPPED_MODELS: Final = Path(__file__).resolve().parents[2] / "deploy" / "models"

HANDSHAKE_TIMEOUT_S: Final = 2.0
"""Of the server; its default of 10 s would only make everything take longer."""

NUM_DECODING_THREADS: Final = 2
"""Of the server, whatever the machine: one that hangs, and another."""

_SETTINGS: Final = {
    "DRAGOMAN_SCHEDULING__NUM_DECODING_THREADS": str(NUM_DECODING_THREADS),
    "DRAGOMAN_GRPC__HANDSHAKE_TIMEOUT_S": str(HANDSHAKE_TIMEOUT_S),
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.2",
}
_START_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Venue:
    """A server that is ready."""

    server: ServerProcess
    agent: Agent
    models: Path
    """Its own copy, to be damaged at will."""

    pristine_models: Path
    """What it is a copy of."""

    log: Path


@contextmanager
def open_venue(output: Path, *, models: Path, environment: Mapping[str, str]) -> Iterator[Venue]:
    """Start a server, ready for calls, on a copy of the models; kill it at the end if it still runs.

    Raises:
        ServerError: if it does not start.
    """
    copy = output / "models"
    restore_models(models, copy)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:  # short: the path of a socket has a limit
        orders = Path(directory) / "orders"
        python_path = os.pathsep.join(filter(None, [str(INSIDE), os.environ.get("PYTHONPATH", "")]))
        inherited = {"PYTHONPATH": python_path, SOCKET_VARIABLE: str(orders)}
        log = output / "server.log"
        flags = ("--models", str(copy.resolve()))
        with ServerProcess(log, *flags, environment={**_SETTINGS, **inherited, **environment}) as server:
            server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
            with Agent(orders) as agent:
                yield Venue(server=server, agent=agent, models=copy, pristine_models=models, log=log)


def restore_models(pristine: Path, copy: Path) -> None:
    """Make a directory of models what another one is, with files of its own."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(pristine, copy)


def text_from(path: Path, position: int) -> str:
    """Return what a file has from a position on, such as what a server has logged since then."""
    with path.open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")
