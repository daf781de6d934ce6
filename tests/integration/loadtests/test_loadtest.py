"""The load generator against the real server, a stalling one, and one over CTranslate2."""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.cli.server_process import ServerProcess
from loadtests.__main__ import main
from loadtests.generator.arrivals import Arrivals, poisson
from loadtests.generator.calls import Method, Outcome
from loadtests.generator.metrics import scrape
from loadtests.generator.runner import Load, offer
from loadtests.generator.server import Target
from loadtests.generator.texts import Profile
from loadtests.generator.workload import Mix, Workload
from tests.integration.loadtests.fake_translator import ANSWER, fake_translator
from tests.integration.real_process import CHECKOUT, START_S

TIMEOUT_S = 30.0  # only reached by a test that would otherwise fail
SHORT = Workload(profile=Profile.CHAT, options='{"maxTargetTokens": 8}')


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED": "true"}
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ServerProcess("--models", str(tiny_model), log=log, environment=settings) as server:
        server.wait_until_ready(timeout_s=START_S)
        yield server


def counted(server: ServerProcess) -> Counter[str]:
    """Return the number of requests by method and status."""
    calls: Counter[str] = Counter()
    for name, value in scrape(server.metrics_url).items():
        if name.startswith("dragoman_requests_total{"):
            calls["{method} {status}".format(**dict(re.findall(r'(\w+)="(\w*)"', name)))] += int(value)
    return calls


@pytest.mark.slow
def test_records_match_the_counters_of_the_server(server: ServerProcess) -> None:
    methods: list[Method] = [method for method in Method if not (method.needs_admin or method is Method.CHECK)]
    mix = Mix(dict.fromkeys(methods, 1.0))
    workload = replace(SHORT, methods=mix, model="tiny", deadline_s=TIMEOUT_S)
    load = Load(workload=workload, arrivals=poisson(40.0), warm_up_s=0.5, duration_s=1.5)
    before = counted(server)
    result = offer(Target(address=server.target, metrics_url=server.metrics_url), load, pids=[server.pid])

    everything = [*result.warm_up_records, *result.records]
    recorded: Counter[str] = Counter()
    for record in everything:  # the server counts the requests of streams
        recorded[f"{record.method} {record.status}"] += record.num_texts if record.method == "TranslateStream" else 1
    assert recorded == counted(server) - before
    assert {record.method for record in everything} == {method.value for method in methods}
    planned = [record.planned_s - result.began_s for record in result.records]
    assert planned == pytest.approx(poisson(40.0).times(1.5, seed=1), abs=1e-6)
    seen = [result.samples[-1].total(name) for name in ("dragoman_requests_total", "process_cpu_seconds_total")]
    assert min(result.summary.tokens_per_s, result.summary.generator_cpu_s or 0, *seen) > 0


def test_stall_of_the_server_counts_as_latency() -> None:
    """No call is answered before the last of twenty, one every 50 ms, has arrived."""
    all_arrived = threading.Barrier(20)

    def stall(*_: Any) -> bytes:
        all_arrived.wait(TIMEOUT_S)
        return ANSWER.SerializeToString()

    load = Load(workload=Workload(deadline_s=TIMEOUT_S), arrivals=Arrivals("constant", 20.0), duration_s=1.0)
    with fake_translator({"Translate": stall}, num_threads=all_arrived.parties) as target:
        result = offer(Target(address=target), load)

    assert [record.outcome for record in result.records] == [Outcome.ANSWERED] * 20
    assert result.records[0].latency_s >= 0.94
    assert asdict(result.summary)["latency"]["p50_ms"] >= 440


@pytest.mark.slow
def test_load_writes_page_json_and_records(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--profile=chat", "--rate=20", "--duration=1", "--warm-up=0.3", "--max-lag=1e6"]
    flags += ["--slo=errors<1%,p50<0.001ms", f"--model-dir={tiny_model}", f"--output={tmp_path}"]

    assert main(["load", *flags]) == 1

    output = capsys.readouterr()
    assert "p50 is " in output.err
    assert output.out.startswith("loadtest profile=chat rate=20 p50_ms=")
    values = json.loads((tmp_path / "loadtest.json").read_text(encoding="utf-8"))
    assert values["figures"]["errors"] == 0
    assert values["figures"]["server_memory_mb_max"] > 10
    assert any("tiny" in fact for fact in values["server"])
    assert "p50 is " in (tmp_path / "loadtest.html").read_text(encoding="utf-8")
    calls = [json.loads(call) for call in (tmp_path / "calls.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(calls) > values["summary"]["offered"]  # with the warm-up
    assert {call["outcome"] for call in calls} == {"answered"}
    assert {path.name for path in tmp_path.iterdir()} == {"calls.jsonl", "loadtest.html", "loadtest.json", "server.log"}


def test_locust_runs_as_in_the_compose_file(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "locust", "--headless", f"--locustfile={CHECKOUT}/loadtests/locustfile.py"]
    command += [f"--host={server.target}", "--users=2", "--spawn-rate=5", "--run-time=1s", "--stop-timeout=30s"]
    run = partial(subprocess.run, capture_output=True, text=True, timeout=60)

    ran = run([*command, "--only-summary", "--texts=chat"])
    wrong = run([*command, "--methods=Sing"])

    assert ran.returncode == 0, ran.stderr
    assert "Translate" in ran.stderr + ran.stdout
    assert wrong.returncode != 0
    assert "expected Translate, TranslateDocument" in wrong.stderr
