"""Resources of a server's processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loadtests.generator.metrics import footprint


@pytest.mark.parametrize(("name", "is_counted"), [("worker", True), ("event_engine", False)])
def test_threads_of_the_grpc_pool_are_not_counted(name: str, is_counted: bool) -> None:
    before, ready, is_over = footprint(os.getpid()).num_threads, threading.Event(), threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name, encoding="ascii")
        ready.set()
        is_over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        assert footprint(os.getpid()).num_threads == before + is_counted
    finally:
        is_over.set()
        thread.join()


def test_ended_process_has_no_footprint() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError, match="has ended"):
        footprint(process.pid)
