"""`python -m deploy.ci.watching_test`: do the dashboards and alerts show what the server does?"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deploy.ci.processes import (
    Addresses,
    DebianTools,
    EnvoyProcess,
    Process,
    ProcessError,
    ToolMissingError,
    find_envoy,
    free_ports,
    unpacked_tools,
)
from deploy.ci.servers import Replica, make_callers
from deploy.ci.watching import boards, pictures, shipped
from deploy.ci.watching.load import Load
from deploy.ci.watching.prometheus import Prometheus, QueryError
from deploy.ci.watching.receiver import Receiver
from loadtests.target import ServerError

_DESCRIPTION: Final = """\
Starts two replicas of the server on free ports of this machine, Envoy in front of one, and Prometheus and Alertmanager
with the configuration and rules that ship; only addresses and waits differ. Callers of the shipped client translate
texts, documents and streams, make mistakes, are in a hurry and leave; a model is swapped, another one is broken, and so
are a callers file and a certificate. Then far too many calls come, until an alert of overload has reached a webhook.

What must hold: no alert of overload before there is any; every panel of every dashboard shows something; latency
panels have points that lead to traces; every variable has values; every rule is evaluated without an error, and every
recording rule records; promtool and amtool find no fault.

exit codes: 0 all of it held, or the programs cannot be had here (the line begins with SKIPPED), 1 it did not, 2 called
wrongly"""

_ALERT: Final = "DragomanRefusingCalls"
_LIMITED_REQUESTS_PER_S: Final = 0.5
_RATE_INTERVAL: Final = "15s"
_READY_TIMEOUT_S: Final = 30.0
_ALERT_TIMEOUT_S: Final = 60.0
_EVENT_EVERY_S: Final = 5.0
_AFTERMATH_S: Final = 3.0
_STEP_S: Final = 1.0
_SCRAPE_TIMEOUT_S: Final = 15.0
_MOST_WORK_OF_A_TOKEN: Final = 33  # beams times steps, and the token itself; a request within the limits must fit
_MAX_SENTENCES: Final = 96
_MAX_TOKENS: Final = 4096
_SETTINGS: Final = {
    "MODELS__POLL_INTERVAL_S": "1",
    "MODELS__SETTLE_S": "1",
    "ACCESS__RELOAD_INTERVAL_S": "1",
    "TLS__RELOAD_INTERVAL_S": "1",
    "SCHEDULING__NUM_DECODING_THREADS": "1",
    # Small, so that a few callers overload it.
    "SCHEDULING__MAX_QUEUE_SEGMENTS": str(_MAX_SENTENCES),
    "SCHEDULING__MAX_QUEUE_WORK_TOKENS": str(_MAX_TOKENS * _MOST_WORK_OF_A_TOKEN),
    "LIMITS__MAX_REQUEST_SENTENCES": str(_MAX_SENTENCES),
    "LIMITS__MAX_REQUEST_SOURCE_TOKENS": str(_MAX_TOKENS),
    "TRACING__SAMPLE_RATIO": "1",
}


class WatchingError(Exception):
    """Something did not hold that all the rest builds on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What runs."""

    prometheus: Prometheus
    receiver: Receiver
    load: Load
    replicas: Sequence[Replica]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found."""

    num_panels: int
    num_queries: int
    num_recorded: int
    num_rules: int
    num_exemplars: int
    alert_to_webhook_s: float
    broken: Sequence[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    options = _parser().parse_args(arguments)
    began_s = time.monotonic()
    try:
        tools = unpacked_tools(options.output.resolve() / "tools")
        envoy = find_envoy(options.output.resolve().parent)
    except ToolMissingError as error:
        print(f"SKIPPED: {error}")
        return 0
    try:
        outcome = _run(tools, envoy, options)
    except (WatchingError, boards.EmptyVariableError, ProcessError, QueryError, ServerError) as error:
        print(f"watching_test: {error}", file=sys.stderr)
        return 1
    print(_line(outcome, duration_s=time.monotonic() - began_s))
    for sentence in outcome.broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if outcome.broken else 0


def _run(tools: DebianTools, envoy: Path, options: argparse.Namespace) -> Outcome:
    folder = options.output.resolve()
    _check_files(tools)
    with ExitStack() as stack:
        stage = _start(stack, tools, envoy, folder)
        began_s = time.time()
        _happen(stage, quiet_s=options.quiet)
        broken = _too_early(stage)
        alert_to_webhook_s = _overload(stage, at_least_s=options.storm)
        time.sleep(max(_AFTERMATH_S, options.aftermath))
        ended_s = time.time()
        values = boards.chosen(_RATE_INTERVAL, stage.prometheus.label_values)
        outcome = _judge(
            stage.prometheus, values, (began_s, ended_s), alert_to_webhook_s=alert_to_webhook_s, broken=broken
        )
        if options.pictures:
            pictures.draw(stage.prometheus, boards.queries(values), began_s, ended_s)
        print("calls: " + ", ".join(f"{kind}={count}" for kind, count in sorted(stage.load.outcomes.items())))
    return outcome


def _check_files(tools: DebianTools) -> None:
    """Let promtool and amtool read what ships.

    Raises:
        WatchingError: if one of them finds fault with it.
    """
    tests = sorted((shipped.PROMETHEUS / "rules" / "tests").glob("*.yaml"))
    checks: Sequence[tuple[Path, str, Sequence[Path]]] = (
        (tools.promtool, "check config", [shipped.PROMETHEUS / "prometheus.yml"]),
        (tools.promtool, "check rules --lint=all --lint-fatal", shipped.rule_files()),
        (tools.promtool, "test rules", tests),
        (tools.amtool, "check-config", [shipped.ALERTMANAGER]),
    )
    for program, verb, paths in checks:
        command = [str(program), *verb.split(), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - unpacked by us
        if done.returncode:
            raise WatchingError(f"{program.name} {verb}:\n{done.stdout}{done.stderr}")


def _start(stack: ExitStack, tools: DebianTools, envoy: Path, folder: Path) -> Stage:
    """Start everything, each ended by the stack."""
    keys, callers = make_callers(limited_requests_per_s=_LIMITED_REQUESTS_PER_S)
    prometheus_port, alertmanager_port, grpc_port, operators_port, admin_port, unused = free_ports(6)
    settings = {**_SETTINGS, "TRACING__ENDPOINT": f"http://127.0.0.1:{unused}"}
    first, second = replicas = [
        stack.enter_context(Replica(name, folder, callers=callers, settings=settings, has_tls=has_tls))
        for name, has_tls in (("a", False), ("b", True))
    ]
    addresses = Addresses(
        grpc=grpc_port, operators=operators_port, admin=admin_port, replicas=(_port(first.server.target),)
    )
    receiver = stack.enter_context(Receiver())
    _start_alertmanager(stack, tools, folder, alertmanager_port, receiver)
    balancer = stack.enter_context(EnvoyProcess(envoy, addresses, folder=folder))
    balancer.wait_for_replicas(len(addresses.replicas), timeout_s=_READY_TIMEOUT_S)
    targets = {
        "dragoman": [urlsplit(replica.server.metrics_url).netloc for replica in replicas],
        "envoy": [f"127.0.0.1:{operators_port}"],
        "alertmanager": [f"127.0.0.1:{alertmanager_port}"],
    }
    prometheus = _start_prometheus(stack, tools, folder, prometheus_port, targets)
    tls_target = f"localhost:{_port(second.server.target)}"
    load = stack.enter_context(Load(balancer.target, tls_target, second.authority, keys))
    return Stage(prometheus=prometheus, receiver=receiver, load=load, replicas=replicas)


def _port(target: str) -> int:
    return int(target.rpartition(":")[2])


def _start_alertmanager(stack: ExitStack, tools: DebianTools, folder: Path, port: int, receiver: Receiver) -> None:
    address = f"127.0.0.1:{port}"
    config = shipped.write_alertmanager(folder / "alertmanager.yml", webhook=receiver.url)
    storage = folder / "alertmanager"
    shutil.rmtree(storage, ignore_errors=True)  # else it would know that it has told of the alert before
    flags = (f"--config.file={config}", f"--web.listen-address={address}", f"--storage.path={storage}")
    command = (*tools.alertmanager_command, *flags, "--cluster.listen-address=")
    process = stack.enter_context(Process(*command, log=folder / "alertmanager.log"))
    process.wait_until_answers(f"http://{address}/-/ready", timeout_s=_READY_TIMEOUT_S)


def _start_prometheus(
    stack: ExitStack, tools: DebianTools, folder: Path, port: int, targets: Mapping[str, Sequence[str]]
) -> Prometheus:
    address = f"127.0.0.1:{port}"
    config = shipped.write_prometheus(folder / "prometheus", own_port=port, targets=targets, shortened={_ALERT: "2s"})
    flags = (f"--storage.tsdb.path={config.parent / 'data'}", "--enable-feature=exemplar-storage")
    command = (str(tools.prometheus), f"--config.file={config}", f"--web.listen-address={address}", *flags)
    process = stack.enter_context(Process(*command, log=folder / "prometheus.log"))
    process.wait_until_answers(f"http://{address}/-/ready", timeout_s=_READY_TIMEOUT_S)
    return Prometheus(f"http://{address}")


def _happen(stage: Stage, *, quiet_s: float) -> None:
    """Let one thing after the other happen to the replicas while callers go on."""
    plain, tls = stage.replicas
    until_s = time.monotonic() + quiet_s
    events = (
        partial(plain.bring_version, "2"),
        partial(plain.bring_version, "3", is_broken=True),
        tls.break_callers,
        tls.break_certificate,
    )
    for event in events:
        time.sleep(_EVENT_EVERY_S)
        event()
    time.sleep(max(_EVENT_EVERY_S, until_s - time.monotonic()))


def _too_early(stage: Stage) -> list[str]:
    """Say what is wrong before there is any overload."""
    fired = _ALERT in stage.prometheus.firing() | stage.receiver.names()
    return [*_down(stage.prometheus), *([f"{_ALERT} fired without a cause"] if fired else [])]


def _down(prometheus: Prometheus) -> list[str]:
    """Say which jobs have targets that cannot be scraped; a scrape may be late while the machine is busy."""
    until_s = time.monotonic() + _SCRAPE_TIMEOUT_S
    while down := [job for job, health in prometheus.targets().items() if set(health) != {"up"}]:
        if time.monotonic() > until_s:
            return [f"job {job} has targets that are not up" for job in down]
        time.sleep(_STEP_S)
    return []


def _overload(stage: Stage, *, at_least_s: float) -> float:
    """Offer too much until the alert has come; return the seconds from the first call to the webhook.

    Raises:
        WatchingError: if it does not come, or does not say what to do.
    """
    began_s = time.monotonic()
    stage.load.begin_storm()
    alert = stage.receiver.wait_for(_ALERT, timeout_s=_ALERT_TIMEOUT_S)
    took_s = time.monotonic() - began_s
    if alert is None:
        raise WatchingError(f"{_ALERT} has not reached the webhook within {_ALERT_TIMEOUT_S:g} s")
    rule = next(rule for rule in shipped.rules() if rule.get("alert") == _ALERT)
    if alert["annotations"]["runbook_url"] != rule["annotations"]["runbook_url"]:
        raise WatchingError(f"{_ALERT} came without its runbook: {alert}")
    time.sleep(max(0.0, at_least_s - took_s))
    stage.load.end_storm()
    return took_s


def _judge(
    prometheus: Prometheus,
    values: Mapping[str, str],
    times_s: tuple[float, float],
    *,
    alert_to_webhook_s: float,
    broken: Sequence[str],
) -> Outcome:
    """Ask everything that a person would look at between two times."""
    began_s, ended_s = times_s
    asked = boards.queries(values)
    recorded = [rule["record"] for rule in shipped.rules() if "record" in rule]
    exemplars = [
        prometheus.num_exemplars(query.expr, start_s=began_s, end_s=ended_s) for query in asked if query.has_exemplars
    ]
    found = [
        *broken,
        *_empty_panels(prometheus, asked, began_s, ended_s),
        *(f"empty: mark {expr}" for expr in boards.annotations(values) if not prometheus.at(expr, ended_s)),
        *(f"{rule['name']}: {rule.get('lastError')}" for rule in prometheus.rules() if rule["health"] != "ok"),
        *(f"{name} records nothing" for name in recorded if not prometheus.at(name, ended_s)),
        *(["no latency panel leads to a trace"] if not any(exemplars) else []),
    ]
    return Outcome(
        num_panels=len({(query.board, query.panel) for query in asked}),
        num_queries=len(asked),
        num_recorded=len(recorded),
        num_rules=len(prometheus.rules()),
        num_exemplars=sum(exemplars),
        alert_to_webhook_s=alert_to_webhook_s,
        broken=found,
    )


def _empty_panels(
    prometheus: Prometheus, asked: Sequence[boards.BoardQuery], began_s: float, ended_s: float
) -> Iterator[str]:
    """Say which queries show nothing, and which have series that their legend cannot name."""
    for query in asked:
        if query.is_instant:
            series = prometheus.at(query.expr, ended_s)
        else:
            series = prometheus.over(query.expr, start_s=began_s, end_s=ended_s, step_s=_STEP_S)
        if not series:
            yield f"empty: {query}"
        for label in sorted(query.legend_labels):
            if any(label not in each.labels for each in series):
                yield f"series lack {label}, which the legend shows: {query}"


def _line(outcome: Outcome, *, duration_s: float) -> str:
    empty = sum(sentence.startswith("empty: ") for sentence in outcome.broken)
    return (
        f"watching panels={outcome.num_panels} queries={outcome.num_queries} empty={empty}"
        f" rules={outcome.num_rules} recorded={outcome.num_recorded}"
        f" exemplars={outcome.num_exemplars} alert_to_webhook_s={outcome.alert_to_webhook_s:.1f}"
        f" seconds={duration_s:.0f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.ci.watching_test",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quiet", type=float, default=25.0, metavar="S", help="seconds of ordinary calls before the storm (25)")
    add("--storm", type=float, default=0.0, metavar="S", help="seconds of the storm, at least (until the alert comes)")
    add("--aftermath", type=float, default=_AFTERMATH_S, metavar="S", help="seconds of ordinary calls after it (3)")
    add("--pictures", action="store_true", help="draw the panels into docs/operations/pictures")
    add("--output", type=Path, default=Path("build/watching-test"), metavar="DIR", help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
