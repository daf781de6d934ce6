import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman import __main__ as command
from dragoman_service import __main__ as service_program


def test_bare_command_and_help_list_the_commands_whose_modules_are_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(arguments: list[str]) -> set[str]:
        assert command.main(arguments) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("usage: dragoman COMMAND")
        return set(re.findall(r"^  ([\w-]+)", printed, re.MULTILINE)) & set(command.COMMANDS)

    absent = {"onnxruntime", "pydantic", "grpc_health", "torch", "loadtests"}
    assert listed([]) == set(command.COMMANDS)
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in absent else object())
    assert listed(["--help"]) == {"translate", "models"}


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0

    assert capsys.readouterr().out == f"dragoman {importlib.metadata.version('dragoman')}\n"


def test_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["translte"]) == 2

    assert "'translte'" in capsys.readouterr().err


def test_every_command_of_the_server_is_offered() -> None:
    programs = ("dragoman_service", "dragoman.cli")
    offered = [name for name, each in command.COMMANDS.items() if each.program in programs]

    assert sorted(offered) == sorted(service_program.COMMANDS)


def test_server_gets_the_command_and_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["keys", "new", "--help"])

    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: dragoman keys new")


@pytest.mark.parametrize("program", ["dragoman_export", "loadtests"])
def test_other_programs_get_the_words_after_the_command(program: str, tmp_path: Path) -> None:
    name = next(name for name, each in command.COMMANDS.items() if each.program == program)
    _program(tmp_path, program, "def main(argv=None):\n    print(*argv)\n    return 3\n")

    finished = _run(name, "--flag", "value", path=tmp_path)

    assert (finished.stdout, finished.returncode) == ("--flag value\n", 3)


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (("serve",), "onnxruntime", "serve"),
        (("export", "train"), "torch", "train,serve"),
        (("export", "convert"), "onnx_ir", "convert"),
    ],
)
def test_missing_dependency_is_wrong_usage_with_the_command_that_installs_it(
    words: tuple[str, ...], missing: str, extra: str, tmp_path: Path
) -> None:
    _program(tmp_path, missing, "", f"raise ModuleNotFoundError('missing', name={missing!r})\n")

    finished = _run(*words, path=tmp_path)

    assert finished.returncode == 2
    assert repr(missing) in finished.stderr
    assert f"{sys.executable} -m pip install 'dragoman[{extra}]'" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_missing_module_of_the_project_is_a_traceback(tmp_path: Path) -> None:
    _program(tmp_path, "loadtests", "import dragoman_service.no_such_module\n")

    finished = _run("loadtest", path=tmp_path)

    assert "Traceback" in finished.stderr


def test_interrupt_exits_with_130_and_one_line(tmp_path: Path) -> None:
    main = "import time\ndef main(argv):\n    print('began', flush=True)\n    time.sleep(60)\n"
    _program(tmp_path, "loadtests", main)
    # Shells make commands in the background ignore Ctrl-C, and child processes inherit that.
    restore = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{restore}; runpy.run_module('dragoman', run_name='__main__')"

    with subprocess.Popen(
        [sys.executable, "-c", program, "loadtest"], **_surroundings(tmp_path), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=30)

    assert (printed, process.returncode) == ("dragoman: interrupted\n", 130)


@pytest.mark.parametrize("end", ["", "    raise SystemExit(0)\n"])
def test_end_of_the_reader_of_the_output_is_silent(end: str, tmp_path: Path) -> None:
    _program(tmp_path, "loadtests", f"def main(argv):\n    print('text')\n{end}")
    command = [sys.executable, "-m", "dragoman", "loadtest"]

    with subprocess.Popen(command, **_surroundings(tmp_path), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""

    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [("--version",), ("serve", "--help"), ("keys", "new", "shop"), ("doctor",)])
def test_output_that_cannot_be_written_is_one_message(words: tuple[str, ...], tmp_path: Path) -> None:
    options = _surroundings(tmp_path)
    options["env"].pop("PYTHONUNBUFFERED", None)  # argparse ignores errors of a write without a buffer
    with Path("/dev/full").open("wb") as full:
        finished = subprocess.run([sys.executable, "-m", "dragoman", *words], **options, stdout=full, check=False)

    message = "dragoman: the output cannot be written: No space left on device"
    assert (finished.returncode, finished.stderr.splitlines()[-1], "Traceback" in finished.stderr) == (
        1,
        message,
        False,
    )


def test_module_of_the_service_is_the_same_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman_service"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert finished.stdout.startswith("usage: dragoman COMMAND")


def test_make_translate_passes_the_text_unchanged(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nfor last; do :; done\nprintf "%s" "$last"\n')
    python.chmod(0o755)
    for stamp in (".serve", ".load", ".bench", ".dev", ".native"):
        (tmp_path / stamp).touch()
    command = ["make", "--silent", "translate", f"VENV={tmp_path}", "TEXT=It costs $50, `ls` $(PWD)."]

    finished = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)

    assert finished.stdout == "It costs $50, `ls` $(PWD)."


def _program(directory: Path, name: str, main: str, init: str = "") -> None:
    (directory / name).mkdir()
    (directory / name / "__init__.py").write_text(init)
    (directory / name / "__main__.py").write_text(main)


def _run(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dragoman", *words]
    return subprocess.run(command, **_surroundings(path), stdout=subprocess.PIPE, check=False)


def _surroundings(path: Path) -> Any:
    """Return options of `subprocess` with a directory that precedes all others in the search for modules."""
    python_path = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": python_path}
    return {"cwd": path, "env": environment, "stderr": subprocess.PIPE, "text": True}
