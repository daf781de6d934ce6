import pytest

from loadtests.stress.__main__ import main
from loadtests.stress.chaos.fault import Result
from loadtests.stress.chaos.machine import find_compiler
from loadtests.stress.chaos.scenario import all_faults, chosen, summarize
from tests.unit.loadtests.stress.chaos.test_fault import result

FAULTS = all_faults(has_compiler=True)


def test_every_fault_has_its_name_an_amount_that_grows_and_a_summary() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 19
    assert all(fault.summary for fault in FAULTS)
    assert all(short <= full for fault in FAULTS for short, full in (fault.amounts, fault.seconds))


def test_a_fault_with_a_server_of_its_own_comes_last() -> None:
    assert [fault.name for fault in FAULTS if fault.environment] == [FAULTS[-1].name]


def test_all_callers_hit_by_a_hang_may_wait_as_long_as_it_lasts() -> None:
    (fault,) = chosen(FAULTS, ["stalled-step"])

    assert all(fault.limits(hang_s).max_bystander_s > hang_s for hang_s in fault.seconds)


def test_faults_are_injected_in_the_order_of_the_plan_whatever_the_order_asked_for() -> None:
    assert [fault.name for fault in chosen(FAULTS, ["sigstop", "step-raises"])] == ["step-raises", "sigstop"]
    assert chosen(FAULTS, []) == FAULTS


def test_the_list_has_a_line_for_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--list"]) == 0

    expected = all_faults(has_compiler=find_compiler() is not None)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [fault.name for fault in expected]


def test_without_a_compiler_only_the_clock_is_left_out() -> None:
    without = {fault.name for fault in all_faults(has_compiler=False)}

    assert {fault.name for fault in FAULTS} - without == {"clock-jump"}


@pytest.mark.parametrize(
    ("results", "exit_codes", "expected"),
    [
        ([result(), result()], [0], "chaos faults=2 held=2 verdict=held"),
        ([result(), result(recovered_s=None)], [0], "chaos faults=2 held=1 verdict=broken"),
        ([result()], [0, -7], "chaos faults=1 held=1 verdict=broken"),
        ([], [], "chaos faults=0 held=0 verdict=broken"),
    ],
)
def test_the_last_line_is_the_verdict(results: list[Result], exit_codes: list[int], expected: str) -> None:
    assert summarize(results, exit_codes).line == expected
