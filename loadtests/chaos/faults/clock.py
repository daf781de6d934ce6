"""The machine's wall clock jumps, as when it is set right by hand or after a suspension.

It jumps for the server's process alone, Python and C libraries alike: a small library is compiled and preloaded.
Deadlines, the queue and everything else that waits must not notice.
"""

import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from loadtests.chaos.agent import INSIDE
from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import Client, Reply
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.limits import Limits
from loadtests.target import ServerError

_SOURCE: Final = INSIDE / "wall_clock.c"
_CLOCK_VARIABLE: Final = "CHAOS_CLOCK"
_COMPILE_TIMEOUT_S: Final = 60.0
_JUMP_TIMEOUT_S: Final = 10.0
_JUMP_SLACK_S: Final = 60.0
_POLL_S: Final = 0.05
_DEADLINE_S: Final = 5.0
_HANG_S: Final = 1.5
_HURRIED_DEADLINE_S: Final = 0.5
_HURRIED_SLACK_S: Final = 0.5


def find_compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc")


def clock_jump(output: Path, compiler: str) -> Fault:
    """Return the fault of a wall clock that jumps; `output` is where the library and what steers it may lie."""
    steering = output / "clock"

    def environment() -> Mapping[str, str]:
        output.mkdir(parents=True, exist_ok=True)
        write_offset(steering, 0.0)
        return {"LD_PRELOAD": str(_compiled(compiler, output)), _CLOCK_VARIABLE: str(steering.resolve())}

    return Fault(
        name="clock-jump",
        summary="the wall clock jumps an hour ahead, two back, and to where it was",
        run=lambda stage: _jump_about(stage, steering),
        limits=Limits(max_bystander_s=2 * _HANG_S + 2.0),  # somebody may be in both steps that are made to hang
        environment=environment,
    )


def write_offset(path: Path, offset_s: float) -> None:
    """Say how far the clock is off; in place, as the server's process has the file mapped."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("=q", round(offset_s * 1e9)))


def _compiled(compiler: str, output: Path) -> Path:
    library = (output / "wall_clock.so").resolve()
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerError(f"the library that makes the clock jump cannot be compiled: {error}") from error
    return library


def _jump_about(stage: Stage, steering: Path) -> str:
    jumped_s = []
    for offset_s in (stage.scale.clock_jump_s, -stage.scale.clock_jump_s, 0.0):
        stage.venue.agent.let_hang("step", _HANG_S)  # so that somebody is in the batch when it happens
        stage.venue.agent.wait_until_met(_JUMP_TIMEOUT_S)
        write_offset(steering, offset_s)
        jumped_s.append(_wait_for_jump(stage, offset_s))
        stage.bystanders.wait_for_answers()
        _require_deadlines(stage)
    shown = [f"{offset_s:+.0f}" for offset_s in jumped_s if offset_s is not None]
    return f"wall_clock_s={','.join(shown)}" if len(shown) == len(jumped_s) else ""


def _wait_for_jump(stage: Stage, offset_s: float) -> float | None:
    """Return how far the server's clock is off once it is as far as it should be; None if it never is."""
    until_s = time.monotonic() + _JUMP_TIMEOUT_S
    while time.monotonic() < until_s:
        found_s = stage.venue.agent.wall_clock_s() - time.time()
        if abs(found_s - offset_s) < _JUMP_SLACK_S:
            return found_s
        time.sleep(_POLL_S)
    return None


def _require_deadlines(stage: Stage) -> None:
    """A deadline that can be kept is kept, and one that cannot is missed when it passes, not an hour off."""
    question = stage.questions[0]
    with Client(stage.target) as client:
        kept = judged(client.translate(question.request, timeout_s=_DEADLINE_S), question)
        stage.venue.agent.let_hang("step", _HANG_S)
        stage.venue.agent.let_hang("step", _HANG_S)
        stage.venue.agent.wait_until_met(_JUMP_TIMEOUT_S)
        missed: Reply = client.translate(question.request, timeout_s=_HURRIED_DEADLINE_S)
    stage.require(kept.status == "OK", f"with the clock off, a call with {_DEADLINE_S:g} s was told {kept.status}")
    stage.hits[missed.status] += 1
    allowed = {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    stage.require(missed.status in allowed, f"with the clock off, a call that must be late was told {missed.status}")
    late_s = missed.latency_s - _HURRIED_DEADLINE_S
    stage.require(late_s < _HURRIED_SLACK_S, f"with the clock off, a caller heard {late_s:.1f} s after its deadline")
