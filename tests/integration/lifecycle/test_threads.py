"""A ready server starts no further Python threads; an additional thread would be a leak."""

import contextlib
from pathlib import Path

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.integration.real_process import CALL_S, START_S, connect, process

AT_ONCE = 16
LOAD_AGAIN = pb.LoadModelRequest(model="tiny/1")
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="requires /proc of Linux")


def num_threads(pid: int) -> int:
    """Count the threads started by Python; gRPC names its threads, whose number varies."""
    names = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended since it was listed
            names[task.name] = (task / "comm").read_text(encoding="utf-8")
    return sum(name == names[str(pid)] for name in names.values())


def test_concurrent_requests_and_model_changes_start_no_thread(tiny_model: Path) -> None:
    much_text = pb.TranslateRequest(texts=["Go. " * 2400], source_language="en", target_language="de")
    with process("--models", str(tiny_model)) as running:
        ports = running.wait_until_ready(timeout_s=START_S)
        pid = running.pid
        before = num_threads(pid)
        with connect(ports) as channel:
            stub, admin = pb_grpc.TranslationServiceStub(channel), pb_grpc.ModelAdminServiceStub(channel)
            loads = [admin.LoadModel.future(LOAD_AGAIN, timeout=CALL_S) for _ in range(AT_ONCE)]
            calls = [stub.Translate.future(much_text, timeout=CALL_S) for _ in range(AT_ONCE)]

            assert {load.code() for load in loads} == {grpc.StatusCode.OK}
            assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}

        assert num_threads(pid) <= before  # a thread that is used during start-up may have ended
