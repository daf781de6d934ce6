"""`make gpu-check` and `make gpu-train` without a GPU."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman_export.training.report import read_log
from dragoman_service.bundle.files import open_bundle
from tests.integration.real_process import CHECKOUT
from tests.unit.export.tiny_training import write_tsv

_TINY = (
    *("--vocabulary-size=320", "--d-model=32", "--ffn-size=64", "--encoder-layers=1", "--decoder-layers=1"),
    *("--batch-tokens=256", "--bleu-sentences=2", "--threads=1"),
)


@pytest.mark.slow
def test_training_resumes_and_writes_a_bundle(tmp_path: Path) -> None:
    for name, count in (("train", 300), ("dev", 10)):
        path = tmp_path / "data" / "made-up" / f"{name}.tsv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(write_tsv(tmp_path / f"{name}.tsv", count).read_bytes()))
    run = tmp_path / "run"
    values = {"PRESET": "tiny", "MINUTES": "0.02", "DATA": tmp_path / "data", "RUN": run, "GPU_PYTHON": sys.executable}
    command = ["make", "--silent", "gpu-train", *(f"{name}={value}" for name, value in values.items())]
    environment = {**os.environ, "MAKEFLAGS": ""}

    for flags in (f"TRAIN_FLAGS={' '.join(_TINY)}", "TRAIN_FLAGS="):
        subprocess.run([*command, flags], cwd=CHECKOUT, env=environment, check=True)

    stops = [record for record in read_log(run / "log.jsonl") if record["event"] == "stop"]
    assert [stop["reason"] for stop in stops] == ["max-minutes"] * 2
    assert 0 < stops[0]["step"] < stops[1]["step"]
    assert {"fp32", "fp16", "int8"} == open_bundle(run / "models" / "en-de" / "1").manifest.precisions.keys()
