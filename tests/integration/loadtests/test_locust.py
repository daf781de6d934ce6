"""Locust as `make loadtest` and the Compose file run it, against the real server and a fake one."""

import csv
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.errors import OverloadedError
from dragoman_service.middleware import error_mapping
from loadtests.generator.metrics import scrape
from tests.integration.loadtests.fake_translator import ANSWER, fake_translator
from tests.integration.real_process import CHECKOUT, free_ports

TIMEOUT_S = 90.0  # only reached by a test that would otherwise fail
COMMAND = [sys.executable, "-m", "loadtests", "load", "--max-lag=1e6"]
HEADLESS = ["--headless", "--only-summary", "--spawn-rate=100", "--texts=chat"]


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


def test_command_of_the_compose_file_runs_without_a_server_to_start(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "locust", "--headless", f"--locustfile={CHECKOUT}/loadtests/locustfile.py"]
    command += [f"--host={server.target}", "--users=20", "--spawn-rate=20", "--run-time=1s", "--stop-timeout=30s"]
    command += ["--only-summary", "--texts=chat", "--methods=Translate=8,TranslateDocument=1,TranslateStream=1"]
    command += ["--deadline=30"]

    start = partial(subprocess.run, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    ran, wrong = start(command), start([*command, "--methods=Sing"])

    assert ran.returncode == 0, ran.stderr
    assert result(ran)["calls"] > 0
    assert wrong.returncode != 0
    assert "--methods Sing: expected Translate, TranslateDocument" in wrong.stderr


@pytest.mark.slow
def test_two_workers_share_the_users_and_merge_their_statistics(server: ServerProcess, tmp_path: Path) -> None:
    before = num_requests(server)
    flags = [f"--host={server.target}", f"--metrics-url={server.metrics_url}", "--users=4", "--rate=5"]

    finished = run(tmp_path, *flags, "--run-time=5s", "--slo=errors<1%,goodput>1%", *ports_of_workers())

    assert finished.returncode == 0, finished.stderr
    assert "to 2 ready workers" in finished.stderr
    rows = rows_of(tmp_path / "stats_stats.csv")
    figures = result(finished)
    assert figures["calls"] == num_requests(server) - before == float(rows[-1]["Request Count"]) > 0
    assert figures["mean_decode_ms"] > 0
    history = rows_of(tmp_path / "stats_stats_history.csv")
    assert {"50%", "95%", "99%"} <= history[-1].keys()
    samples = rows_of(tmp_path / "stats_server.csv")
    assert max(float(sample["target tokens/s"] or 0) for sample in samples) > 0
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "All thresholds hold." in report
    assert report.count("<section ") == 1


@pytest.mark.slow
def test_lost_worker_is_reported_and_fails_the_test(server: ServerProcess) -> None:
    flags = [f"--host={server.target}", "--users=4", "--run-time=10m", *ports_of_workers()]
    with subprocess.Popen([*COMMAND, *HEADLESS, *flags], stderr=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stderr is not None
        lines = list[str]()
        for line in process.stderr:
            lines.append(line)
            if "All users spawned" in line or "Spawning is complete" in line:
                psutil.Process(process.pid).children()[0].kill()
            if "setting state to missing" in line:
                process.send_signal(signal.SIGTERM)

    assert process.returncode == 1
    assert any("broken: 1 workers were lost" in line for line in lines), lines


def test_calls_do_not_wait_for_each_other_and_latency_counts_from_the_due_time(tmp_path: Path) -> None:
    """The only user gets no response before several calls have arrived."""
    arrived_s = list[float]()
    num_calls = 8

    def stall(*_: Any) -> bytes:
        arrived_s.append(time.monotonic())
        until_s = time.monotonic() + TIMEOUT_S
        while len(arrived_s) < num_calls and time.monotonic() < until_s:
            time.sleep(0.001)
        return ANSWER.SerializeToString()

    with fake_translator({"Translate": stall}, num_threads=100) as target:
        finished = run(tmp_path, f"--host={target}", "--users=1", "--rate=20", "--run-time=3s", "--deadline=60")

    assert finished.returncode == 0, finished.stderr
    assert len(arrived_s) >= num_calls
    assert result(finished)["max_ms"] >= 1000 * (arrived_s[num_calls - 1] - arrived_s[0]) - 1


@pytest.mark.parametrize(
    ("slo", "exit_code"), [("rejected<=100%,errors<1%", 0), ("rejected<5%", 1), ("p99<1s", 1), ("", 1)]
)
def test_thresholds_set_the_exit_code(slo: str, exit_code: int, tmp_path: Path) -> None:
    def reject(_: bytes, context: Any) -> None:
        mapped = error_mapping.to_rpc_error(OverloadedError(queued=3, limit=3, unit="segments", retry_after_s=1.5))
        context.set_trailing_metadata(mapped.trailing_metadata)
        context.abort(mapped.code, mapped.message)

    with fake_translator({"Translate": reject}) as target:
        finished = run(tmp_path, f"--host={target}", "--users=2", "--rate=20", "--run-time=1s", f"--slo={slo}")

    assert finished.returncode == exit_code, finished.stderr
    assert result(finished)["rejected"] == 1
    sentences = [line for line in finished.stderr.splitlines() if line.startswith("broken: ")]
    assert len(sentences) == bool(slo and exit_code)


def test_statuses_of_the_http_api_are_outcomes(tmp_path: Path) -> None:
    answers = itertools.cycle([(200, {}), (429, {"Retry-After": "1"}), (429, {}), (504, {})])

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = next(answers)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as api:
        threading.Thread(target=api.serve_forever).start()
        url = f"http://127.0.0.1:{api.server_port}"
        flags = ["--host=localhost:1", f"--http-url={url}", "--users=1", "--rate=30", "--run-time=1s"]
        finished = run(tmp_path, *flags, "HttpApiUser")
        api.shutdown()

    assert finished.returncode == 1, finished.stderr
    errors = {row["Error"] for row in rows_of(tmp_path / "stats_failures.csv")}
    assert errors == {
        f"CallError('{text}')" for text in ("rejected: 429", "error: 429 without Retry-After", "late: 504")
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--slo=p95<fast"], "'p95<fast' is not a bound"),
        (["--shape=ramp"], "--shape ramp requires --users and --run-time"),
        (["--texts=http"], "--http-url '': expected http://HOST:PORT"),
        (["--rate=-1"], "--rate -1"),
    ],
)
def test_invalid_flag_is_named(flags: list[str], message: str, tmp_path: Path) -> None:
    with fake_translator({}) as target:
        finished = run(tmp_path, f"--host={target}", *flags)

    assert finished.returncode == 1, finished.stderr
    assert message in finished.stderr


@pytest.mark.slow
def test_shape_changes_the_number_of_users_of_the_http_api(server: ServerProcess, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.http_port}"
    flags = [f"--host={server.target}", f"--http-url={url}", "--texts=http", "--shape=steps", "--users=5"]

    finished = run(tmp_path, *flags, "--run-time=6s", "--rate=3")

    assert finished.returncode == 0, finished.stderr
    history = rows_of(tmp_path / "stats_stats_history.csv")
    counts = [int(row["User Count"]) for row in history if row["Name"] == "Aggregated"]
    rising = counts[: counts.index(max(counts)) + 1]  # later rows are written while the test ends
    assert sorted(rising) == rising
    assert len(set(rising)) >= 3
    rows = rows_of(tmp_path / "stats_stats.csv")
    assert rows[0]["Name"] == "POST /v1/translate"
    assert result(finished)["goodput"] == 1


@pytest.mark.slow
def test_web_page_and_its_report_contain_the_metrics_of_a_started_server(tiny_model: Path, tmp_path: Path) -> None:
    (port,) = free_ports()
    files = [f"--html={tmp_path / 'report.html'}", f"--csv={tmp_path / 'stats'}"]
    command = [*COMMAND, *files, f"--web-port={port}", f"--models={tiny_model}", "--texts=chat"]
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

    names = set[str]()
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=CHECKOUT) as process:
        try:
            page = json.loads(re.findall(r"window.templateArgs = (.*)", get("/"))[0])
            parameters = {name: one["default_value"] or "" for name, one in page["extra_options"].items()}
            get("/swarm", {"user_count": 2, "spawn_rate": 2, "host": page["host"], **parameters})
            while "server: target tokens/s" not in names and time.monotonic() < until_s:
                tables = json.loads(get("/stats/requests"))["extended_stats"]
                names = {row["name"] for table in tables for row in table["data"]}
            report = get("/stats/report")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)

    assert {"p95_ms", "generator_lag_p99_ms", "server: target tokens/s", "server: CPU cores"} <= names
    assert report.count("<section ") == 1
    assert process.returncode == 0
