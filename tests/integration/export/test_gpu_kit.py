"""`make gpu-check` and `make gpu-train` without a GPU."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman_export.training.report import read_log
from dragoman_service.bundle.files import open_bundle
from loadtests.__main__ import main
from loadtests.benchmarks.gpu import REPORT_NAME, RESULTS_NAME
from loadtests.generator.server import ServerProcess
from tests.integration.real_process import CHECKOUT, START_S
from tests.unit.export.tiny_training import write_tsv

_TINY = (
    *("--vocabulary-size=320", "--d-model=32", "--ffn-size=64", "--encoder-layers=1", "--decoder-layers=1"),
    *("--batch-tokens=256", "--bleu-sentences=2", "--threads=1"),
)


@pytest.mark.slow
def test_finished_stages_are_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["benchmarks", "gpu", "--gpu=cpu", "--mode=short", f"--output={tmp_path}"]

    assert main([*flags, "--stages=prepare"]) == 0

    assert "--model-dir=" in (tmp_path / REPORT_NAME).read_text(encoding="utf-8")
    results = (tmp_path / RESULTS_NAME).read_text(encoding="utf-8")
    capfd.readouterr()
    assert main([*flags, "--minutes=0.1"]) == 1  # too short for the other stages
    assert "prepare ..." not in capfd.readouterr().out
    assert json.loads((tmp_path / RESULTS_NAME).read_text(encoding="utf-8")) == json.loads(results)


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


def test_server_under_test_inherits_only_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_RUNTIME__DEVICE", "cuda")
    monkeypatch.setenv("DRAGOMAN_LOGS__LEVEL", "debug")
    names = "sorted(name for name in os.environ if name.startswith('DRAGOMAN_'))"
    lines = f"{{'event': 'listening', 'grpc_port': 1}}, {{'event': 'ready', 'settings': {names}}}"
    serve = f"import json, os, signal, sys; [print(json.dumps(line), file=sys.stderr) for line in ({lines})]"

    with ServerProcess(tmp_path / "log", "-n1", "-r1", f"{serve}; signal.pause()", module=("timeit",)) as process:
        process.wait_until_ready(timeout_s=START_S)

    lines_of_log = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines_of_log[1])["settings"] == ["DRAGOMAN_RUNTIME__DEVICE"]
