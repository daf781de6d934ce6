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

    def add(self, path: Path, script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def add_compiler(self, name: str = "c++") -> None:
        self.add(self.programs / name, "")

    def set_build_exit_code(self, code: int) -> None:
        self.add(self.environment / "bin" / "python", f"echo build >>{self.environment}/builds; exit {code}")

    def make(self, *options: str) -> list[str]:
        """Return the lines that `make` prints for the native engine."""
        command = [str(self.programs / "make"), f"VENV={self.environment}", str(self.environment / ".native"), *options]
        finished = subprocess.run(
            command, cwd=CHECKOUT, env={"PATH": str(self.programs)}, capture_output=True, text=True, check=True
        )
        return (finished.stdout + finished.stderr).splitlines()

    def num_builds(self) -> int:
        builds = self.environment / "builds"
        return len(builds.read_text().splitlines()) if builds.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_missing_compiler_is_reported_in_one_line(machine: Machine) -> None:
    (line,) = machine.make()

    assert "apt install g++" in line
    assert machine.num_builds() == 0


@pytest.mark.parametrize("compiler", ["c++", "g++"])
def test_engine_is_built_once_and_again_after_a_change(compiler: str, machine: Machine) -> None:
    machine.add_compiler(compiler)

    machine.make()
    machine.make()
    assert machine.num_builds() == 1
    machine.make(f"--what-if={SOURCE}")
    assert machine.num_builds() == 2


def test_failed_build_names_its_log_and_is_repeated(machine: Machine) -> None:
    machine.add_compiler()
    machine.set_build_exit_code(1)

    assert str(machine.environment / ".native.log") in machine.make()[-1]
    machine.set_build_exit_code(0)
    machine.make()
    assert (machine.environment / ".native").exists()


def test_every_installation_includes_the_native_engine() -> None:
    lines = (CHECKOUT / "Makefile").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line.startswith("$(VENV)/.") and "pyproject.toml" in line]

    assert rules
    assert all(rule.endswith(" $(VENV)/.native") for rule in rules)
