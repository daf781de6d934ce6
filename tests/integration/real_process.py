"""The server as a separate process, and calls that keep it busy."""

import contextlib
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.datatypes import Ports
from tests.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
START_S = STOP_S = 60.0  # only reached by a test that would otherwise fail anyway
CALL_S = 120.0  # below the time limit of a test
# With these settings, a call of many sentences takes long.
ONE_BY_ONE = {"DRAGOMAN_SCHEDULING__NUM_WORKERS": "1", "DRAGOMAN_SCHEDULING__MAX_BATCH_SEGMENTS": "1"}


def process(*flags: str, **environment: str) -> ServerProcess:
    return ServerProcess(*flags, environment=environment)


def connect(ports: Ports) -> grpc.Channel:
    """Return a channel with its own connection."""
    return grpc.insecure_channel(f"127.0.0.1:{ports.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)])


def long_request(num_sentences: int) -> pb.TranslateRequest:
    """Return a request that keeps one decoding thread busy for long."""
    options = pb.DecodingOptions(beam_size=16, min_target_tokens=60, max_target_tokens=63)
    text = "A man rides a bicycle. " * num_sentences
    return pb.TranslateRequest(texts=[text], source_language="en", target_language="de", options=options)


def begin(channel: grpc.Channel, *, num_sentences: int) -> Any:
    """Begin a call that keeps one decoding thread busy for long."""
    return pb_grpc.TranslationServiceStub(channel).Translate.future(long_request(num_sentences), timeout=CALL_S)


def get(ports: Ports, path: str) -> tuple[int, str]:
    """Send a request to the HTTP port; return status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports.http_port}{path}") as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def free_ports(number: int = 1) -> list[int]:
    """Return free ports; no other test requests a port by number."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]


def wait_until_in_flight(ports: Ports) -> None:
    wait_for_sample(ports, 'dragoman_requests_in_flight{method="Translate"} 1.0')


def wait_for_sample(ports: Ports, line: str) -> None:
    """Wait until the server exposes a sample as this line."""
    wait_until(lambda: line in get(ports, "/metrics")[1].splitlines())


def worker_processes(parent: int) -> list[int]:
    """Return the child processes that run a program of their own and are not zombies.

    A child that was stopped between fork and exec would also stop its parent.
    """
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    states = {pid: _parent_and_state(pid) for pid in pids}
    children = [pid for pid, (its_parent, state) in states.items() if its_parent == parent and state != "Z"]
    return [pid for pid in children if command_line(pid) != command_line(parent)]


def command_line(pid: int) -> bytes:
    """Return the arguments of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_gone(pid: int) -> bool:
    """Return whether a process has exited, even if its parent has not waited for it."""
    return _parent_and_state(pid)[1] in {"", "Z"}


def _parent_and_state(pid: int) -> tuple[int, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return int(fields[1]), fields[0]
