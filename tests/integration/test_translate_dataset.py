"""`dragoman translate-dataset` as a process, with an instance of Ray of its own or with a cluster."""

import contextlib
import csv
import ipaddress
import json
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyarrow")  # not `ray`, which changes the log records of the process

import pyarrow as pa
import pyarrow.parquet as pq

from dragoman_service.__main__ import main
from dragoman_service.config import Settings
from dragoman_service.dataset_translation.translators import EngineSpec
from dragoman_service.models.serving import ModelSettings
from tests.integration.real_process import START_S, free_ports, process
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # Ray starts several times
NUM_BLOCKS = 90
BLOCK_ROWS = 4
WAIT_S = 120.0  # only reached by a test that would otherwise fail anyway
METRICS_PORT = 44217  # the default of Ray


def engine_translations(models: Path, *blocks: list[str]) -> list[tuple[str, Any]]:
    settings = Settings(models=ModelSettings(directory=models))
    engine = EngineSpec.of(settings, "", "en", "de", beam_size=4, batch_size=32).open()
    return [(row.text, pytest.approx(row.score, abs=1e-3)) for texts in blocks for row in engine.translate(texts)]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command; kill it and its processes if the test ends early."""
    command = [sys.executable, "-m", "dragoman_service", "translate-dataset", *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def wait_for(holds: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    wait_until(lambda: running.poll() is not None or holds(), timeout_s=WAIT_S)
    assert running.poll() is None, running.communicate()


def ray_processes(running: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(running.pid).children(recursive=True)


def assert_loopback_only(processes: list[psutil.Process]) -> None:
    addresses: list[tuple[str, int]] = []
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            sockets = [one for one in each.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
            addresses += [(one.laddr.ip, one.laddr.port) for one in sockets]
    assert addresses
    assert all(ipaddress.ip_address(host.removeprefix("::ffff:")).is_loopback for host, _ in addresses)
    assert METRICS_PORT not in {port for _, port in addresses}  # runs on one machine would compete for it


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start a cluster of one node with a token on loopback; set the variables for it and yield its directory."""
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on all systems: listens on loopback only
        "RAY_USAGE_STATS_ENABLED": "0",
        "AUTOSCALER_METRIC_PORT": "0",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (client_port,) = free_ports()  # Ray does not accept 0
    flags = {"node-ip-address": "127.0.0.1", "port": 0, "ray-client-server-port": client_port, "num-cpus": 2}
    # a short path, because it contains Unix sockets
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        flags |= {"temp-dir": directory, "include-dashboard": "false", "object-store-memory": 128 << 20}
        words = ["start", "--head", "--block", *(f"--{name}={value}" for name, value in flags.items())]
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        head = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
        processes = [psutil.Process(head.pid)]
        session = Path(directory, "session_latest")
        try:
            wait_for((session / "sockets" / "raylet").exists, head)
            (port,) = session.glob("gcs_server_port_*")
            monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port.read_text()}")
            yield session
        finally:
            processes += ray_processes(head)
            for each in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            head.wait()


