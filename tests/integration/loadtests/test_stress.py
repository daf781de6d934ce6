"""Every stress scenario for some seconds."""

import json
import re
from pathlib import Path

import pytest

from loadtests.__main__ import main
from loadtests.scenarios.bad_inputs.kinds import KINDS
from loadtests.scenarios.chaos.fault import LIMITS

Capture = pytest.CaptureFixture[str]
TIMES = [name for name in LIMITS if name.endswith("_s")]
DEPENDENT_ON_MACHINE_AND_TIME = {  # checks that may fail on a busy machine or in a short run
    "all call kinds covered", "memory does not grow", "memory growth of the server", "every fault passes its checks",
    "translations of control traffic at p99", "probes of the event loop at p99",
    *TIMES,
}  # fmt: skip
FAULTS = "engine-fails-late,engine-fails,log-disk-full"
COUNT = 2 * len(KINDS)
ANSWERED = rf"bad_inputs inputs={COUNT} kinds={len(KINDS)} ok=[1-9]\d* refused=[1-9].* internal=0 hangs=0 lost=0 "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "output"),
    [
        (["soak", "--duration", "12", "--callers", "8"], r"phase 1 of 1: [^$]*\nsoak .* swaps=[1-9]"),
        (["soak", "--traffic", "cancellations", "--duration", "12"], r"phase 1 of 1: [^$]*\nsoak .* swaps=[1-9]"),
        (["bad-inputs", "--part", "inputs", "--mode", "short", "--count", str(COUNT)], ANSWERED),
        (["chaos", "--mode", "short", "--only", FAULTS], r"fault=log-disk-full [^$]*\nchaos faults=3 "),
    ],
)
def test_scenario_passes_on_a_healthy_server(
    flags: list[str], output: str, tiny_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = [] if flags[0] == "chaos" else ["--model-dir", str(tiny_model)]  # chaos needs the native engine
    exit_code = main(["stress", *flags, *model, "--output", str(tmp_path)])

    out, progress = capsys.readouterr()
    assert re.search(output, f"{progress}\n{out}")
    report = json.loads((tmp_path / f"{flags[0].replace('-', '_')}.json").read_text(encoding="utf-8"))
    checks = [*report["checks"], *(check for one in report.get("faults", ()) for check in one.get("checks", ()))]
    broken = [f"{one['name']}: {sentence}" for one in checks for sentence in one["failures"]]
    unexplained = [one for one in broken if one.partition(": ")[0] not in DEPENDENT_ON_MACHINE_AND_TIME]
    assert [one for one in unexplained if "NUL" not in one] == []  # random weights may generate that byte
    assert exit_code == bool(broken)


@pytest.mark.slow
def test_attacks_are_measured(tiny_model: Path, tmp_path: Path, capsys: Capture) -> None:
    names = "form-of-own-origin,chunk-extension-megabyte,slow-heads,dots-plain"
    flags = ["bad-inputs", "--only", names, "--mode", "short"]

    main(["stress", *flags, "--model-dir", str(tiny_model), "--output", str(tmp_path)])

    assert "\nattacks attacks=4 " in capsys.readouterr().out
    attacks = {
        one["name"]: one for one in json.loads((tmp_path / "attacks.json").read_text(encoding="utf-8"))["attacks"]
    }
    assert set(attacks) == set(names.split(","))
    assert attacks["form-of-own-origin"]["statuses"] == {"200": 1}
    assert attacks["dots-plain"]["works"][0]["size"] == 1250
    assert all(one["stall_ms"] >= one["p99_ms"] > 0 for one in attacks.values())
    assert sum(attacks["slow-heads"]["statuses"].values()) == 200
