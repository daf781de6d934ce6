"""`gpu`: everything that is to be known of a GPU, by one command; what is done is not done again by the next one."""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from dragoman_service.runtimes.onnx.session import cuda_fault
from loadtests.benchmarks.systems import GPU_PRECISIONS, Device
from loadtests.benchmarks.work import some_of
from loadtests.generator.flags import parsed_by, within
from loadtests.report.report import circumstances, markdown, rounded, write_json

RESULTS_NAME: Final = "results.json"
REPORT_NAME: Final = "report.md"
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_NAMES: Final = ("prepare", "tests", "parity", "floor", "kernels", "bench", "load", "soak")
_END_TIMEOUT_S: Final = 15.0  # for what has been told to end
_NO_TEST: Final = 5  # exit code of pytest
_DESCRIPTION: Final = f"""\
Runs one stage after the other, each as commands that can be called by themselves, and writes what they print into
{REPORT_NAME}, with versions and device. A stage that was done by the same commands is not run again; one for which no
time is left waits for the next call. Figures are told and never judged: a stage fails only if a command does.

  prepare   lays out the weights that all systems get
  tests     the tests that need a GPU
  parity    BLEU and hypotheses on the device beside those of fp32 on the CPU; the same bits alone and in company?
  floor     the time of a step beside that of reading weights and caches once, at the bandwidth of a copy
  kernels   one layer of self-attention by each kernel that ONNX Runtime has for it, checked and timed
  bench     tokens/s beside CTranslate2 and Transformers in half precision, at batches of 1 to 512
  load      latencies of the server beside those of a server over CTranslate2
  soak      everything at once for five minutes: does anything leak, is anything lost?

exit codes: 0 every stage asked for is done, 1 one failed or is left, 2 called wrongly"""


