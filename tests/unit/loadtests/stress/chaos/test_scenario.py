from pathlib import Path

import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.chaos.fault import SCALES
from loadtests.stress.chaos.faults.machine import find_compiler
from loadtests.stress.chaos.run import Run
from loadtests.stress.chaos.scenario import all_faults, chosen, summarize
from tests.unit.loadtests.stress.chaos.test_fault import result

FULL = SCALES["full"]
FAULTS = all_faults(FULL, output=Path("build"), compiler=None)


@pytest.mark.parametrize("mode", SCALES)
def test_every_mode_has_every_fault(mode: str) -> None:
    names = [fault.name for fault in all_faults(SCALES[mode], output=Path("build"), compiler="cc")]

    assert len(set(names)) == len(names) == 19
    assert names[:-1] == [fault.name for fault in FAULTS]


def test_all_callers_hit_by_a_hang_may_wait_as_long_as_it_lasts() -> None:
    (fault,) = chosen(FAULTS, ["stalled-step"])

    assert fault.limits.max_bystander_s > FULL.hang_s


def test_faults_are_injected_in_the_order_of_the_plan_whatever_the_order_asked_for() -> None:
    assert [fault.name for fault in chosen(FAULTS, ["sigstop", "step-raises"])] == ["step-raises", "sigstop"]
    assert chosen(FAULTS, []) == FAULTS


def test_an_unknown_fault_is_rejected_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["chaos", "--only", "sigstpo"])

    assert caught.value.code == 2
    assert "argument --only: there is no fault 'sigstpo'; did you mean sigstop?" in capsys.readouterr().err


def test_the_list_has_a_line_for_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--list"]) == 0

    expected = all_faults(FULL, output=Path("build"), compiler=find_compiler())
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [fault.name for fault in expected]


def test_without_a_compiler_only_the_clock_is_left_out() -> None:
    with_compiler = {fault.name for fault in all_faults(FULL, output=Path("build"), compiler="cc")}

    assert with_compiler - {fault.name for fault in FAULTS} == {"clock-jump"}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Run(results=[result(), result()], exit_codes=[0]), "chaos faults=2 held=2 verdict=held"),
        (Run(results=[result(), result(recovered_s=None)], exit_codes=[0]), "chaos faults=2 held=1 verdict=broken"),
        (Run(results=[result()], exit_codes=[0, -7]), "chaos faults=1 held=1 verdict=broken"),
        (Run(results=[], exit_codes=[]), "chaos faults=0 held=0 verdict=broken"),
    ],
)
def test_the_last_line_is_the_verdict(run: Run, expected: str) -> None:
    assert summarize(run).line == expected
