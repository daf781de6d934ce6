"""The kit with commands that cost nothing, and the arithmetic of its floor."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dragoman_service.bundle.architecture import Architecture
from loadtests.__main__ import main as loadtests_main
from loadtests.benchmarks import gpu
from loadtests.benchmarks.__main__ import main
from loadtests.benchmarks.device import step_bytes
from loadtests.benchmarks.gpu import Done, Stage
from loadtests.benchmarks.systems import Device


def _python(program: str) -> str:
    return shlex.join(["-c", program])


_COUNT = "from pathlib import Path; p = Path({path!r}); p.write_text(p.read_text() + '.' if p.exists() else '.')"
Runs = Callable[..., dict[str, Done | None]]


@pytest.fixture
def run() -> Runs:
    kept = dict[str, Done]()

    def keep(found: Mapping[str, Done | None]) -> None:
        kept.clear()
        kept.update({name: done for name, done in found.items() if done})

    def run_stages(*stages: Stage, budget_s: float = 60.0, **more: object) -> dict[str, Done | None]:
        found = gpu.run_stages(stages, kept, keep, budget_s=budget_s, environment={"HOME": "."}, **more)  # type: ignore[arg-type]
        assert {name: done for name, done in found.items() if done} == kept
        return found

    return run_stages


def test_what_is_done_is_not_run_again_unless_it_is_named_or_its_commands_changed(run: Runs, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    program = _COUNT.format(path=str(counted))
    stage = Stage("count", (_python(program), _python("print('second')")), 60)

    for more in ({}, {}, {"again": ["count"]}):
        done = run(stage, **more)["count"]
        assert done is not None
        assert (done.state, done.output) == ("done", "second\n")
    assert counted.read_text() == ".."
    run(Stage("count", (_python(f"{program}; 'changed'"),), 60))
    assert counted.read_text() == "..."


def test_a_stage_that_fails_stops_no_other_and_is_run_again(run: Runs, tmp_path: Path) -> None:
    program = _COUNT.format(path=str(tmp_path / "counted"))
    failing = Stage("bad", (_python(f"{program}; print('why'); exit(3)"), _python("1 / 0")), 60)
    good = Stage("good", (_python("print('well')"),), 60)

    for _ in range(2):
        found = run(failing, good)
    bad = found["bad"]
    assert bad is not None
    assert (bad.state, bad.output) == ("failed with 3", "why\n")
    assert found["good"] is not None
    assert found["good"].is_done
    assert (tmp_path / "counted").read_text() == ".."


def test_a_stage_without_a_test_is_done(run: Runs) -> None:
    done = run(Stage("tests", (_python("print('no tests ran'); exit(5)"),), 60))["tests"]

    assert done is not None
    assert done.is_done


def test_a_stage_that_takes_too_long_is_ended_with_all_it_started_and_told(run: Runs) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    program = f"import os; r, w = os.pipe(); os.dup2(r, 0); {child}"

    done = run(Stage("endless", (_python(program),), 1.0))["endless"]

    assert done is not None
    assert done.state == "ended, it took too long"
    assert not done.is_done


def test_a_stage_that_needs_more_time_than_is_left_waits_for_the_next_call(
    run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage("soak", (_python("1 / 0"),), 400, least_s=320)

    assert run(stage, budget_s=300) == {"soak": None}
    assert capsys.readouterr().out == "soak: left for the next call, as it needs 320 s\n"


def test_the_report_has_versions_commands_and_raw_output_and_says_that_the_cpu_stood_in() -> None:
    machine = {"cpu": "a CPU", "cores": 2, "python": "3.11", "date": "today"}
    facts = {
        "machine": {**machine, "versions": {"numpy": "2.4", "torch": None}},
        "command": "python -m x",
        "device": "no GPU",
    }
    floor = Done(commands=["-m y --z"], exit_code=0, elapsed_s=3.4, output="floor ```1\n")

    text = gpu.report(facts, {"floor": floor, "soak": None}, "cpu")

    assert "**The CPU took the place of the GPU: nothing here is a figure of a GPU.**" in text
    assert "a CPU, 2 cores; Python 3.11, numpy 2.4; today" in text
    assert "| floor | done | 3 |\n| soak | left | none |\n" in text
    assert "## floor\n\n    python -m y --z\n\n```text\nfloor ` ` `1\n```\n" in text
    assert "## soak" not in text
    assert "took the place" not in gpu.report(facts, {}, "cuda")


@pytest.mark.parametrize("mode", ["full", "short"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_stage_is_commands_that_there_are(device: Device, mode: str, tmp_path: Path) -> None:
    found = gpu.stages(device, mode=mode, output=tmp_path, data=tmp_path)

    assert [stage.name for stage in found] == [
        *("prepare", "tests", "parity", "floor", "kernels", "bench", "load", "soak")
    ]
    for command in (command for stage in found for command in stage.commands):
        option, module, *flags = shlex.split(command)
        assert option == "-m"
        if module == "loadtests":
            with pytest.raises(SystemExit) as caught:
                loadtests_main([*flags, "--help"])  # which is looked at after all that is wrong before it
            assert caught.value.code == 0


def test_cuda_libraries_of_python_packages_are_found_by_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = [tmp_path / "nvidia" / name / "lib" for name in ("cu13", "cublas")]
    for path in libraries:
        path.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")

    found = gpu.environment("cuda")

    assert set(map(str, libraries)) | {"/opt/lib"} <= set(found["LD_LIBRARY_PATH"].split(":"))
    assert found["DRAGOMAN_RUNTIME__DEVICE"] == "cuda"


def test_without_a_gpu_the_kit_says_what_to_do_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "cuda_fault", lambda index: f"GPU {index} is out of order")

    assert main(["gpu", f"--output={tmp_path}"]) == 1

    said = capsys.readouterr().err
    assert "GPU 0 is out of order; docs/operations/gpu.md says what is needed, and --gpu cpu" in said
    assert list(tmp_path.iterdir()) == []


def test_the_kit_exits_with_1_while_a_stage_it_was_asked_for_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [Stage(name, (_python(f"exit({code})"),), 60) for name, code in _CODES.items()]
    monkeypatch.setattr(gpu, "stages", lambda *_, **__: stages)
    flags = ["gpu", "--gpu=cpu", f"--output={tmp_path}"]

    assert [main([*flags, "--stages=parity"]), main([*flags, "--stages=floor"]), main(flags)] == [0, 1, 1]
    assert json.loads((tmp_path / gpu.RESULTS_NAME).read_text()).keys() == _CODES.keys()
    assert "| floor | failed with 1 |" in (tmp_path / gpu.REPORT_NAME).read_text()


_CODES = {"parity": 0, "floor": 1}


def test_a_step_reads_the_weights_of_the_decoder_once_and_the_caches_of_each_segment() -> None:
    shape = {"num_encoder_layers": 6, "num_decoder_layers": 6, "norm": "post", "num_heads": 8}
    base = Architecture.model_validate({"vocabulary_size": 32_000, "d_model": 512, "ffn_size": 2048, **shape})

    weights, caches = step_bytes(base, 3, item_bytes=2, beam_size=4, source_tokens=24, target_tokens=16)

    assert weights == 2 * (6 * (6 * 512 * 512 + 2 * 512 * 2048) + 32_000 * 512)
    assert caches == 2 * 3 * 6 * 2 * 512 * (24 + 4 * 16)