def test_every_row_is_translated_once_after_sigterm_and_the_end_of_driver_and_worker(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str | None] = [f"A man {number} rides to {{town}}." for number in range(NUM_BLOCKS * BLOCK_ROWS)]
    texts[5] = texts[300] = None
    source, out = tmp_path / "in.parquet", tmp_path / "out"
    pq.write_table(pa.table({"n": range(len(texts)), "text": texts}), source, row_group_size=60 * BLOCK_ROWS)
    words = [str(source), str(out), "--models", str(tiny_model), "--block-rows", str(BLOCK_ROWS), "--workers", "2"]

    def manifest() -> Any:
        path = out / "manifest.json"
        return json.loads(path.read_bytes()) if path.exists() else {"blocks": {}}

    with started(*words) as running:
        wait_for(lambda: bool(manifest()["blocks"]), running)
        processes = ray_processes(running)
        assert_loopback_only(processes)
        running.terminate()
        _, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 128 + signal.SIGTERM
    assert "run the same command to resume" in errors
    assert not list(out.glob(".tmp-*"))
    assert not manifest()["is_complete"]  # otherwise the signal was too late to test anything
    assert not psutil.wait_procs(processes, timeout=WAIT_S)[1]

    num_before = len(manifest()["blocks"])
    with started(*words) as running:
        wait_for(lambda: len(manifest()["blocks"]) > num_before, running)
        processes = ray_processes(running)
        running.kill()
    for each in processes:  # those of Ray itself end by themselves, but take a minute
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    assert not manifest()["is_complete"]

    num_before = len(manifest()["blocks"])
    with started(*words) as running:
        wait_for(lambda: len(manifest()["blocks"]) > num_before, running)
        workers = [each for each in ray_processes(running) if "BlockTranslator" in " ".join(each.cmdline())]
        workers[0].kill()
        printed, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 0, errors
    assert f"{len(texts) - 2} rows translated, 2 rejected" in printed

    valid = [(number, text) for number, text in enumerate(texts) if text is not None]
    blocks = [texts[start : start + BLOCK_ROWS] for start in range(0, len(texts), BLOCK_ROWS)]
    translations = engine_translations(tiny_model, *([text for text in block if text is not None] for block in blocks))
    rows = pq.read_table(sorted(out.glob("part-*"))).to_pylist()
    assert [(row["n"], row["text"]) for row in rows] == valid
    assert [row["row_id"] for row in rows] == [f"in.parquet:{number + 1}" for number, _ in valid]
    assert [(row["translation"], row["score"]) for row in rows] == translations
    rejects = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
    assert sorted(each["row_id"] for each in rejects) == ["in.parquet:301", "in.parquet:6"]
    assert manifest()["is_complete"]
    assert manifest()["rows"] == {"total": len(texts), "translated": len(valid), "rejected": 2}
    assert manifest()["settings"]["model"] == "tiny/1"

    capsys.readouterr()
    assert main(["translate-dataset", *words, "--beam-size", "2"]) == 2
    assert "--beam-size is 2: expected 4" in capsys.readouterr().err


def test_server_translates_as_the_engine_does(tiny_model: Path, tmp_path: Path) -> None:
    texts = ["A man rides a bicycle.", "See https://example.org/ and {name}.", "", "x" * 10_001]
    source, out = tmp_path / "in.csv", tmp_path / "out"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "sentence"), *enumerate(texts)])

    with process("--models", str(tiny_model)) as server:
        ports = server.wait_until_ready(timeout_s=START_S)
        flags = ["--target", f"127.0.0.1:{ports.grpc_port}", "--text-column", "sentence", "--column", "german"]
        with started(str(source), str(out), *flags, "--batch-size", "2", "--workers", "1") as running:
            printed, errors = running.communicate(timeout=WAIT_S)

    assert running.returncode == 0, errors
    assert "3 rows translated, 1 rejected" in printed
    assert "model tiny/1" in printed
    rows = [json.loads(line) for line in (out / "part-000000.jsonl").read_text().splitlines()]
    assert [(row["id"], row["sentence"]) for row in rows] == [
        (str(index), text) for index, text in enumerate(texts[:3])
    ]
    assert [(row["german"], row["score"]) for row in rows] == engine_translations(tiny_model, texts[:3])
    assert "10001 characters" in (out / "rejects.jsonl").read_text()


def test_cluster_translates_as_the_engine_does_and_needs_its_token(
    cluster: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"A man {number} rides." for number in range(8)]
    source, out = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("".join(f"{text}\n" for text in texts))
    words = [str(source), str(out), "--models", str(tiny_model), "--block-rows", "2"]

    with started(*words, "--workers", "3") as running:  # more than the cluster has
        _, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 0, errors
    rows = [json.loads(line) for part in sorted(out.glob("part-*")) for line in part.read_text().splitlines()]
    assert [row["text"] for row in rows] == texts
    blocks = [texts[start : start + 2] for start in range(0, len(texts), 2)]
    assert [(row["translation"], row["score"]) for row in rows] == engine_translations(tiny_model, *blocks)
    assert list(cluster.glob("logs/worker-*"))  # not in an instance of the command

    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with started(str(source), str(tmp_path / "other"), "--models", str(tiny_model)) as running:
        _, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 1
    assert "Failed to connect to Ray cluster" in errors
