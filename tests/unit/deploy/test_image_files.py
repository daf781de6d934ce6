"""The files that make the image agree with each other and with the project; `.ci/run image` runs the image itself."""

import json
import re
import runpy
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_REPOSITORY = Path(__file__).parents[3]
_IMAGE = _REPOSITORY / "deploy" / "image"
_REQUIREMENTS: dict[str, list[str]] = runpy.run_path(str(_IMAGE / "lock.py"))["requirements"]()
_VARIANTS = ("cpu", "gpu")


def _instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with their words, continued lines joined."""
    lines = (_REPOSITORY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return [(name, " ".join(words.split())) for name, words in pairs]


def _words_of(name: str) -> list[str]:
    return [words for instruction, words in _instructions() if instruction == name]


def _pins(lock: str) -> dict[str, str]:
    """Return the version of each package of a lock file."""
    found = re.findall(r"^([\w.-]+)==([^ ]+)", (_IMAGE / f"{lock}.lock").read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("lock", sorted(_REQUIREMENTS))
def test_a_lock_has_what_the_project_asks_for(lock: str) -> None:
    pins = _pins(lock)
    for requirement in map(Requirement, _REQUIREMENTS[lock]):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not in {lock}.lock; run python deploy/image/lock.py"
        assert requirement.specifier.contains(Version(pins[name])), (
            f"{lock}.lock has {name} {pins[name]}; run python deploy/image/lock.py"
        )


@pytest.mark.parametrize("lock", sorted(_REQUIREMENTS))
def test_everything_in_a_lock_has_a_hash(lock: str) -> None:
    text = (_IMAGE / f"{lock}.lock").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]

    assert entries
    assert all(" --hash=sha256:" in entry for entry in entries)


def test_the_variants_differ_in_the_runtime_and_nothing_else() -> None:
    cpu, gpu = _pins("cpu"), _pins("gpu")
    cuda = {name for name in gpu if name.startswith("nvidia-")}

    assert cpu.keys() - gpu.keys() == {"onnxruntime"}
    assert gpu.keys() - cpu.keys() == {"onnxruntime-gpu", *cuda}
    assert cpu["onnxruntime"] == gpu["onnxruntime-gpu"]
    assert {name: version for name, version in cpu.items() if name in gpu}.items() <= gpu.items()
    assert {"nvidia-cublas", "nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-curand"} <= cuda


def test_no_training_framework_gets_into_the_image() -> None:
    for variant in _VARIANTS:
        assert not {"torch", "onnx", "transformers", "ctranslate2", "matplotlib"} & _pins(variant).keys()


@pytest.mark.parametrize("variant", _VARIANTS)
def test_what_the_dockerfile_copies_exists_and_is_sent_to_the_engine(variant: str) -> None:
    allowed = [
        line.removeprefix("!")
        for line in (_REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    for words in _words_of("COPY"):
        if not words.startswith("--from="):
            *sources, _ = words.replace("${VARIANT}", variant).split()
            for source in sources:
                assert (_REPOSITORY / source).exists(), source
                below = [source, *(str(folder) for folder in Path(source).parents)]
                assert any(fnmatch(path, pattern) for path in below for pattern in allowed), source


def test_every_stage_stands_on_the_given_base() -> None:
    assert _instructions()[0] == ("ARG", "BASE_IMAGE=python:3.11-slim-bookworm")
    stages: list[str] = []
    for words in _words_of("FROM"):
        parent, _, name = words.split()
        assert parent in {"${BASE_IMAGE}", *stages}
        stages.append(name)
    assert stages[-1] == "runtime"


def test_nothing_needs_a_shell() -> None:
    (entrypoint,), (command,), (check,) = _words_of("ENTRYPOINT"), _words_of("CMD"), _words_of("HEALTHCHECK")
    started: list[Any] = json.loads(entrypoint) + json.loads(command)
    probed: list[Any] = json.loads(check[check.index("CMD ") + len("CMD ") :])

    assert started == [*json.loads(entrypoint), "serve"]
    assert probed == [*json.loads(entrypoint), "probe"]


def test_it_runs_as_a_number_that_is_not_root() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", _words_of("USER")[-1])


def test_the_image_does_not_open_itself() -> None:
    """The operator says who may call."""
    assert "ALLOW_UNAUTHENTICATED" not in " ".join(_words_of("ENV"))


def test_it_builds_with_old_and_other_engines() -> None:
    text = (_REPOSITORY / "Dockerfile").read_text(encoding="utf-8")

    assert not re.search(r"^# *(syntax|escape|check) *=", text, re.MULTILINE | re.IGNORECASE)
    assert not re.search(r"<<|--link|--checksum|--start-interval|RUN .*--network", text)
