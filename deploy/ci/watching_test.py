"""`python -m deploy.ci.watching_test`: do the dashboards and alerts show what the server does?

Starts two replicas of the server on free ports of this machine, Envoy in front of one, and Prometheus and Alertmanager
with the configuration and rules that ship; only addresses and waits differ. Callers of the shipped client translate
texts, documents and streams, send invalid requests and short deadlines and cancel; a model is swapped, another one is
broken, and so are a callers file and a certificate. Then come far more calls than the server can answer, until an
alert of overload has reached a webhook.

What must hold: no alert of overload before there is any; every panel of every dashboard shows something; latency
panels have points that lead to traces; every variable has values; every rule is evaluated without an error, and every
recording rule records; promtool and amtool accept all files.

exit codes: 0 all of it held, or the programs cannot be had here (the line begins with SKIPPED), 1 it did not, 2 called
wrongly
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from deploy.ci import pictures, processes, shipped
from deploy.ci.callers import MixedCallers
from deploy.ci.prometheus import Prometheus, QueryError, RequestReader
from deploy.ci.servers import Replica, make_callers
from loadtests.generator.server import ServerError

_ALERT: Final = "DragomanRefusingCalls"
_LIMITED_REQUESTS_PER_S: Final = 0.5
_RATE_INTERVAL: Final = "15s"
_READY_TIMEOUT_S: Final = 30.0
_ALERT_TIMEOUT_S: Final = 60.0
_EVENT_EVERY_S: Final = 4.0
_SCRAPE_TIMEOUT_S: Final = 15.0
_OF_GPUS: Final = "dragoman_gpu_"
_MOST_WORK_OF_A_TOKEN: Final = 33  # beams times steps, and the token itself; a request within the limits must fit
_MAX_SENTENCES: Final = 96
_MAX_TOKENS: Final = 4096
_SETTINGS: Final = {
    "MODELS__POLL_INTERVAL_S": "1",
    "MODELS__SETTLE_S": "1",
    "ACCESS__RELOAD_INTERVAL_S": "1",
    "TLS__RELOAD_INTERVAL_S": "1",
    "SCHEDULING__NUM_WORKERS": "1",
    # Small, so that a few callers overload it.
    "SCHEDULING__MAX_QUEUE_SEGMENTS": str(_MAX_SENTENCES),
    "SCHEDULING__MAX_QUEUE_WORK_TOKENS": str(_MAX_TOKENS * _MOST_WORK_OF_A_TOKEN),
    "SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",  # the test is the only caller
    "LIMITS__MAX_REQUEST_SENTENCES": str(_MAX_SENTENCES),
    "LIMITS__MAX_REQUEST_WORK_TOKENS": str(_MAX_TOKENS * _MOST_WORK_OF_A_TOKEN),
    "LIMITS__MAX_REQUEST_SOURCE_TOKENS": str(_MAX_TOKENS),
    "TRACING__SAMPLE_RATIO": "1",
}


class WatchingError(Exception):
    """A condition of all the other checks does not hold."""


class Deployment(NamedTuple):
    """What runs."""

    prometheus: Prometheus
    receiver: RequestReader
    callers: MixedCallers
    plain: Replica
    """Behind Envoy."""
    tls: Replica


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    options = _parser().parse_args(arguments)
    folder = options.output.resolve()
    began_s = time.monotonic()
    try:
        tools, envoy = processes.unpacked_tools(folder / "tools"), processes.find_envoy(folder.parent)
        _check_files(tools)
        with ExitStack() as stack:
            figures, broken = _run(_start(stack, tools, envoy, folder), options)
    except processes.ToolMissingError as error:
        print(f"SKIPPED: {error}")
        return 0
    except (WatchingError, shipped.EmptyVariableError, processes.ProcessError, QueryError, ServerError) as error:
        print(f"watching_test: {error}", file=sys.stderr)
        return 1
    print(f"watching {figures} seconds={time.monotonic() - began_s:.0f}")
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def _check_files(tools: processes.DebianTools) -> None:
    """Let promtool and amtool read what ships; WatchingError if one of them rejects it."""
    checks: Sequence[tuple[Path, str, Sequence[Path]]] = (
        (tools.promtool, "check config", [shipped.PROMETHEUS / "prometheus.yml"]),
        (tools.promtool, "check rules --lint=all --lint-fatal", shipped.rule_files()),
        (tools.promtool, "test rules", sorted((shipped.PROMETHEUS / "rules" / "tests").glob("*.yaml"))),
        (tools.amtool, "check-config", [shipped.ALERTMANAGER]),
    )
    for program, verb, paths in checks:
        command = [str(program), *verb.split(), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - unpacked by us
        if done.returncode:
            raise WatchingError(f"{program.name} {verb}:\n{done.stdout}{done.stderr}")


def _start(stack: ExitStack, tools: processes.DebianTools, envoy: Path, folder: Path) -> Deployment:
    """Start everything, each ended by the stack."""
    keys, callers_file = make_callers(limited_requests_per_s=_LIMITED_REQUESTS_PER_S)
    prometheus_port, alertmanager_port, grpc_port, operators_port, admin_port, unused = processes.free_ports(6)
    settings = {**_SETTINGS, "TRACING__ENDPOINT": f"http://127.0.0.1:{unused}"}
    first, second = replicas = [
        stack.enter_context(Replica(name, folder, callers=callers_file, settings=settings, has_tls=has_tls))
        for name, has_tls in (("a", False), ("b", True))
    ]
    receiver = stack.enter_context(RequestReader())
    config = shipped.write_alertmanager(folder / "alertmanager.yml", webhook=receiver.url)
    storage = folder / "alertmanager"
    shutil.rmtree(storage, ignore_errors=True)  # else it would remember that it has sent the alert before
    flags = (f"--storage.path={storage}", "--cluster.listen-address=")
    _start_daemon(stack, config, alertmanager_port, *tools.alertmanager_command, *flags)
    first_port, second_port = (int(replica.server.target.rpartition(":")[2]) for replica in replicas)
    addresses = processes.Addresses(grpc=grpc_port, operators=operators_port, admin=admin_port, replicas=(first_port,))
    balancer = stack.enter_context(processes.EnvoyProcess(envoy, addresses, folder=folder))
    balancer.wait_for_replicas(1, timeout_s=_READY_TIMEOUT_S)
    targets = {
        "dragoman": [urlsplit(replica.server.metrics_url).netloc for replica in (first, second)],
        "envoy": [f"127.0.0.1:{operators_port}"],
        "alertmanager": [f"127.0.0.1:{alertmanager_port}"],
    }
    config = shipped.write_prometheus(
        folder / "prometheus", own_port=prometheus_port, targets=targets, shortened={_ALERT: "2s"}
    )
    flags = (f"--storage.tsdb.path={config.parent / 'data'}", "--enable-feature=exemplar-storage")
    url = _start_daemon(stack, config, prometheus_port, str(tools.prometheus), *flags)
    tls_target = f"localhost:{second_port}"
    callers = stack.enter_context(MixedCallers(balancer.target, tls_target, second.authority, keys))
    return Deployment(Prometheus(url), receiver, callers, first, second)


def _start_daemon(stack: ExitStack, config: Path, port: int, *command: str) -> str:
    """Start Prometheus or Alertmanager, whose common flags are alike; return its URL."""
    flags = (f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}")
    process = stack.enter_context(processes.Process(*command, *flags, log=config.with_suffix(".log")))
    process.wait_until_answers(f"http://127.0.0.1:{port}/-/ready", timeout_s=_READY_TIMEOUT_S)
    return f"http://127.0.0.1:{port}"


def _run(deployment: Deployment, options: argparse.Namespace) -> tuple[str, list[str]]:
    """Let everything happen and judge it; return the figures, and what does not hold."""
    prometheus = deployment.prometheus
    began_s = time.time()
    _change_replicas(deployment, quiet_s=options.quiet)
    early = _faults_before_overload(deployment)
    alert_to_webhook_s = _overload(deployment, at_least_s=options.overload)
    time.sleep(options.aftermath)
    ended_s = time.time()
    variables = shipped.choose_variables(_RATE_INTERVAL, prometheus.label_values)
    asked = shipped.queries(variables)
    marks = [expr for expr in shipped.annotations(variables) if not prometheus.at(expr, ended_s)]
    shown = [*_panel_faults(prometheus, asked, began_s, ended_s), *(f"empty: mark {expr}" for expr in marks)]
    recorded = [rule["record"] for rule in shipped.rules() if "record" in rule]
    exemplars = [prometheus.num_exemplars(query.expr, began_s, ended_s) for query in asked if query.has_exemplars]
    rules = prometheus.rules()
    if options.pictures:
        pictures.draw(prometheus, asked, began_s, ended_s)
    print("calls: " + ", ".join(f"{kind}={count}" for kind, count in sorted(deployment.callers.outcomes.items())))
    num_empty = sum(fault.startswith("empty: ") for fault in shown)
    figures = (
        f"panels={len({(query.board, query.panel) for query in asked})} queries={len(asked)} empty={num_empty}"
        f" rules={len(rules)} recorded={len(recorded)} exemplars={sum(exemplars)}"
        f" alert_to_webhook_s={alert_to_webhook_s:.1f}"
    )
    return figures, [
        *early,
        *shown,
        *(f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"),
        *(f"{name} records nothing" for name in recorded if not prometheus.at(name, ended_s)),
        *(["no latency panel leads to a trace"] if not any(exemplars) else []),
    ]


def _change_replicas(deployment: Deployment, *, quiet_s: float) -> None:
    """Change one thing after the other while calls go on, for so many seconds at least."""
    until_s = time.monotonic() + quiet_s
    changes = (
        partial(deployment.plain.bring_version, "2"),
        partial(deployment.plain.bring_version, "3", is_broken=True),
        deployment.tls.break_callers,
        deployment.tls.break_certificate,
    )
    for change in changes:
        time.sleep(_EVENT_EVERY_S)
        change()
    time.sleep(max(_EVENT_EVERY_S, until_s - time.monotonic()))


def _faults_before_overload(deployment: Deployment) -> list[str]:
    """Name an alert without a cause, and jobs that are not scraped; a scrape may be late on a busy machine."""
    fired = _ALERT in deployment.prometheus.firing() | deployment.receiver.names()
    until_s = time.monotonic() + _SCRAPE_TIMEOUT_S
    while (down := deployment.prometheus.jobs_down()) and time.monotonic() < until_s:
        time.sleep(1)
    return [f"job {job} has targets that are not up" for job in down] + [f"{_ALERT} fired without a cause"] * fired


def _overload(deployment: Deployment, *, at_least_s: float) -> float:
    """Offer too much until the alert has come; return the seconds from the first call to the webhook.

    Raises:
        WatchingError: if it does not come, or does not say what to do.
    """
    began_s = time.monotonic()
    deployment.callers.begin_overload()
    alert = deployment.receiver.wait_for(_ALERT, timeout_s=_ALERT_TIMEOUT_S)
    took_s = time.monotonic() - began_s
    if alert is None:
        raise WatchingError(f"{_ALERT} has not reached the webhook within {_ALERT_TIMEOUT_S:g} s")
    rule = next(rule for rule in shipped.rules() if rule.get("alert") == _ALERT)
    if alert["annotations"]["runbook_url"] != rule["annotations"]["runbook_url"]:
        raise WatchingError(f"{_ALERT} came without its runbook: {alert}")
    time.sleep(max(0.0, at_least_s - took_s))
    deployment.callers.end_overload()
    return took_s


def _panel_faults(
    prometheus: Prometheus, asked: Sequence[shipped.PanelQuery], began_s: float, ended_s: float
) -> Iterator[str]:
    """Name queries that return nothing, and labels that a legend shows and series of its query do not have.

    Of GPUs nothing may be returned: there may be none here.
    """
    for query in asked:
        at, over = prometheus.at, prometheus.over
        series = at(query.expr, ended_s) if query.is_instant else over(query.expr, began_s, ended_s)
        if not series and _OF_GPUS not in query.expr:
            yield f"empty: {query}"
        for label in sorted(query.legend_labels):
            if any(label not in each.labels for each in series):
                yield f"series lack {label}, which the legend shows: {query}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quiet", type=float, default=20.0, metavar="S", help="seconds of ordinary calls before the overload (20)")
    add(
        "--overload", type=float, default=0.0, metavar="S", help="seconds of overload, at least (until the alert comes)"
    )
    add("--aftermath", type=float, default=3.0, metavar="S", help="seconds of ordinary calls after it (3)")
    add("--pictures", action="store_true", help="draw the panels into docs/operations/pictures")
    add("--output", type=Path, default=Path("build/watching-test"), metavar="DIR", help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
