from pathlib import Path

import pytest

from loadtests.chaos.__main__ import main
from loadtests.chaos.faults.clock import find_compiler
from loadtests.chaos.plan import all_faults, chosen
from loadtests.chaos.scale import FULL, SCALES

FAULTS = all_faults(FULL, output=Path("build"), compiler=None)


@pytest.mark.parametrize("mode", SCALES)
def test_every_mode_has_every_fault(mode: str) -> None:
    names = [fault.name for fault in all_faults(SCALES[mode], output=Path("build"), compiler=None)]

    assert names == [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


def test_everybody_hit_by_a_hang_may_wait_as_long_as_it_lasts() -> None:
    (fault,) = chosen(FAULTS, ["stalled-step"])

    assert fault.limits.max_bystander_s > FULL.hang_s


def test_faults_are_done_in_the_order_of_the_plan_whatever_the_order_asked_for() -> None:
    assert [fault.name for fault in chosen(FAULTS, ["sigstop", "step-raises"])] == ["step-raises", "sigstop"]
    assert chosen(FAULTS, []) == FAULTS


def test_an_unknown_fault_is_refused_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--only", "sigstpo"])

    assert caught.value.code == 2
    assert "argument --only: there is no fault 'sigstpo'; did you mean sigstop?" in capsys.readouterr().err


def test_the_list_has_a_line_for_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0

    expected = all_faults(FULL, output=Path("build"), compiler=find_compiler())
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [fault.name for fault in expected]


def test_without_a_compiler_only_the_clock_is_left_out() -> None:
    with_compiler = all_faults(FULL, output=Path("build"), compiler="cc")

    assert [fault.name for fault in with_compiler if fault not in FAULTS] == ["clock-jump"]
