"""Faults of the machine: a log that cannot be written, files of models that disappear, a wall clock that jumps."""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.callers import Client
from loadtests.stress.chaos.fault import Limits, Stage, fault
from loadtests.stress.chaos.server import INSIDE
from loadtests.stress.server import copy_tree, only_bundle, poll
from loadtests.target import ServerError
from loadtests.wire import Method

_LOST_LINES: Final = "mt_lost_log_lines_total"
_SAID_SO: Final = '"log lines were lost"'
_FULL_DISK: Final = Path("/dev/full")
_PIPE_BYTES: Final = 4096
"""A dozen lines; what a system usually keeps, 64 KiB, would only take longer to fill."""

_LOG_TIMEOUT_S: Final = 10.0

_POLLS_S: Final = 0.6
"""In which the server looks at its models three times."""

_NUM_CALLS: Final = 8
_KEPT_BYTES: Final = 1000
_BROKEN_VERSION: Final = "999"
_LOADING: Final = Limits(max_bystander_s=4.0)
"""Bystanders share the cores with the loading of models."""

_OPTIONS: Final[tuple[dict[str, Any], ...]] = ({"return_alignment": True}, {"coverage_penalty": 0.2})
"""What may make the server read files that it has not read yet."""

_CLOCK_VARIABLE: Final = "CHAOS_CLOCK"
_CLOCK: Final = "clock"
_COMPILE_TIMEOUT_S: Final = 60.0
_SEEN_S: Final = 0.05
"""In which the server sees what was written to the file that it has mapped."""

_JUMP_SLACK_S: Final = 60.0
_DEADLINE_S: Final = 5.0
_HANG_S: Final = 1.5
_SHORT_DEADLINE_S: Final = 0.5
_DEADLINE_SLACK_S: Final = 0.5
_LATE: Final = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}


@fault("no space is left for the log (ENOSPC), and later there is", amounts=(50, 2000))
def log_disk_full(stage: Stage) -> str:
    """Write to a full disk."""
    return _lose_lines(stage, _FULL_DISK)


@fault("the log's collector hangs, so its pipe is full", amounts=(50, 2000))
def log_pipe_blocked(stage: Stage) -> str:
    """Write to a pipe that is never read."""
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
    """Let the log go nowhere while calls are made, then where it went before; only its reader may notice."""
    size_before = stage.server.log.stat().st_size
    stage.server.injector.log_to(path)
    try:
        with Client(stage.target) as client:
            told = {stage.ask(number, client=client).status for number in range(stage.amount)}
        num_lost = stage.growth(_LOST_LINES)
    finally:
        stage.server.injector.log_to(None)
    stage.require(told == {"OK"}, f"calls without a log were told {told}")
    stage.require(num_lost > 0, "no line of the log is counted as lost")
    said_so = poll(lambda: _SAID_SO in stage.server.logged_since(size_before), bool, timeout_s=_LOG_TIMEOUT_S)
    stage.require(said_so, "the log does not say that lines are missing")
    return f"{_LOST_LINES}{num_lost:+d}" if num_lost else ""


