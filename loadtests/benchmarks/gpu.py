"""`gpu`: checks and measures a GPU with one command; finished stages are not repeated by the next one."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dragoman_service.runtimes.onnx.session import cuda_fault
from loadtests.benchmarks.systems import GPU_PRECISIONS, Device
from loadtests.generator.flags import several, within
from loadtests.generator.server import CHECKOUT
from loadtests.report.report import environment, markdown, rounded, write_json

RESULTS_NAME: Final = "results.json"
REPORT_NAME: Final = "report.md"
_NAMES: Final = {name: name for name in ("prepare", "tests", "bench", "load", "soak")}
_END_TIMEOUT_S: Final = 15
_OUT_OF_TIME: Final = (124, -9)  # exit codes of `timeout`
_NO_TESTS: Final = 5  # exit code of pytest
_DESCRIPTION: Final = f"""\
Runs one stage after the other, each as commands that also work alone, and writes their output to {REPORT_NAME}, with
versions and device. A stage that was finished with the same commands is not repeated; a stage without enough time is
left for the next call. Figures are reported, not judged: a stage fails only if a command does.

  prepare   writes the weights for all systems
  tests     the tests that need a GPU, among them parity with the CPU
  bench     tokens/s compared with CTranslate2 and Transformers in half precision, at batches of 1 to 512
  load      latencies of the server compared with a server over CTranslate2
  soak      mixed traffic for five minutes; checks for leaks and losses