class Stage(NamedTuple):
    """Commands, arguments of `python` each, that are run one after the other until one fails."""

    name: str
    commands: tuple[str, ...]
    most_s: float  # after which it is ended
    least_s: float = 10.0  # with less time left it is not begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a stage."""

    commands: Sequence[str]
    exit_code: int | None  # None: it was ended, as it took too long
    elapsed_s: float
    output: str

    @property
    def is_done(self) -> bool:
        """Whether it need not be run again."""
        return self.exit_code == 0

    @property
    def state(self) -> str:
        """In words."""
        if self.exit_code is None:
            return "ended, it took too long"
        return "done" if self.is_done else f"failed with {self.exit_code}"


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the command and its flags."""
    parser = add_command("gpu", help="check and measure everything on a GPU", description=_DESCRIPTION)
    add = parser.add_argument
    add("--gpu", choices=tuple(GPU_PRECISIONS), default="cuda", help="cpu: the CPU takes its place (cuda)")
    add("--mode", choices=("full", "short"), default="full", help="short: the model that ships, few sentences (full)")
    add("--minutes", type=within(0.1, 600), default=9.5, metavar="M", help="of this call, at most (9.5)")
    add("--stages", type=parsed_by(some_of(*_NAMES)), metavar="S,S", help="only these, even if they are done (all)")
    add("--data", type=lambda text: Path(text).resolve(), metavar="DIR", help="holds test sets (built-in sentences)")
    add("--output", type=lambda text: Path(text).resolve(), default="build/gpu", metavar="DIR", help="(build/gpu)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    device: Device = arguments.gpu
    if device == "cuda" and (fault := cuda_fault(0)):
        raise RuntimeError(f"{fault}; docs/operations/gpu.md says what is needed, and --gpu cpu runs all without it")
    facts = {**circumstances("peers"), "device": describe_device(device)}
    results, page = arguments.output / RESULTS_NAME, arguments.output / REPORT_NAME

    def keep(found: Mapping[str, Done | None]) -> None:  # after each stage: this call may be ended before the last
        write_json(results, {name: asdict(done) for name, done in found.items() if done})
        page.write_text(report(facts, found, device), encoding="utf-8")

    found = run_stages(
        stages(device, mode=arguments.mode, output=arguments.output, data=arguments.data),
        {name: Done(**fields) for name, fields in json.loads(results.read_text()).items()} if results.exists() else {},
        keep,
        budget_s=60 * arguments.minutes,
        again=arguments.stages,
        environment=environment(device),
    )
    keep(found)
    print(f"the report is {page}")
    wanted = arguments.stages or found
    return 0 if all((done := found[name]) and done.is_done for name in wanted) else 1


def stages(device: Device, *, mode: str, output: Path, data: Path | None) -> list[Stage]:
    """Return all stages, in order; the short ones are of the model that ships and take some minutes on two cores."""
    is_short, sets = mode == "short", [f"--data={data}"] if data else []
    model, batches, sentences, soak_s = (
        ("shipped", "1,4", 20, 120) if is_short else ("base", "1,8,32,64,128", 1000, 300)
    )
    lone = ["--cases=*-1", "--repetitions=1"] if is_short else ["--repetitions=3"]

    def peers(command: str, *flags: str) -> str:
        return shlex.join(["-m", "loadtests", "peers", *command.split(), f"--gpu={device}", *flags])

    def files(name: str) -> str:
        return f"--files={output / 'models' / name}"

    prepare = [peers(f"prepare --model={name}", f"--output={output}") for name in dict.fromkeys((model, "shipped"))]
    bench = [f"--models={model}", f"--mode={mode}", files(model), f"--output={output / 'bench'}", *lone, *sets]
    load = [f"--model={model}", files(model), "--mode=short", "--repetitions=1", f"--output={output / 'load'}", *sets]
    load += ["--settings=1x1,b64,w2"] if device == "cuda" else []
    served = output / "models" / "shipped" / "served"
    soak = [f"--model-dir={served}", f"--duration={soak_s}", f"--output={output / 'soak'}"]
    return [
        Stage("prepare", tuple(prepare), 240),
        Stage("tests", ("-m pytest -m gpu -q -rs tests/parity tests/unit/runtimes",), 120),
        Stage("parity", (peers("parity", files("shipped"), f"--sentences={sentences}", *sets),), 120),
        Stage("floor", (peers("floor", files(model), f"--batch-sizes={batches}"),), 120),
        Stage("kernels", (shlex.join(["-m", "loadtests", "peers", "kernels", f"--gpu={device}"]),), 60),
        Stage("bench", (peers("bench", *bench),), 180),
        Stage("load", (peers("load", *load),), 240),
        Stage("soak", (shlex.join(["-m", "loadtests", "stress", "soak", *soak]),), soak_s + 120, least_s=soak_s + 20),
    ]


def environment(device: Device) -> dict[str, str]:
    """Return the variables of every stage: the device, and where the CUDA libraries from Python packages lie.

    A program finds these libraries without ONNX Runtime's help only if the loader knew of them when it was started.
    """
    libraries = sorted(str(path) for root in sys.path for path in Path(root).glob("nvidia/*/lib") if path.is_dir())
    known = os.environ.get("LD_LIBRARY_PATH", "")
    found = {"LD_LIBRARY_PATH": ":".join(filter(None, [*dict.fromkeys(libraries), known]))} if libraries else {}
    return {**os.environ, "DRAGOMAN_RUNTIME__DEVICE": device, "PYTHONUNBUFFERED": "1", **found}


def run_stages(
    stages: Sequence[Stage],
    before: Mapping[str, Done],
    keep: Callable[[Mapping[str, Done | None]], None],
    *,
    budget_s: float,
    environment: Mapping[str, str],
    again: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Done | None]:
    """Run what was not done before by the same commands, or only the stages named; return what is known of all.

    That is also kept after each stage. None stands for a stage that was never run to its end or its limit.
    """
    until_s = clock() + budget_s
    known = dict[str, Done | None]()
    for stage in stages:
        done = before.get(stage.name)
        known[stage.name] = done if done and tuple(done.commands) == stage.commands else None
    for stage in stages:
        done = known[stage.name]
        if (stage.name not in again) if again else (done is not None and done.is_done):
            continue
        left_s = until_s - clock()
        if left_s < stage.least_s:
            print(f"{stage.name}: left for the next call, as it needs {stage.least_s:.0f} s", flush=True)
            continue
        print(f"{stage.name} ...", flush=True)
        done = known[stage.name] = _perform(stage, min(left_s, stage.most_s), environment, clock)
        print(f"{stage.name}: {done.state} after {done.elapsed_s:.0f} s", flush=True)
        keep(known)
    return known


def _perform(stage: Stage, limit_s: float, environment: Mapping[str, str], clock: Callable[[], float]) -> Done:
    """Run the commands of a stage in a group of processes that ends as a whole."""
    began_s, output = clock(), ""
    exit_code: int | None = 0
    for command in stage.commands:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
            [sys.executable, *shlex.split(command)],
            cwd=_CHECKOUT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=max(0.0, limit_s - (clock() - began_s)))
        except subprocess.TimeoutExpired:
            said = _ended(process)
            return Done(commands=stage.commands, exit_code=None, elapsed_s=clock() - began_s, output=f"{output}{said}")
        output, exit_code = f"{output}{said}", process.returncode
        if exit_code not in (0, _NO_TEST):
            break
    code = 0 if exit_code == _NO_TEST else exit_code
    return Done(commands=stage.commands, exit_code=code, elapsed_s=clock() - began_s, output=output)


def _ended(process: subprocess.Popen[str]) -> str:
    """End a group of processes; return what it had said."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_END_TIMEOUT_S)[0]
    return ""


def describe_device(device: Device) -> str:
    """Return what NVIDIA's tool says of the GPU, or that there is none."""
    tool = shutil.which("nvidia-smi")
    if device == "cpu" or tool is None:
        return "no GPU" if device == "cpu" else "no nvidia-smi"
    return subprocess.run([tool], capture_output=True, text=True, check=False).stdout  # noqa: S603


def report(facts: Mapping[str, Any], found: Mapping[str, Done | None], device: Device) -> str:
    """Return the report in Markdown: where it was run, what became of each stage, and what its commands printed."""
    machine = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    warning = "**The CPU took the place of the GPU: nothing here is a figure of a GPU.**\n\n" if device == "cpu" else ""
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
