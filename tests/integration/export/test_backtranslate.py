"""`dragoman export backtranslate` with a bundled model, which `dragoman translate-dataset` runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.translation import translate_texts
from dragoman_service.models.serving import bundled_models
from dragoman_service.runtimes.settings import RuntimeSettings

pytest.importorskip("pyarrow")  # not `ray`, which changes the log records of the process
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WAIT_S = 120.0  # only reached by a test that would otherwise fail anyway


def test_backtranslation_has_the_translations_of_the_model(tmp_path: Path) -> None:
    texts = [f"Das Haus Nummer {number} ist klein." for number in range(40)]
    data, output = tmp_path / "mono.de", tmp_path / "pairs.tsv"
    data.write_text("\n".join([*texts[:20], "", "x" * 10_001, *texts[20:]]))
    bundle = bundled_models() / "de-en" / "1"
    flags = ["--tag", "<BT>", "--beam", "2", "--threads", "2", "--save-every", "5"]

    files = ["--bundle", bundle, "--data", data, "--output", output]
    command = [sys.executable, "-m", "dragoman_export", "backtranslate", *map(str, files), *flags]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert finished.returncode == 0, finished.stderr
    assert "40 of 42 lines" in finished.stdout
    with open_text_model([bundle], RuntimeSettings()) as (model, _):
        translations = translate_texts(model, texts, beam_size=2, batch_size=8, shows_progress=False).texts
    expected = [f"<BT> {source}\t{text}" for source, text in zip(translations, texts, strict=True)]
    assert output.read_text().splitlines() == expected
