"""The chaos test itself: what it finds where nothing is broken, and where something is."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from loadtests.stress.chaos.fault import LIMITS, Fault, Result, Stage, fault
from loadtests.stress.chaos.scenario import chosen, run_faults
from tests.integration.real_process import CHECKOUT, START_S

pytestmark = pytest.mark.slow
AMOUNTS = {"step-raises": 1, "onnx-runtime": 1, "log-disk-full": 30}
ANY_TIME = {name: START_S for name in LIMITS if name.endswith("_s")}  # how fast says nothing on a shared machine


def run(faults: list[Fault], models: Path, output: Path) -> tuple[list[Result], list[int | None]]:
    unhurried = [dataclasses.replace(one, limits=ANY_TIME, amounts=(AMOUNTS.get(one.name, 0), 0)) for one in faults]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(CHECKOUT / "proto"))  # of the server
        return run_faults(unhurried, "short", output, models, seed=1)


def test_faults_within_the_process_hit_nobody_else(tiny_model: Path, tmp_path: Path) -> None:
    results, exit_codes = run(chosen(",".join(AMOUNTS)), tiny_model, tmp_path)

    assert {result.fault.name: result.summary.broken for result in results} == {name: [] for name in AMOUNTS}
    assert exit_codes == [0]


def test_a_server_that_ends_is_told_and_the_next_fault_gets_another(tiny_model: Path, tmp_path: Path) -> None:
    @fault()
    def kill(stage: Stage) -> None:
        os.kill(stage.server.process.pid, signal.SIGKILL)
        stage.bystanders.wait_for_answers()

    @fault(metric="mt_requests_total")
    def leave_alone(stage: Stage) -> None:
        stage.require_ok("nothing was done", [stage.ask()])

    (killed, left_alone), exit_codes = run([kill, leave_alone], tiny_model, tmp_path)

    assert "the server has ended with -9" in killed.broken
    assert {error.status for error in killed.errors} == {"UNAVAILABLE"}
    assert left_alone.summary.broken == []
    assert exit_codes == [-9, 0]
