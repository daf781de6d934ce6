"""`make` builds the native engine if a compiler is available, and otherwise reports in one line how to get it."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
SOURCE = "service/native/src/batch.cpp"


class Machine:
    """A virtual environment and a search path with the given programs only; builds are recorded, not run."""

    def __init__(self, directory: Path) -> None:
        self.programs, self.environment = directory / "programs", directory / "environment"
        self.programs.mkdir()
        (self.environment / "bin").mkdir(parents=True)
        for tool in ("make", "sh", "touch"):
            (self.programs / tool).symlink_to(shutil.which(tool) or pytest.skip(f"{tool} is not installed"))
        self.add(self.programs / "uname", "echo Linux x86_64")
        self.set_build_exit_code(0)

    def add(self, path: Path, script: str = "") -> None:
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def set_build_exit_code(self, code: int) -> None:
        self.add(self.environment / "bin" / "python", f"echo build >>{self.environment}/builds; exit {code}")

    def make(self, *options: str) -> tuple[list[str], int]:
        """Return the lines that `make` prints for the native engine, and the number of builds so far."""
        command = [str(self.programs / "make"), f"VENV={self.environment}", str(self.environment / ".native"), *options]
        finished = subprocess.run(
            command, cwd=CHECKOUT, env={"PATH": str(self.programs)}, capture_output=True, text=True, check=True
        )
        builds = self.environment / "builds"
        num_builds = builds.read_text().count("build") if builds.exists() else 0
        return (finished.stdout + finished.stderr).splitlines(), num_builds


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_compiler_is_reported_in_one_line(machine: Machine) -> None:
    (line,), num_builds = machine.make()

    assert "apt install g++" in line
    assert num_builds == 0


@pytest.mark.parametrize("compiler", ["c++", "g++"])
def test_engine_is_built_once_and_again_after_a_change_or_a_failure(compiler: str, machine: Machine) -> None:
    machine.add(machine.programs / compiler)
    machine.set_build_exit_code(1)

    lines, num_builds = machine.make()
    assert (str(machine.environment / ".native.log") in lines[-1], num_builds) == (True, 1)

    machine.set_build_exit_code(0)
    assert [machine.make(*options)[1] for options in ([], [], [f"--what-if={SOURCE}"])] == [2, 2, 3]
