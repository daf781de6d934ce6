"""Pin what goes into the image, hashes included: `python deploy/image/lock.py`.

Writes, beside this file, `cpu.lock` and `gpu.lock`: what `pyproject.toml` asks for to serve on the one or the other;
and `tools.lock`: what the build of the image uses and does not keep. Needs `uv`. Versions that are pinned already stay
unless `--upgrade` is given.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_PYPROJECT = _HERE.parents[1] / "pyproject.toml"

_PYTHON_VERSION = "3.11"
_PLATFORM = "x86_64-manylinux_2_28"
_SBOM_TOOL = "cyclonedx-bom>=7.5,<8"
_RUNTIMES = {"cpu": "serve", "gpu": "gpu"}
"""Extra of the project that each variant is made of."""
_COMMON_EXTRAS = "detect,files,google"
"""Features of every image: language detection, uploaded files, clients of Google Cloud Translation."""


def requirements() -> dict[str, list[str]]:
    """Return what each lock file pins, by its name without suffix."""
    declared: dict[str, Any] = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))
    project = declared["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    variants = {
        variant: [*project["dependencies"], *_expanded(extras, [f"dragoman[{extra},{_COMMON_EXTRAS}]"])]
        for variant, extra in _RUNTIMES.items()
    }
    return {**variants, "tools": [*declared["build-system"]["requires"], _SBOM_TOOL]}


def main() -> int:
    """Write all lock files; return the exit code of the first `uv` that fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    arguments = parser.parse_args()
    for name, lines in requirements().items():
        exit_code = _compile(lines, _HERE / f"{name}.lock", is_upgrade=arguments.upgrade)
        if exit_code != 0:
            return exit_code
    return 0


def _expanded(extras: dict[str, list[str]], requirements: list[str]) -> list[str]:
    """Return requirements with the project's own extras replaced by what these ask for."""
    lines = list[str]()
    for line in requirements:
        if line.startswith("dragoman-models"):  # the image copies the models from the checkout
            continue
        own = re.fullmatch(r"dragoman\[(.+)\]", line)
        lines += [part for extra in own[1].split(",") for part in _expanded(extras, extras[extra])] if own else [line]
    return lines


def _compile(lines: list[str], lock: Path, *, is_upgrade: bool) -> int:
    """Resolve and write one file; uv says what is wrong."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate"]
    options = ["--python-version", _PYTHON_VERSION, "--python-platform", _PLATFORM, "--only-binary", ":all:"]
    heading = ["--custom-compile-command", "python deploy/image/lock.py", "--output-file", str(lock)]
    finished = subprocess.run(  # noqa: S603 - uv, with the words above
        [*command, *options, *heading, *(["--upgrade"] if is_upgrade else []), "-"],
        input="\n".join(lines),
        text=True,
        check=False,
    )
    return finished.returncode


if __name__ == "__main__":
    sys.exit(main())
