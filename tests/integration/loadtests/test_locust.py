"""Locust as `make loadtest` and the Compose file run it, against the real server and a fake one."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.calls import error_mapping
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.errors import OverloadedError
from loadtests.generator.metrics import scrape
from tests.integration.real_process import CHECKOUT, START_S, free_ports

TIMEOUT_S = 90.0  # only reached by a test that would otherwise fail
COMMAND = [sys.executable, "-m", "loadtests", "load", "--max-lag=1e6"]
HEADLESS = ["--headless", "--only-summary", "--spawn-rate=100", "--texts=chat"]


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED": "true"}
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ServerProcess("--models", str(tiny_model), log=log, environment=settings) as server:
        server.wait_until_ready(timeout_s=START_S)
        yield server


@contextmanager
def fake_translator(answer: Callable[[Any], Any]) -> Iterator[str]:
    """Serve Translate with a function of the test; yields the address."""

    class Fake(pb_grpc.TranslationServiceServicer):
        def Translate(self, request: pb.TranslateRequest, context: Any) -> Any:  # noqa: N802 - of gRPC
            return answer(context)

    server = grpc.server(ThreadPoolExecutor(100))
    pb_grpc.add_TranslationServiceServicer_to_server(Fake(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def run(output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    files = [f"--html={output / 'report.html'}", f"--csv={output / 'stats'}"]
    command = [*COMMAND, *HEADLESS, *files, *flags]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=CHECKOUT)


def result(finished: subprocess.CompletedProcess[str]) -> dict[str, float]:
    """Return the figures of the result line."""
    line = next(line for line in finished.stdout.splitlines() if line.startswith("loadtest "))
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", line)}


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def ports_of_workers() -> list[str]:
    (port,) = free_ports()
    return [f"--master-bind-port={port}", f"--master-port={port}", "--processes=2"]


def num_requests(server: ServerProcess) -> float:
    values = scrape(server.metrics_url).items()
    return sum(value for name, value in values if name.startswith('dragoman_requests_total{method="Translate"'))


@pytest.mark.slow
def test_two_workers_share_the_users_and_merge_their_statistics(server: ServerProcess, tmp_path: Path) -> None:
    before = num_requests(server)
    flags = [f"--host={server.target}", f"--metrics-url={server.metrics_url}", "--users=4", "--rate=5"]

    finished = run(tmp_path, *flags, "--run-time=2s", "--slo=errors<1%,goodput>1%", *ports_of_workers())

    assert finished.returncode == 0, finished.stderr
    assert "to 2 ready workers" in finished.stderr
    rows = rows_of(tmp_path / "stats_stats.csv")
    figures = result(finished)
    assert figures["calls"] == num_requests(server) - before == float(rows[-1]["Request Count"]) > 0
    assert figures["mean_decode_ms"] > 0
    assert figures["server_tokens_per_s"] > 0


def test_calls_do_not_wait_for_each_other_and_latency_counts_from_the_due_time(tmp_path: Path) -> None:
    """The only user gets no response before several calls have arrived."""
    arrived_s = list[float]()
    num_calls = 8

    def stall(_: Any) -> pb.TranslateResponse:
        arrived_s.append(time.monotonic())
        until_s = time.monotonic() + TIMEOUT_S
        while len(arrived_s) < num_calls and time.monotonic() < until_s:
            time.sleep(0.001)
        return pb.TranslateResponse(translations=[pb.Translation()])

    with fake_translator(stall) as target:
        finished = run(tmp_path, f"--host={target}", "--users=1", "--rate=20", "--run-time=3s", "--deadline=60")

    assert finished.returncode == 0, finished.stderr
    assert len(arrived_s) >= num_calls
    assert result(finished)["max_ms"] >= 1000 * (arrived_s[num_calls - 1] - arrived_s[0]) - 1


@pytest.mark.parametrize(("slo", "exit_code"), [("rejected<=100%,errors<1%", 0), ("rejected<5%", 1)])
def test_thresholds_set_the_exit_code(slo: str, exit_code: int, tmp_path: Path) -> None:
    def reject(context: Any) -> None:
        mapped = error_mapping.to_rpc_error(OverloadedError(queued=3, limit=3, unit="segments", retry_after_s=1.5))
        context.set_trailing_metadata(mapped.trailing_metadata)
        context.abort(mapped.code, mapped.message)

    with fake_translator(reject) as target:
        finished = run(tmp_path, f"--host={target}", "--users=2", "--rate=20", "--run-time=1s", f"--slo={slo}")

    assert finished.returncode == exit_code, finished.stderr
    assert result(finished)["rejected"] == 1
    sentences = [line for line in finished.stderr.splitlines() if line.startswith("failed: ")]
    assert len(sentences) == exit_code


@pytest.mark.slow
def test_web_page_tests_a_started_server_with_a_shape(tiny_model: Path) -> None:
    (port,) = free_ports()
    flags = [f"--web-port={port}", f"--models={tiny_model}", "--texts=http", "--shape=steps"]
    until_s = time.monotonic() + TIMEOUT_S

    def get(path: str, form: Mapping[str, Any] | None = None) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data) as response:
                    return str(response.read().decode())
            except OSError:  # the page has not started yet
                assert time.monotonic() < until_s
                time.sleep(0.1)

    num_requests = 0
    with subprocess.Popen([*COMMAND, *flags], stderr=subprocess.DEVNULL, cwd=CHECKOUT) as process:
        try:
            page = json.loads(re.findall(r"window.templateArgs = (.*)", get("/"))[0])
            parameters = {name: one["default_value"] or "" for name, one in page["extra_options"].items()}
            shape = {"user_count": 2, "spawn_rate": 2, "run_time": "2s", "host": page["host"], **parameters}
            get("/swarm", shape)
            while not num_requests and time.monotonic() < until_s:
                num_requests = json.loads(get("/stats/requests"))["stats"][-1]["num_requests"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)

    assert num_requests > 0
    assert process.returncode == 0
