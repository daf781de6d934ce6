"""`dragoman-native` is built where a compiler is, missed with one line where none is, and agrees with the project."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

_REPOSITORY = Path(__file__).parents[3]
_SOURCE = "service/native/src/batch.cpp"
_TOOLS = ("make", "sh", "touch")


class Machine:
    """Programs that `make` finds, and an environment whose Python only notes what it is asked for."""

    def __init__(self, directory: Path) -> None:
        self.programs, self.environment = directory / "programs", directory / "environment"
        self.programs.mkdir()
        (self.environment / "bin").mkdir(parents=True)
        for tool in _TOOLS:
            (self.programs / tool).symlink_to(shutil.which(tool) or pytest.skip(f"there is no {tool}"))
        self._script(self.programs / "uname", "echo Linux x86_64")
        self.let_builds_end_with(0)

    def add_compiler(self, name: str) -> None:
        self._script(self.programs / name, "")

    def let_builds_end_with(self, code: int) -> None:
        self._script(
            self.environment / "bin" / "python", f'echo "$@" >>{self.environment}/asked; echo gone wrong; exit {code}'
        )

    def make(self, *options: str) -> str:
        """Return what is said on the way to the native engine."""
        words = [str(self.programs / "make"), f"VENV={self.environment}", str(self.environment / ".native"), *options]
        kept = {"PATH": str(self.programs), "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run(words, cwd=_REPOSITORY, env=kept, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def num_builds(self) -> int:
        asked = self.environment / "asked"
        return asked.read_text(encoding="utf-8").count("./service/native\n") if asked.exists() else 0

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _project(path: str) -> dict[str, Any]:
    return tomllib.loads((_REPOSITORY / path / "pyproject.toml").read_text(encoding="utf-8"))


def test_a_machine_without_a_compiler_is_told_in_one_line_what_to_install(machine: Machine) -> None:
    said = machine.make()

    assert said.count("\n") == 1
    assert "apt install g++" in said
    assert machine.num_builds() == 0


@pytest.mark.parametrize("compiler", ["c++", "g++"])
def test_a_compiler_that_is_found_builds_once(compiler: str, machine: Machine) -> None:
    machine.make()
    machine.add_compiler(compiler)

    assert "building the native engine" in machine.make()
    assert "up to date" in machine.make()
    assert machine.num_builds() == 1


def test_a_changed_source_is_built_again(machine: Machine) -> None:
    machine.add_compiler("c++")
    machine.make()

    machine.make(f"--what-if={_SOURCE}")

    assert machine.num_builds() == 2


def test_a_build_that_fails_is_told_in_one_line_and_tried_again(machine: Machine) -> None:
    machine.add_compiler("c++")
    machine.let_builds_end_with(1)

    said = machine.make().splitlines()

    assert len(said) == 2
    assert "cannot be built" in said[1]
    assert (machine.environment / ".native.log").read_text(encoding="utf-8") == "gone wrong\n"
    machine.let_builds_end_with(0)
    machine.make()
    assert (machine.environment / ".native").exists()


def test_everything_that_is_installed_comes_with_the_native_decoder() -> None:
    rules = [
        line
        for line in (_REPOSITORY / "Makefile").read_text(encoding="utf-8").splitlines()
        if "pyproject.toml |" in line
    ]

    assert len(rules) == 4
    assert all(rule.endswith(" $(VENV)/.native") for rule in rules)


def test_both_distributions_have_one_version_and_are_built_with_the_same_tools() -> None:
    """The image builds both with what `tools.lock` pins."""
    root, native = _project("."), _project("service/native")

    assert native["project"]["version"] == root["project"]["version"]
    assert native["project"]["requires-python"] == root["project"]["requires-python"]
    assert native["build-system"] == root["build-system"]
    assert not list((_REPOSITORY / "proto").glob("dragoman_*"))
