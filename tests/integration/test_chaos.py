"""The chaos test itself: what it finds where nothing is broken, and where something is."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from loadtests.stress.chaos.fault import Fault, Limits, Result, Stage
from loadtests.stress.chaos.run import run_faults
from loadtests.stress.chaos.scenario import all_faults, chosen
from tests.integration.real_process import CHECKOUT, START_S

AMOUNTS = {"step-raises": 1, "onnx-runtime": 1, "log-disk-full": 30}
ANY_TIME = Limits(max_bystander_s=START_S, max_check_s=START_S, max_recovery_s=START_S)
"""How fast a server is says nothing on a machine that tests share."""


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT / "proto"))


def run(faults: list[Fault], models: Path, output: Path) -> tuple[list[Result], list[int]]:
    unhurried = [
        dataclasses.replace(fault, limits=lambda _: ANY_TIME, amounts=(AMOUNTS.get(fault.name, 0), 0))
        for fault in faults
    ]
    return run_faults(unhurried, "short", output=output, models=models, seed=1, report=lambda _: None)


@pytest.mark.slow
def test_faults_within_the_process_hit_nobody_else(tiny_model: Path, tmp_path: Path) -> None:
    faults = chosen(all_faults(has_compiler=False), list(AMOUNTS))

    results, exit_codes = run(faults, tiny_model, tmp_path)

    assert {result.fault.name: result.summary.broken for result in results} == {fault.name: [] for fault in faults}
    assert exit_codes == [0]


@pytest.mark.slow
def test_a_server_that_ends_is_told_and_the_next_fault_gets_another(tiny_model: Path, tmp_path: Path) -> None:
    def kill(stage: Stage) -> str:
        os.kill(stage.server.process.pid, signal.SIGKILL)
        stage.bystanders.wait_for_answers()
        return "nowhere"

    def leave_alone(stage: Stage) -> str:
        stage.require(stage.samples("mt_ready") == 1, "the server is not ready")
        return "mt_ready"

    faults = [Fault(name="killed", summary="", run=kill), Fault(name="left-alone", summary="", run=leave_alone)]
    (killed, left_alone), exit_codes = run(faults, tiny_model, tmp_path)

    assert "the server has ended with -9" in killed.broken
    assert {error.status for error in killed.errors} == {"UNAVAILABLE"}
    assert left_alone.summary.broken == []
    assert exit_codes == [-9, 0]
