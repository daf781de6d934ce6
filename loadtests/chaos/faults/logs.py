"""A log that cannot be written: no space on its disk, or a collector that does not read."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import Client
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.venue import text_from

_LOST_LINES: Final = "mt_lost_log_lines_total"
_FULL_DISK: Final = Path("/dev/full")
_PIPE_BYTES: Final = 4096
"""A dozen lines; what a system usually keeps, 64 KiB, would only take longer to fill."""

_SAID_SO: Final = '"log lines were lost"'
_LOG_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


def _fill_disk(stage: Stage) -> str:
    return _lose_lines(stage, _FULL_DISK)


def _leave_pipe_unread(stage: Stage) -> str:
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        path = Path(directory) / "log"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # or the writer would wait for it
        try:
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            return _lose_lines(stage, path)
        finally:
            os.close(reader)


def _lose_lines(stage: Stage, path: Path) -> str:
    """Let the log go nowhere while calls are made, then where it went before; nobody may notice but who reads it."""
    lost_before = stage.samples(_LOST_LINES)
    size_before = stage.venue.log.stat().st_size
    stage.venue.agent.log_to(path)
    try:
        with Client(stage.target) as client:
            for number in range(stage.scale.num_logged_calls):
                question = stage.questions[number % len(stage.questions)]
                status = judged(client.translate(question.request), question).status
                stage.require(status == "OK", f"a call without a log was told {status}")
                if stage.broken:
                    break
        num_lost = round(stage.samples(_LOST_LINES) - lost_before)
    finally:
        stage.venue.agent.log_to(None)
    stage.require(num_lost > 0, "no line of the log is counted as lost")
    said_so = _wait_until(lambda: _SAID_SO in text_from(stage.venue.log, size_before))
    stage.require(said_so, "the log does not say that lines are missing")
    return f"{_LOST_LINES}{num_lost:+d}" if num_lost else ""


def _wait_until(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + _LOG_TIMEOUT_S
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)
    return True


DISK_FULL: Final = Fault(
    name="log-disk-full", summary="there is no space left for the log (ENOSPC), and later there is", run=_fill_disk
)
PIPE_BLOCKED: Final = Fault(
    name="log-pipe-blocked", summary="whoever reads the log hangs, so its pipe is full", run=_leave_pipe_unread
)
