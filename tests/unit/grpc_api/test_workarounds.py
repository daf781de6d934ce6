import logging
import os
import subprocess
import sys

import pytest

from dragoman_service.grpc_api.workarounds import is_worth_logging

ExecuteBatchError = type("ExecuteBatchError", (Exception,), {})


def record_of(error: Exception | None) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error else None
    return logging.LogRecord("grpc", logging.ERROR, "", 0, "failed", None, exc_info)


@pytest.mark.parametrize(("error", "expected"), [(ExecuteBatchError(), False), (ValueError(), True), (None, True)])
def test_errors_of_disconnected_callers_are_not_logged(error: Exception | None, *, expected: bool) -> None:
    assert is_worth_logging(record_of(error)) is expected


@pytest.mark.parametrize(("verbosity", "num_lines"), [(None, 0), ("ERROR", 1)])
def test_grpc_logs_only_on_request(verbosity: str | None, num_lines: int) -> None:
    """Its lines are not JSON, and clients without a key can cause them."""
    code = """
import dragoman_service, grpc, socket
with socket.create_server(("127.0.0.1", 0)) as taken:
    server = grpc.server(None, options=[("grpc.so_reuseport", 0)])
    try:
        server.add_insecure_port(f"127.0.0.1:{taken.getsockname()[1]}")
    except RuntimeError:
        pass
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    environment |= {"GRPC_VERBOSITY": verbosity} if verbosity else {}

    finished = subprocess.run(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, encoding="utf-8", check=True
    )

    assert len(finished.stderr.splitlines()) == num_lines
