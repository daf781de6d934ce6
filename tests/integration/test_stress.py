"""Every stress scenario, for seconds and with a model that says nonsense, against servers as processes."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from loadtests.__main__ import main as run
from loadtests.scenarios.bad_inputs.kinds import KINDS
from loadtests.scenarios.chaos.fault import LIMITS, Stage, fault
from loadtests.scenarios.chaos.scenario import run_faults
from loadtests.scenarios.stress import main

Capture = pytest.CaptureFixture[str]
TIMES = [name for name in LIMITS if name.endswith("_s")]
OF_MACHINES_AND_LONG_RUNS = {  # promises that a busy machine or a short run may break: the scenarios judge them
    "everything is met", "memory does not grow", "memory of the server grows", "every fault keeps its promises",
    "translations of bystanders at p99", "calls that need the event loop only at p99", "work grows as the text does",
    *TIMES,
}  # fmt: skip
FAULTS = "step-raises,onnx-runtime,log-disk-full"
CANCELLING = ["cancellations", "--calls", "600", "--warm-up", "50", "--callers", "16", "--methods"]
CANCELLED = r"cancellations calls=650 .* cancelled=[1-9]\d* answered=[1-9]\d* left=0 "
COUNT = 2 * len(KINDS)
ANSWERED = rf"bad_inputs inputs={COUNT} kinds={len(KINDS)} ok=[1-9]\d* refused=[1-9].* internal=0 hangs=0 lost=0 "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["soak", "--duration", "12", "--callers", "8"], r" of 12 s: rss_mb=[^$]*\nsoak .* swaps=[1-9]"),
        *(([*CANCELLING, method], CANCELLED) for method in ("Translate", "TranslateDocument", "TranslateStream")),
        (["bad-inputs", "--part", "inputs", "--mode", "short", "--count", str(COUNT)], ANSWERED),
        (["chaos", "--mode", "short", "--only", FAULTS], r"fault=log-disk-full [^$]*\nchaos faults=3 "),
    ],
)
def test_a_scenario_finds_nothing_wrong_with_a_server_to_which_nothing_is_wrong(
    flags: list[str], said: str, tiny_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    exit_code = main([*flags, "--model-dir", str(tiny_model), "--output", str(tmp_path)])

    out, progress = capsys.readouterr()
    assert re.search(said, f"{progress}\n{out}")
    told = json.loads((tmp_path / f"{flags[0].replace('-', '_')}.json").read_text(encoding="utf-8"))
    promises = [*told["promises"], *(promise for one in told.get("faults", ()) for promise in one.get("promises", ()))]
    broken = [f"{one['name']}: {sentence}" for one in promises for sentence in one["broken"]]
    unexplained = [one for one in broken if one.partition(": ")[0] not in OF_MACHINES_AND_LONG_RUNS]
    assert [one for one in unexplained if "NUL" not in one] == []  # random weights may choose that byte
    assert exit_code == bool(broken)


@pytest.mark.slow
def test_attacks_are_watched_and_their_growth_is_measured(tiny_model: Path, tmp_path: Path, capsys: Capture) -> None:
    names = "form-of-own-origin,chunk-extension-megabyte,slow-heads,dots-plain"
    flags = ["bad-inputs", "--only", names, "--mode", "short"]

    main([*flags, "--model-dir", str(tiny_model), "--output", str(tmp_path)])

    assert "\nattacks attacks=4 " in capsys.readouterr().out
    told = {one["name"]: one for one in json.loads((tmp_path / "attacks.json").read_text(encoding="utf-8"))["attacks"]}
    assert list(told) == ["chunk-extension-megabyte", "slow-heads", "form-of-own-origin", "dots-plain"]
    assert told["form-of-own-origin"]["statuses"] == {"200": 1}
    assert told["dots-plain"]["works"][0]["size"] == 1250
    assert all(one["stall_ms"] >= one["p99_ms"] > 0 for one in told.values())
    assert sum(told["slow-heads"]["statuses"].values()) == 200


@pytest.mark.slow
def test_one_bad_input_is_shown_and_sent_again(tiny_model: Path, tmp_path: Path, capsys: Capture) -> None:
    flags = ["bad-inputs", "--only", "bad-utf8", "--index", "3"]
    assert main([*flags, "--model-dir", str(tiny_model), "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "expected: INVALID_ARGUMENT" in printed
    assert "answered: INVALID_ARGUMENT after" in printed


@pytest.mark.slow
def test_a_server_that_ends_is_told_and_the_next_fault_gets_another(tiny_model: Path, tmp_path: Path) -> None:
    any_time = dict.fromkeys(TIMES, 60.0)

    @fault(limits=any_time)
    def kill(stage: Stage) -> None:
        os.kill(stage.server.process.pid, signal.SIGKILL)
        stage.bystanders.wait_for_answers()

    @fault(metric="dragoman_requests_total", limits=any_time)
    def leave_alone(stage: Stage) -> None:
        stage.require_ok("nothing was done", [stage.ask()])

    (killed, left_alone), exit_codes = run_faults([kill, leave_alone], "short", tmp_path, tiny_model, seed=1)

    assert "the server has ended with -9" in killed.broken
    assert {error.status for error in killed.errors} == {"UNAVAILABLE"}
    assert left_alone.summary.broken == []
    assert exit_codes == [-9, 0]


@pytest.mark.slow
def test_transports_of_a_server_are_compared(tiny_model: Path, tmp_path: Path, capsys: Capture) -> None:
    flags = ["transports", "--mode", "short", "--model-dir", str(tiny_model), "--output", str(tmp_path)]

    assert run(flags) == 0

    assert "\ntransports health_per_s=" in capsys.readouterr().out
    assert {"transports.json", "calls.jsonl", "server.log"} <= {path.name for path in tmp_path.iterdir()}