@fault("a newer version arrives half copied and is asked for", limits=lambda _: _LOADING)
def version_broken(stage: Stage) -> str:
    """A new version arrives that is cut off, and LoadModel asks for it before the server has noticed."""
    bundle = only_bundle(stage.server.models)
    broken, arriving = bundle.parent / _BROKEN_VERSION, stage.server.models.parent / "arriving"
    copy_tree(bundle, arriving)
    for path in arriving.glob("*.bin"):
        os.truncate(path, path.stat().st_size // 2)
    arriving.rename(broken)
    try:
        return _serve_on(stage, f"{bundle.parent.name}/{_BROKEN_VERSION}", expected="FAILED_PRECONDITION")
    finally:
        shutil.rmtree(broken)


@fault("the model's files are deleted while it serves", limits=lambda _: _LOADING)
def bundle_deleted(stage: Stage) -> str:
    """Delete the bundle."""
    bundle = only_bundle(stage.server.models)
    shutil.rmtree(bundle)
    return _serve_on_and_restore(stage, bundle, expected="NOT_FOUND")


@fault("the model's files are cut off in place while it serves", limits=lambda _: _LOADING)
def bundle_truncated(stage: Stage) -> str:
    """Cut off each file of the bundle."""
    bundle = only_bundle(stage.server.models)
    for path in bundle.iterdir():
        os.truncate(path, min(_KEPT_BYTES, path.stat().st_size))
    return _serve_on_and_restore(stage, bundle, expected="OK")  # it is loaded, so there is nothing to do


def _serve_on_and_restore(stage: Stage, bundle: Path, *, expected: str) -> str:
    try:
        return _serve_on(stage, f"{bundle.parent.name}/{bundle.name}", expected=expected)
    finally:
        copy_tree(stage.server.original_models, stage.server.models)


def _serve_on(stage: Stage, model: str, *, expected: str) -> str:
    """Translate with all options, ask for a version to be loaded, and translate again."""
    with Client(stage.target) as client:
        _translate_all(stage, client)
        reply = client.call(Method.LOAD_MODEL, pb.LoadModelRequest(model=model).SerializeToString())
        time.sleep(_POLLS_S)
        _translate_all(stage, client)
    stage.hits[reply.status] += 1
    stage.require(reply.status == expected, f"LoadModel was told {reply.status}, not {expected}: {reply.message}")
    stage.bystanders.wait_for_answers()
    is_counted = stage.samples(f'mt_requests_total{{method="LoadModel",status="{reply.status}"}}') > 0
    return f"mt_requests_total{{LoadModel,{reply.status}}}" if is_counted else ""


def _translate_all(stage: Stage, client: Client) -> None:
    """Ask for what the server may have put off reading until now, too."""
    for number in range(_NUM_CALLS):
        status = stage.ask(number, client=client).status
        stage.require(status == "OK", f"a translation was told {status}")
        for options in _OPTIONS:
            request = pb.TranslateRequest.FromString(stage.questions[number % len(stage.questions)].request)
            request.options.MergeFrom(pb.DecodingOptions(**options))
            reply = client.translate(request.SerializeToString())
            stage.require(reply.status == "OK", f"a translation with options was told {reply.status}: {reply.message}")
        if stage.broken:
            return


def find_compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc")


def _clock_environment(output: Path) -> Mapping[str, str]:
    """Compile the library that makes the clock of one process jump, for Python and C alike; return what preloads it."""
    output.mkdir(parents=True, exist_ok=True)
    clock, library = (output / _CLOCK).resolve(), (output / "wall_clock.so").resolve()
    _set_clock(clock, 0.0)
    command = [
        str(find_compiler()),
        "-shared",
        "-fPIC",
        "-O2",
        "-o",
        str(library),
        str(INSIDE / "wall_clock.c"),
        "-ldl",
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerError(f"the library that makes the clock jump cannot be compiled: {error}") from error
    return {"LD_PRELOAD": str(library), _CLOCK_VARIABLE: str(clock)}


def _set_clock(path: Path, offset_s: float) -> None:
    """Say how far the clock is off; in place, as the server's process has the file mapped."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("=q", round(offset_s * 1e9)))


@fault(
    "the wall clock jumps an hour ahead, two back, and to where it was",
    seconds=(3600.0, 3600.0),
    limits=lambda _: Limits(max_bystander_s=2 * _HANG_S + 2.0),  # a bystander may be in both steps that hang
    environment=_clock_environment,
)
def clock_jump(stage: Stage) -> str:
    """Let the clock jump while requests are in the batch; deadlines and waits must not notice."""
    shown = []
    for offset_s in (stage.seconds, -stage.seconds, 0.0):
        stage.server.injector.hang_steps(_HANG_S)
        _set_clock(stage.server.log.with_name(_CLOCK), offset_s)
        time.sleep(_SEEN_S)
        if abs(stage.server.injector.wall_clock_s() - time.time() - offset_s) < _JUMP_SLACK_S:
            shown.append(f"{offset_s:+.0f}")
        stage.bystanders.wait_for_answers()
        _require_deadlines(stage)
    return f"wall_clock_s={','.join(shown)}" if len(shown) == 3 else ""


def _require_deadlines(stage: Stage) -> None:
    """A deadline that can be kept is kept, and one that cannot is missed when it passes, not an hour off."""
    with Client(stage.target) as client:
        kept = stage.ask(client=client, timeout_s=_DEADLINE_S)
        stage.server.injector.hang_steps(_HANG_S, count=2)
        missed = stage.ask(client=client, timeout_s=_SHORT_DEADLINE_S)
    stage.require(kept.status == "OK", f"with the clock off, a call with {_DEADLINE_S:g} s was told {kept.status}")
    stage.hits[missed.status] += 1
    stage.require(missed.status in _LATE, f"with the clock off, a call that must be late was told {missed.status}")
    late_s = missed.latency_s - _SHORT_DEADLINE_S
    stage.require(
        late_s < _DEADLINE_SLACK_S, f"with the clock off, a caller was told {late_s:.1f} s after its deadline"
    )


FAULTS: Final = (log_disk_full, log_pipe_blocked, version_broken, bundle_deleted, bundle_truncated, clock_jump)