exit codes: 0 all stages finished, 1 a stage failed or is left, 2 invalid usage"""


class Stage(NamedTuple):
    """Arguments of `python`, run one after the other until one fails."""

    name: str
    commands: tuple[str, ...]
    max_s: float  # then it is ended
    min_s: float = 10.0  # it does not begin with less time left


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a stage."""

    commands: Sequence[str]
    exit_code: int | None  # None: ended after its time
    elapsed_s: float
    output: str

    @property
    def state(self) -> str:
        """State for the report."""
        if self.exit_code is None:
            return "ended, out of time"
        return f"failed with {self.exit_code}" if self.exit_code else "done"


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command and its flags."""
    parser = add_command("gpu", help="check and measure a GPU", description=_DESCRIPTION)
    add = parser.add_argument
    add("--gpu", choices=tuple(GPU_PRECISIONS), default="cuda", help="cpu: without a GPU (cuda)")
    add("--mode", choices=("full", "short"), default="full", help="short: the bundled model, few sentences (full)")
    add("--minutes", type=within(0.1, 600), default=9.5, metavar="M", help="maximum duration of this call (9.5)")
    add(
        "--stages",
        type=several(_NAMES),
        metavar="S,S",
        help="only these, even if finished (all)",
    )
    add("--data", type=lambda text: Path(text).resolve(), metavar="DIR", help="test sets (built-in sentences)")
    add("--output", type=lambda text: Path(text).resolve(), default="build/gpu", metavar="DIR", help="(build/gpu)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    device: Device = arguments.gpu
    if device == "cuda" and (fault := cuda_fault(0)):
        raise RuntimeError(f"{fault}; see docs/operations/gpu.md; --gpu cpu runs without a GPU")
    facts = {**environment("benchmarks"), "device": describe_device(device)}
    results, page = arguments.output / RESULTS_NAME, arguments.output / REPORT_NAME

    def save(found: Mapping[str, Done | None]) -> None:  # after each stage, in case this call is ended
        write_json(results, {name: asdict(done) for name, done in found.items() if done})
        page.write_text(report(facts, found, device), encoding="utf-8")

    found = run_stages(
        stages(device, mode=arguments.mode, output=arguments.output, data=arguments.data),
        {name: Done(**fields) for name, fields in json.loads(results.read_text()).items()} if results.exists() else {},
        save,
        budget_s=60 * arguments.minutes,
        again=arguments.stages,
        variables=environment_of(device),
    )
    save(found)
    print(f"the report is {page}")
    return 0 if all((done := found[name]) and done.exit_code == 0 for name in arguments.stages or found) else 1


def stages(device: Device, *, mode: str, output: Path, data: Path | None) -> list[Stage]:
    """Return all stages in order; the short ones take some minutes on two cores."""
    is_short, sets = mode == "short", [f"--data={data}"] if data else []
    model, soak_s = ("shipped", 120) if is_short else ("base", 300)

    def benchmark(command: str, *flags: str) -> str:
        return shlex.join(["-m", "loadtests", "benchmarks", *command.split(), f"--gpu={device}", *flags])

    files = f"--files={output / 'models' / model}"
    prepare = [benchmark(f"prepare --model={name}", f"--output={output}") for name in dict.fromkeys((model, "shipped"))]
    bench = [f"--models={model}", f"--mode={mode}", files, f"--output={output / 'bench'}", *sets]
    bench += ["--cases=*-1", "--repetitions=1"] if is_short else ["--repetitions=3"]
    load = [f"--model={model}", files, "--mode=short", "--repetitions=1", f"--output={output / 'load'}", *sets]
    load += ["--settings=1x1,b64,w2"] if device == "cuda" else []
    served = output / "models" / "shipped" / "served"
    soak = [f"--model-dir={served}", f"--duration={soak_s}", f"--output={output / 'soak'}"]
    return [
        Stage("prepare", tuple(prepare), 240),
        Stage("tests", ("-m pytest -m gpu -q -rs tests/parity tests/unit/runtimes",), 120),
        Stage("bench", (benchmark("bench", *bench),), 180),
        Stage("load", (benchmark("load", *load),), 240),
        Stage("soak", (shlex.join(["-m", "loadtests", "stress", "soak", *soak]),), soak_s + 120, min_s=soak_s + 20),
    ]


def environment_of(device: Device) -> dict[str, str]:
    """Return the variables of all stages: the device, and the CUDA libraries from Python packages for the loader."""
    libraries = sorted(str(path) for root in sys.path for path in Path(root).glob("nvidia/*/lib") if path.is_dir())
    known = os.environ.get("LD_LIBRARY_PATH", "")
    found = {"LD_LIBRARY_PATH": ":".join(filter(None, [*dict.fromkeys(libraries), known]))} if libraries else {}
    return {**os.environ, "DRAGOMAN_RUNTIME__DEVICE": device, "PYTHONUNBUFFERED": "1", **found}


def run_stages(
    stages: Sequence[Stage],
    before: Mapping[str, Done],
    save: Callable[[Mapping[str, Done | None]], None],
    *,
    budget_s: float,
    variables: Mapping[str, str],
    again: Sequence[str] | None = None,
) -> dict[str, Done | None]:
    """Run the stages that were not finished with the same commands, or only the named ones; return all results.

    `save` is called after each stage. None stands for a stage without a result.
    """
    until_s = time.monotonic() + budget_s
    known = dict[str, Done | None]()
    for stage in stages:
        done = before.get(stage.name)
        known[stage.name] = done if done and tuple(done.commands) == stage.commands else None
    for stage in stages:
        done = known[stage.name]
        if (stage.name not in again) if again else (done is not None and done.exit_code == 0):
            continue
        left_s = until_s - time.monotonic()
        if left_s < stage.min_s:
            print(f"{stage.name}: left for the next call, needs {stage.min_s:.0f} s", flush=True)
            continue
        print(f"{stage.name} ...", flush=True)
        done = known[stage.name] = _perform(stage, min(left_s, stage.max_s), variables)
        print(f"{stage.name}: {done.state} after {done.elapsed_s:.0f} s", flush=True)
        save(known)
    return known


def _perform(stage: Stage, limit_s: float, variables: Mapping[str, str]) -> Done:
    """Run the commands of a stage; `timeout` ends each with all processes that it has started."""
    began_s, output, exit_code = time.monotonic(), "", 0
    for command in stage.commands:
        left_s = max(0.1, limit_s - (time.monotonic() - began_s))
        done = subprocess.run(  # noqa: S603 - our own interpreter and modules
            ["timeout", f"--kill-after={_END_TIMEOUT_S}", str(left_s), sys.executable, *shlex.split(command)],  # noqa: S607
            cwd=CHECKOUT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        output += done.stdout
        exit_code = 0 if done.returncode == _NO_TESTS else done.returncode
        if exit_code:
            break
    return Done(
        commands=stage.commands,
        exit_code=None if exit_code in _OUT_OF_TIME else exit_code,
        elapsed_s=time.monotonic() - began_s,
        output=output,
    )


def describe_device(device: Device) -> str:
    """Return the output of nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if device == "cpu" or tool is None:
        return "no GPU" if device == "cpu" else "no nvidia-smi"
    return subprocess.run([tool], capture_output=True, text=True, check=False).stdout  # noqa: S603


def report(facts: Mapping[str, Any], found: Mapping[str, Done | None], device: Device) -> str:
    """Return the report as Markdown: machine, state of each stage, output of its commands."""
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    warning = "**Measured without a GPU: these are not figures of a GPU.**\n\n" if device == "cpu" else ""
    rows = [
        (name, done.state if done else "left", rounded(done.elapsed_s if done else None, 0))
        for name, done in found.items()
    ]
    head = (
        f"# The engine on {device}\n\n{warning}{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, "
        f"{versions}; {machine['date']}\n\n    {facts['command']}\n\n{_fenced(facts['device'])}"
    )
    parts = [head, markdown(("stage", "state", "seconds"), rows)]
    for name, done in found.items():
        if done:
            commands = "".join(f"    python {command}\n" for command in done.commands)
            parts.append(f"## {name}\n\n{commands}\n{_fenced(done.output)}")
    return "\n".join(parts)


def _fenced(text: str) -> str:
    return f"```text\n{text.strip().replace('```', '` ` `')}\n```\n"
