import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman import __main__ as command
from dragoman_service import __main__ as service_program

_CHECKOUT = Path(__file__).parents[3]


def test_a_bare_command_prints_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("usage: dragoman COMMAND")
    assert all(f"\n  {name} " in printed for name in command.COMMANDS)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0

    assert capsys.readouterr().out == f"dragoman {dragoman.__version__}\n"


def test_an_unknown_command_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["translte"]) == 2

    assert "there is no command 'translte'; the commands are serve, translate," in capsys.readouterr().err


def test_every_command_of_the_server_is_offered() -> None:
    offered = [name for name, found in command.COMMANDS.items() if found.program in ("dragoman_service", "dragoman.cli")]

    assert sorted(offered) == sorted(service_program._COMMANDS)


def test_arguments_are_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["keys", "new", "--help"])

    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: dragoman keys new")


@pytest.mark.parametrize("program", ["export", "loadtests"])
def test_the_other_programs_get_what_follows_the_command(program: str, tmp_path: Path) -> None:
    name = next(name for name, found in command.COMMANDS.items() if found.program == program)
    _program(tmp_path, program, "def main(argv=None):\n    print(*argv)\n    return 3\n")

    finished = _run(name, "--flag", "value", cwd=tmp_path, PYTHONPATH=str(tmp_path))

    assert (finished.stdout, finished.returncode) == ("--flag value\n", 3)


def test_the_server_of_the_checkout_is_found_from_everywhere(tmp_path: Path) -> None:
    finished = _run("keys", "new", "shop", cwd=tmp_path)

    assert finished.returncode == 0
    assert 'name = "shop"' in finished.stderr


def test_without_a_checkout_it_says_what_installs_the_server(tmp_path: Path) -> None:
    shutil.copytree(_CHECKOUT / "proto" / "dragoman", tmp_path / "site" / "dragoman")
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}

    finished = _run("serve", cwd=tmp_path, **environment)

    assert finished.returncode == 2
    assert finished.stderr == (
        "dragoman: `dragoman serve` needs the package 'service', which is not installed here; "
        "this installs it, in a checkout of the project:\n"
        f"  {sys.executable} -m pip install --editable '.[serve]'\n"
    )


def test_a_missing_extra_is_told_with_the_command_that_installs_it(tmp_path: Path) -> None:
    _program(
        tmp_path,
        "onnxruntime",
        "",
        "raise ModuleNotFoundError(\"No module named 'onnxruntime'\", name='onnxruntime')\n",
    )

    finished = _run("serve", cwd=tmp_path, PYTHONPATH=str(tmp_path))

    assert finished.returncode == 2
    assert "`dragoman serve` needs the module 'onnxruntime', which is not installed here" in finished.stderr
    assert f"-m pip install --editable '{_CHECKOUT}[serve]'" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_an_environment_that_is_not_active_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    monkeypatch.setattr(command, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(command, "find_spec", lambda name: None)

    assert command.main(["serve"]) == 2

    assert capsys.readouterr().err.endswith(f"this activates it:\n  . {tmp_path}/.venv/bin/activate\n")


def test_a_module_of_ours_that_is_missing_is_a_bug_and_no_extra(tmp_path: Path) -> None:
    _program(tmp_path, "export", "import service.no_such_module\n")

    finished = _run("export", cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{_CHECKOUT}")

    assert "Traceback" in finished.stderr


def _take_interrupts() -> None:
    """Undo what a shell does to commands in its background, which ignore Ctrl-C; it would be inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_is_one_line_and_exit_status_130(tmp_path: Path) -> None:
    _program(tmp_path, "export", "import time\ndef main(argv):\n    print('began', flush=True)\n    time.sleep(60)\n")

    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "export"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": _python_path(str(tmp_path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_take_interrupts,  # noqa: PLW1509 - it changes a signal and takes no lock
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)

    assert (told, process.returncode) == ("dragoman: interrupted\n", 130)


def test_python_m_service_is_the_same_command() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "dragoman_service"],
        cwd=_CHECKOUT,
        env={**os.environ, "PYTHONPATH": _python_path("")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert finished.stdout.startswith("usage: dragoman COMMAND")


def test_python_m_service_outside_the_environment_says_what_to_install() -> None:
    finished = subprocess.run(
        [sys.executable, "-S", "-m", "dragoman_service", "translate"],
        cwd=_CHECKOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 2
    assert "-m pip install --editable '.[serve]'" in finished.stderr
    assert "Traceback" not in finished.stderr


def _program(directory: Path, name: str, main: str, init: str = "") -> None:
    (directory / name).mkdir()
    (directory / name / "__init__.py").write_text(init)
    (directory / name / "__main__.py").write_text(main)


def _run(*words: str, cwd: Path, PYTHONPATH: str = "", **environment: str) -> subprocess.CompletedProcess[str]:  # noqa: N803 - the name of the variable
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *words],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": _python_path(PYTHONPATH) if "PYTHONSAFEPATH" not in environment else PYTHONPATH,
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def _python_path(first: str) -> str:
    return os.pathsep.join(filter(None, (first, str(_CHECKOUT / "proto"))))
