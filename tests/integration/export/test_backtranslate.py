"""`dragoman export backtranslate` and `distill` with the bundled models, which `dragoman translate-dataset` runs."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.translation import translate_texts
from dragoman_service.models.serving import bundled_models
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.waiting import wait_until

pytest.importorskip("pyarrow")  # not `ray`, which changes the log records of the process
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # Ray starts several times
WAIT_S = 120.0  # only reached by a test that would otherwise fail anyway
SIGTERM_STATUS = 143


def start(*words: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dragoman_export", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def translations(bundle: Path, texts: Sequence[str]) -> tuple[str, ...]:
    with open_text_model([bundle], RuntimeSettings()) as (model, _):
        return translate_texts(model, texts, beam_size=2, batch_size=8, shows_progress=False).texts


def test_interrupted_backtranslation_continues(tmp_path: Path) -> None:
    texts = [f"Das Haus Nummer {number} ist klein." for number in range(200)]
    data, output = tmp_path / "mono.de", tmp_path / "pairs.tsv"
    data.write_text("\n".join([*texts[:100], "", "x" * 10_001, *texts[100:]]))
    bundle, parts = bundled_models() / "de-en" / "1", tmp_path / "pairs.tsv.parts" / "translated"
    words: list[str | Path] = ["backtranslate", "--bundle", bundle, "--data", data, "--output", output, "--tag", "<BT>"]
    words += ["--beam", "2", "--threads", "2", "--save-every", "5"]

    running = start(*words)
    wait_until(lambda: running.poll() is not None or any(parts.glob("part-*")), timeout_s=WAIT_S)
    assert running.poll() is None, running.communicate()
    running.terminate()
    _, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == SIGTERM_STATUS, errors
    assert not output.exists()
    assert not json.loads((parts / "manifest.json").read_bytes())["is_complete"]

    changed = start(*words, "--beam", "3")
    _, errors = changed.communicate(timeout=WAIT_S)
    assert changed.returncode == 1
    assert "--beam-size is 3: expected 2" in errors
    assert f"delete {parts.parent}" in errors

    running = start(*words)
    printed, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 0, errors
    assert "200 of 202 lines" in printed
    expected = [f"<BT> {source}\t{text}" for source, text in zip(translations(bundle, texts), texts, strict=True)]
    assert output.read_text().splitlines() == expected
    assert not parts.parent.exists()


def test_single_bundle_distils_with_its_translations(tmp_path: Path) -> None:
    texts = ["The house is small.", "x" * 10_001, "Where is the station?"]
    data, output = tmp_path / "train.tsv", tmp_path / "distilled.tsv"
    data.write_text("".join(f"{text}\treference\n" for text in texts))
    bundle = bundled_models() / "en-de" / "1"

    running = start("distill", "--teacher", bundle, "--data", data, "--output", output, "--beam", "2")
    _, errors = running.communicate(timeout=WAIT_S)

    assert running.returncode == 0, errors
    first, last = translations(bundle, [texts[0], texts[-1]])
    expected = [(texts[0], first), (texts[1], "reference"), (texts[-1], last)]
    assert [tuple(line.split("\t")) for line in output.read_text().splitlines()] == expected
    assert json.loads((tmp_path / "distilled.tsv.json").read_bytes())["beam"] == 2
