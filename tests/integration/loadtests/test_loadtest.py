"""The load generator against the real server."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from dragoman_service.cli.server_process import ServerProcess
from loadtests.generator.calls import Method
from loadtests.generator.metrics import scrape
from loadtests.generator.runner import Load, offer, schedule
from loadtests.generator.server import Target
from loadtests.generator.texts import Profile
from loadtests.generator.workload import Mix, Workload

TIMEOUT_S = 30.0  # only reached by a test that would otherwise fail
SHORT = Workload(profile=Profile.CHAT, options='{"maxTargetTokens": 8}')


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
    load = Load(workload=workload, rate_per_s=40.0, warm_up_s=0.5, duration_s=1.5)
    before = counted(server)
    result = offer(Target(address=server.target, metrics_url=server.metrics_url), load, pids=[server.pid])

    everything = [*result.warm_up_records, *result.records]
    recorded: Counter[str] = Counter()
    for record in everything:  # the server counts the requests of streams
        recorded[f"{record.method} {record.status}"] += record.num_texts if record.method == "TranslateStream" else 1
    assert recorded == counted(server) - before
    assert {record.method for record in everything} == {method.value for method in methods}
    planned = [record.planned_s - result.began_s for record in result.records]
    assert planned == pytest.approx([at_s - 0.5 for at_s in schedule(load) if at_s >= 0.5], abs=1e-6)
    seen = [result.samples[-1].total(name) for name in ("dragoman_requests_total", "process_cpu_seconds_total")]
    assert min(result.summary.tokens_per_s, result.summary.generator_cpu_s or 0, *seen) > 0
