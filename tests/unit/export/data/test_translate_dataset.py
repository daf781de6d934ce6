"""Lines that `dragoman translate-dataset` translates; a fake takes the place of the command, which needs Ray."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman_export.data import translate_dataset
from dragoman_export.data.translate_dataset import LineTranslation
from dragoman_export.errors import ExportError

# Translates into upper case and rejects `bad`. The first line can make it exit or wait for a signal.
FAKE = r"""
import json, os, pathlib, signal, sys
source, output = map(pathlib.Path, sys.argv[2:4])
lines = source.read_text().split("\n")[:-1]
if lines[0].startswith("exit "):
    sys.exit(int(lines[0][5:]))
if lines[0] == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
output.mkdir()
rows = [{"row_id": f"in.txt:{n}", "translation": text.upper()} for n, text in enumerate(lines, 1) if text != "bad"]
for start in range(0, len(rows), 2):
    part = output / f"part-{999_998 + start:06}.jsonl"
    part.write_text("".join(json.dumps(row) + "\n" for row in rows[start : start + 2]))
settings = {"flags": sys.argv[4:], "precision": os.environ.get("DRAGOMAN_RUNTIME__PRECISION")}
(output / "manifest.json").write_text(json.dumps({"settings": settings}))
"""


@pytest.fixture
def translation(fp32_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LineTranslation:
    package = tmp_path / "fake" / "dragoman"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(translate_dataset, "find_spec", lambda name: name)
    return LineTranslation(
        directory=tmp_path / "out.tsv.parts",
        bundle=fp32_bundle,
        precision=None,
        beam_size=2,
        batch_size=4,
        num_workers=1,
        block_rows=10,
    )


def test_lines_are_joined_with_their_translations(translation: LineTranslation) -> None:
    lines = ["bad", "one", "two", "bad", "bad", "three\u2028", "four", "bad"]

    rows = list(translation.run(lines))

    assert [line for line, _ in rows] == lines
    assert [row and row["translation"] for _, row in rows] == [
        None if line == "bad" else line.upper() for line in lines
    ]


@pytest.mark.parametrize("precision", [None, "fp32"])
def test_command_gets_the_bundle_as_name_and_version(translation: LineTranslation, precision: str | None) -> None:
    translation = replace(translation, precision=precision)
    list(translation.run(["one"]))

    flags = dict(flag.removeprefix("--").split("=") for flag in translation.settings["flags"])
    assert (Path(flags["models"]) / "tiny" / "1").resolve() == translation.bundle
    assert (flags["model"], flags["source-language"], flags["target-language"]) == ("tiny/1", "en", "de")
    assert (flags["beam-size"], flags["workers"]) == ("2", "1")
    assert translation.settings["precision"] == precision


def test_failure_names_the_status_and_the_directory(translation: LineTranslation) -> None:
    with pytest.raises(ExportError, match=r"exited with 2: .* delete .*out\.tsv\.parts"):
        translation.run(["exit 2"])


def test_signal_is_passed_on(translation: LineTranslation) -> None:
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        translation.run(["wait"])

    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_missing_ray_is_named(translation: LineTranslation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate_dataset, "find_spec", lambda _: None)

    with pytest.raises(ExportError, match=r"dragoman\[serve,ray\]"):
        translation.run(["one"])
