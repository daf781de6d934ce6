"""Print the source files of the service that a warm `Translate` passes, in the server process and the worker process.

    python -m docs.trace_request

A file counts if one of its functions runs during each of several calls, so that periodic tasks are not counted.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.server_process import ServerProcess

_NUM_CALLS = 8
_TRACER = """
import itertools, os, signal, sys, threading
seen, number = set(), itertools.count()
def profile(frame, event, _argument):
    if event == "call":
        seen.add(frame.f_code.co_filename)
def dump(*_):
    names = sorted(name for name in list(seen) if "/dragoman_service/" in name)
    seen.clear()
    path = f"{os.environ['TRACE_DIRECTORY']}/{os.getpid()}.{next(number)}"
    with open(path + ".part", "w") as file:
        file.write("\\n".join(names))
    os.rename(path + ".part", path)
signal.signal(signal.SIGRTMIN, dump)
threading.setprofile(profile)
sys.setprofile(profile)
"""


def main() -> None:
    """Start a server with the bundled model and trace calls."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "sitecustomize.py").write_text(_TRACER)
        path = os.pathsep.join((directory, *filter(None, sys.path)))
        with ServerProcess(environment={"PYTHONPATH": path, "TRACE_DIRECTORY": directory}) as server:
            ports = server.wait_until_ready(timeout_s=120)
            pids = [server.pid, *_children(server.pid)]
            with grpc.insecure_channel(f"127.0.0.1:{ports.grpc_port}") as channel:
                for number, (process, names) in enumerate(_traced(channel, pids, Path(directory)).items()):
                    print(f"{'server' if number == 0 else 'worker'} process ({process}): {len(names)} files")
                    print("".join(f"  {name}\n" for name in sorted(names)), end="")
            server.send(signal.SIGTERM)


def _traced(channel: grpc.Channel, pids: list[int], directory: Path) -> dict[int, set[str]]:
    """Return the files that run in each process during every call."""
    request = pb.TranslateRequest(texts=["A man rides a bicycle."], source_language="en", target_language="de")
    translate = pb_grpc.TranslationServiceStub(channel).Translate
    for _ in range(_NUM_CALLS):
        translate(request)
    files: dict[int, set[str]] = {}
    for call in range(_NUM_CALLS):
        _dump(pids, directory, 2 * call)
        translate(request)
        for process, names in _dump(pids, directory, 2 * call + 1).items():
            files[process] = files.get(process, names) & names
    return files


def _dump(pids: list[int], directory: Path, number: int) -> dict[int, set[str]]:
    """Return the files that ran in each process since the last dump."""
    time.sleep(0.05)  # the log line follows the response
    files = {}
    for process in pids:
        os.kill(process, signal.SIGRTMIN)
        path = directory / f"{process}.{number}"
        while not path.exists():
            time.sleep(0.001)
        files[process] = {name.partition("/dragoman_service/")[2] for name in path.read_text().split("\n") if name}
    return files


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


if __name__ == "__main__":
    main()
