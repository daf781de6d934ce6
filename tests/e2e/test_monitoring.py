"""The shipped dashboards, rules and alerts against real servers, Envoy, Prometheus and Alertmanager."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.e2e.callers import MixedCallers
from tests.e2e.monitoring import (
    ALERTMANAGER,
    DASHBOARDS,
    PROMETHEUS,
    RULE_FILES,
    AlertReceiver,
    Prometheus,
    choose_variables,
    panel_targets,
    rules,
    substitute,
    write_alertmanager,
    write_prometheus,
)
from tests.e2e.processes import Envoy, MonitoringTools, Process, envoy_binary, monitoring_tools
from tests.e2e.replicas import Replica, make_key
from tests.e2e.tools import get, run
from tests.integration.real_process import free_ports
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ALERT: Final = "DragomanRejectingRequests"
RATE_INTERVAL: Final = "15s"
READY_TIMEOUT_S: Final = 30.0
ALERT_TIMEOUT_S: Final = 60.0
SCRAPE_TIMEOUT_S: Final = 15.0
CHANGE_EVERY_S: Final = 4.0
AFTERMATH_S: Final = 3.0
MAX_SENTENCES: Final = 96
MAX_TOKENS: Final = 4096
MAX_WORK_TOKENS: Final = MAX_TOKENS * 33  # beams times steps, and the token itself; an admissible request must fit
SETTINGS: Final = {
    "MODELS__POLL_INTERVAL_S": "1",
    "MODELS__SETTLE_S": "1",
    "ACCESS__RELOAD_INTERVAL_S": "1",
    "TLS__RELOAD_INTERVAL_S": "1",
    "SCHEDULING__NUM_WORKERS": "1",
    # Small limits, so that a few callers overload the server.
    "SCHEDULING__MAX_QUEUE_SEGMENTS": str(MAX_SENTENCES),
    "SCHEDULING__MAX_QUEUE_DECODE_COST": str(MAX_WORK_TOKENS),
    "SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",  # nearly all requests come from one caller
    "LIMITS__MAX_REQUEST_SENTENCES": str(MAX_SENTENCES),
    "LIMITS__MAX_REQUEST_DECODE_COST": str(MAX_WORK_TOKENS),
    "LIMITS__MAX_REQUEST_SOURCE_TOKENS": str(MAX_TOKENS),
    "TRACING__SAMPLE_RATIO": "1",
}


class Deployment(NamedTuple):
    """Running parts: Envoy balances calls to `plain` only; callers reach `tls` directly."""

    prometheus: Prometheus
    receiver: AlertReceiver
    callers: MixedCallers
    plain: Replica
    tls: Replica


@pytest.fixture(scope="module")
def tools() -> MonitoringTools:
    return monitoring_tools()


@pytest.fixture(scope="module")
def deployment(tools: MonitoringTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("monitoring")
    api_key, entry = make_key("test")
    limited_key, limited_entry = make_key("limited", requests_per_s=0.5)
    prometheus_port, alertmanager_port, unused_port = free_ports(3)
    settings = {**SETTINGS, "TRACING__ENDPOINT": f"http://127.0.0.1:{unused_port}"}

    def start(config: Path, port: int, *command: str | Path) -> str:
        url = f"http://127.0.0.1:{port}"
        flags = (f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}")
        process = stack.enter_context(Process(*command, *flags, log=config.with_suffix(".log")))
        process.wait_until(lambda: get(f"{url}/-/ready")[0] == 200, timeout_s=READY_TIMEOUT_S)
        return url

    with ExitStack() as stack:
        plain, tls = [
            stack.enter_context(
                Replica(name, folder, callers=f"{entry}\n{limited_entry}", settings=settings, has_tls=name == "tls")
            )
            for name in ("plain", "tls")
        ]
        receiver = stack.enter_context(AlertReceiver())
        config = write_alertmanager(folder / "alertmanager.yml", webhook=receiver.url)
        flags = (f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address=")
        start(config, alertmanager_port, *tools.alertmanager, *flags)
        envoy = stack.enter_context(Envoy(envoy_binary(), [plain.ports], folder=folder))
        envoy.wait_for_replicas(1, timeout_s=READY_TIMEOUT_S)
        targets = {
            "dragoman": [urlsplit(replica.server.metrics_url).netloc for replica in (plain, tls)],
            "envoy": [f"127.0.0.1:{envoy.operators_port}"],
            "alertmanager": [f"127.0.0.1:{alertmanager_port}"],
        }
        config = write_prometheus(
            folder / "prometheus", own_port=prometheus_port, targets=targets, hold_times={ALERT: "2s"}
        )
        flags = (f"--storage.tsdb.path={config.parent / 'data'}", "--enable-feature=exemplar-storage")
        url = start(config, prometheus_port, tools.prometheus, *flags)
        callers = stack.enter_context(
            MixedCallers(
                envoy.target, f"localhost:{tls.ports.grpc}", tls.authority, api_key=api_key, limited_key=limited_key
            )
        )
        yield Deployment(Prometheus(url), receiver, callers, plain, tls)


@pytest.mark.parametrize(
    ("program", "verb", "paths"),
    [
        ("promtool", "check config", [PROMETHEUS / "prometheus.yml"]),
        ("promtool", "check rules --lint=all --lint-fatal", RULE_FILES),
        ("promtool", "test rules", sorted((PROMETHEUS / "rules" / "tests").glob("*.yaml"))),
        ("amtool", "check-config", [ALERTMANAGER]),
    ],
)
def test_configuration_is_accepted(tools: MonitoringTools, program: str, verb: str, paths: list[Path]) -> None:
    run(getattr(tools, program), *verb.split(), *paths)


def test_dashboards_and_alerts_show_load_changes_and_overload(deployment: Deployment) -> None:
    prometheus, callers = deployment.prometheus, deployment.callers
    began_s = time.time()

    change_replicas(deployment)
    wait_until(lambda: not prometheus.jobs_down(), timeout_s=SCRAPE_TIMEOUT_S, state=prometheus.jobs_down)
    firing = {rule["name"] for rule in prometheus.rules() if rule.get("state") == "firing"}
    assert ALERT not in firing | set(deployment.receiver.alerts)
    overload(deployment)
    time.sleep(AFTERMATH_S)
    ended_s = time.time()

    variables = choose_variables(
        RATE_INTERVAL, lambda label, series: prometheus.fetch(f"label/{label}/values", **{"match[]": series})
    )
    faults, has_exemplars = [], False
    for place, target in panel_targets():
        expr = substitute(target["expr"], variables)
        if target.get("instant"):
            rows = prometheus.query(expr, ended_s)
        else:
            rows = prometheus.query_range(expr, began_s, ended_s)
        if not rows and "dragoman_gpu_" not in expr:
            faults.append(f"no data: {place}")
        missing = {
            label for label in re.findall(r"{{(\w+)}}", target["legendFormat"]) for row in rows if label not in row
        }
        faults += [f"series lack {label}, which the legend shows: {place}" for label in missing]
        if target.get("exemplar"):
            has_exemplars |= prometheus.has_exemplars(expr, began_s, ended_s)
    marks = [mark["expr"] for board in DASHBOARDS.values() for mark in board["annotations"]["list"]]
    for expr in (*marks, *(rule["record"] for rule in rules() if "record" in rule)):
        if not prometheus.query(substitute(expr, variables), ended_s):
            faults.append(f"no data: {expr}")
    faults += [f"{rule['name']}: {rule.get('lastError')}" for rule in prometheus.rules() if rule["health"] != "ok"]
    print("calls: " + ", ".join(f"{kind}={count}" for kind, count in sorted(callers.outcomes.items())))
    assert faults == []
    assert has_exemplars


def change_replicas(deployment: Deployment) -> None:
    """Load a new version and a broken one, and break a callers file and a certificate, while callers continue."""
    for change in (
        partial(deployment.plain.add_version, "2"),
        partial(deployment.plain.add_version, "3", is_broken=True),
        deployment.tls.break_callers,
        deployment.tls.break_certificate,
    ):
        time.sleep(CHANGE_EVERY_S)
        change()
    time.sleep(CHANGE_EVERY_S)


def overload(deployment: Deployment) -> None:
    """Overload the server until the alert reaches the webhook with the link to its runbook."""
    began_s = time.monotonic()
    deployment.callers.begin_overload()
    alert = wait_until(lambda: deployment.receiver.alerts.get(ALERT), timeout_s=ALERT_TIMEOUT_S)
    deployment.callers.end_overload()
    assert alert is not None
    rule = next(rule for rule in rules() if rule.get("alert") == ALERT)
    assert alert["annotations"]["runbook_url"] == rule["annotations"]["runbook_url"]
    print(f"overload to webhook: {time.monotonic() - began_s:.1f} s")
