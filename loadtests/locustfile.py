"""Load tests with Locust.

locust -f loadtests/locustfile.py                                               # web page, started server
locust -f loadtests/locustfile.py --headless --host localhost:50051 --users 20 --run-time 1m --slo "p95<400ms,errors<1%"

Each user is an independent caller in an open loop: its calls are sent at their due times, from which their latency
counts. `--users 20 --rate 1` offers 20 calls per second. The users and shapes are in `loadtests.load`.
"""

import atexit
import json
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gevent
import grpc.experimental.gevent
import locust.main
import locust.stats
import locust.web
from locust import events
from locust.runners import STATE_RUNNING, STATE_SPAWNING, STATE_STOPPING, MasterRunner

from loadtests.generator.metrics import Sample, scrape
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS
from loadtests.generator.slo import Slo, parse_slo
from loadtests.load import flags, server_metrics, shapes
from loadtests.load.results import violations
from loadtests.load.users import (
    ChatUser,
    DocumentUser,
    HttpApiUser,
    LinesUser,
    MixedUser,
    ParagraphUser,
    SentenceUser,
    TranslatingUser,
)

__all__ = ["ChatUser", "DocumentUser", "HttpApiUser", "LinesUser", "MixedUser", "ParagraphUser", "SentenceUser"]

_INTERVAL_S: Final = 1.0
_ANSWER_S: Final = 10.0  # of a worker, beyond --stop-timeout
_MARGIN_S: Final = 1.0
_TAB: Final = "dragoman"
_FINISH: Final = "dragoman-finish"  # message from the master to its workers
_FINISHED: Final = "dragoman-finished"  # the answer
_ACTIVE: Final = (STATE_SPAWNING, STATE_RUNNING)


class Test:
    """The state of a test in the master, or in the only process."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.tally = TranslatingUser.tally
        self.samples: list[Sample] = []
        self.workers: set[str] = set()
        self.lost_workers: set[str] = set()
        self.server: Any = None  # if it was started

    @property
    def options(self) -> Namespace:
        """The flags, which the web page can change."""
        options: Namespace = self.environment.parsed_options
        return options

    @property
    def slo(self) -> Slo | None:
        """The thresholds."""
        return parse_slo(self.options.slo) if self.options.slo else None

    def start_server(self) -> None:
        """Start a server, and address it; sys.exit if it is not installed or does not start."""
        try:
            from dragoman_service.cli.server_process import ServerProcess, ServerProcessError  # noqa: PLC0415 - optional
        except ImportError as error:
            sys.exit(f"locustfile: --host HOST:PORT is required, as no server is installed here ({error})")
        given = ["--models", self.options.models] if self.options.models else []
        self.server = ServerProcess(*given, process_group=0)  # Ctrl-C must not end it before the users
        atexit.register(self.server.__exit__)
        try:
            self.server.wait_until_ready()
        except ServerProcessError as error:
            sys.exit(f"locustfile: {error}")
        self.environment.host = self.options.host = self.server.target
        self.options.metrics_url = self.server.metrics_url
        self.options.http_url = f"http://127.0.0.1:{self.server.http_port}"

    def begin(self) -> None:
        """Forget the last test, and leave the calls in flight at the end the time until their deadline."""
        workloads = [cls.workload(self.options) for cls in self.environment.user_classes]
        timeouts_s = (workload.deadline_s + _MARGIN_S for workload in workloads)
        self.environment.stop_timeout = max(self.environment.stop_timeout, *timeouts_s)
        self.tally.take()
        self.samples.clear()
        self.lost_workers.clear()
        self.workers = set(getattr(self.environment.runner, "clients", ()))

    def observe(self) -> None:
        """Look for lost workers during the test, and sample the metrics of the server if their address is known."""
        runner = self.environment.runner
        if runner.state in _ACTIVE and isinstance(runner, MasterRunner):
            self.lost_workers |= self.workers - _connected(runner)
        if self.options.metrics_url and runner.state in (*_ACTIVE, STATE_STOPPING):
            try:
                values = scrape(self.options.metrics_url)
            except (OSError, ValueError):
                values = {}
            self.samples.append(Sample(at_s=time.monotonic(), values=values))

    def failures(self) -> list[str]:
        """Return a sentence for each reason that the test fails."""
        slo, given_ms = self.slo, self.options.max_lag
        max_lag_ms = float(given_ms or (MAX_GENERATOR_LAG_P99_MS if slo else math.inf))
        limits: dict[str, Any] = {"slo": slo, "max_lag_ms": max_lag_ms}
        return violations(self.tally, self.environment.stats.total, **limits, lost_workers=self.lost_workers)

    def figures(self) -> dict[str, str]:
        """Return the figures of the result line."""
        known = self.tally.figures(self.environment.stats.total)
        latencies = {name: known.pop(name) for name in ("p50", "p95", "p99", "max")}
        return {
            **{f"{name}_ms": "none" if one is None else f"{1000 * one:.0f}" for name, one in latencies.items()},
            "calls": str(self.tally.outcomes.total()),
            "goodput_per_s": f"{known['goodput/s']:.1f}",
            **{name: f"{known[name]:.4f}" for name in ("goodput", "rejected", "late", "errors")},
            **{f"mean_{stage}_ms": f"{mean_ms:.1f}" for stage, mean_ms in self.tally.stage_means_ms().items()},
            "generator_lag_p99_ms": f"{self.tally.lag_ms(0.99):.0f}",
            "lost_workers": str(len(self.lost_workers)),
        }

    def table(self) -> list[dict[str, str]]:
        """Return the rows of the tab of the web page."""
        rows = [{"name": name, "value": text} for name, text in self.figures().items()]
        for name, points in server_metrics.series_of(self.samples).items() if self.samples else ():
            if points:
                rows.append({"name": f"server: {name}", "value": f"{points[-1][1]:.4g}"})
        return rows + [{"name": "failed", "value": sentence} for sentence in self.failures()]

    def section(self) -> str:
        """Return the section of the HTML report."""
        series = server_metrics.series_of(self.samples) if self.samples else {}
        return server_metrics.report_section(self.figures(), self.failures(), series)

    def conclude(self) -> None:
        """Set the exit code, print the result, write the CSV of the server, and stop it."""
        self.observe()
        self.environment.runner.quit()
        failures = self.failures()
        if self.options.csv_prefix:
            gevent.sleep(1.1 * locust.stats.CSV_STATS_INTERVAL_SEC)  # until Locust has written the last calls
            if self.samples:
                path = Path(f"{self.options.csv_prefix}_server.csv")
                server_metrics.write_csv(path, server_metrics.series_of(self.samples))
        if self.server is not None and (exit_code := self.server.stop()):
            failures.append(f"server exited with {exit_code}")
        for sentence in failures:
            print(f"broken: {sentence}", file=sys.stderr)
        print("loadtest", *(f"{name}={text}" for name, text in self.figures().items()), flush=True)
        if failures:
            self.environment.process_exit_code = 1
        elif self.slo:
            self.environment.process_exit_code = 0


def prepare_process(environment: Any, runner: Any, web_ui: Any, **_: Any) -> None:
    """Prepare this process, after Locust has forked its workers."""
    if environment.parsed_options.worker:
        _prepare_worker(runner)
        return
    test = Test(environment)
    if not environment.host:
        test.start_server()
    grpc.experimental.gevent.init_gevent()  # gRPC must wait with gevent, or the first call would block all users
    options = test.options
    if not options.user_classes:
        environment.user_classes = [environment.available_user_classes[flags.USERS[options.texts]]]
    known = {name: getattr(shapes, cls)() for name, cls in flags.SHAPES.items()}
    environment.available_shape_classes = {flags.SHAPES[name]: shape for name, shape in known.items()}
    for shape in known.values():
        shape.runner = runner
    environment.shape_class = known.get(options.shape)
    try:
        _check(test)
    except (OSError, ValueError) as error:
        sys.exit(f"locustfile: {error}")
    events.test_start.add_listener(lambda **_: test.begin())
    events.quitting.add_listener(lambda **_: test.conclude())
    if isinstance(runner, MasterRunner):
        events.worker_report.add_listener(lambda data, **_: test.tally.merge(data.get(_TAB, {})))
        finished = set[str]()
        runner.register_message(_FINISHED, lambda msg, **_: finished.add(msg.node_id))
        events.test_stop.add_listener(lambda **_: _wait_for_workers(runner, finished))
    else:
        events.test_start.add_listener(lambda **_: TranslatingUser.prepared.clear())
    for module in (locust.main, locust.web):
        module.get_html_report = _with_section(module.get_html_report, test.section)
    if web_ui:
        _add_tab(web_ui, test.table)
    gevent.spawn(_repeat, test.observe)
    gevent.get_hub().loop.update_now()  # --run-time counts from the time of the loop, which start-up has delayed


def _check(test: Test) -> None:
    options = test.options
    if options.rate < 0 or options.pause < 0:
        raise ValueError(f"--rate {options.rate:g}, --pause {options.pause:g}: expected at least 0")
    if test.environment.shape_class and options.headless and not (options.run_time and options.num_users):
        raise ValueError(f"--shape {options.shape} requires --users and --run-time")
    test.slo  # noqa: B018 - raises for invalid thresholds
    for cls in test.environment.user_classes:
        cls.prepare(options, test.environment.host)
    if options.metrics_url:
        scrape(options.metrics_url)


def _prepare_worker(runner: Any) -> None:
    grpc.experimental.gevent.init_gevent()
    events.test_start.add_listener(lambda **_: TranslatingUser.prepared.clear())
    runner.register_message(_FINISH, lambda **_: _finish(runner), concurrent=True)
    events.report_to_master.add_listener(lambda data, **_: data.update({_TAB: TranslatingUser.tally.take()}))


def _finish(runner: Any) -> None:
    """Wait for the calls of this worker, within --stop-timeout, and report them."""
    runner.stop()
    runner._send_stats()  # as Locust does when a worker ends
    runner.send_message(_FINISHED)


def _connected(runner: MasterRunner) -> set[str]:
    return {client.id for client in runner.clients.ready + runner.clients.spawning + runner.clients.running}


def _wait_for_workers(runner: MasterRunner, finished: set[str]) -> None:
    """Let the workers finish their calls before Locust ends them, which would lose the slowest ones."""
    finished.clear()
    runner.send_message(_FINISH)
    with gevent.Timeout(runner.environment.stop_timeout + _ANSWER_S, False):
        while _connected(runner) - finished:
            gevent.sleep(0.1)


def _repeat(observe: Callable[[], None]) -> None:
    while True:
        observe()
        gevent.sleep(_INTERVAL_S)


def _with_section(render: Callable[..., str], section: Callable[[], str]) -> Callable[..., str]:
    def render_both(*args: Any, **options: Any) -> str:
        page, end, rest = render(*args, **options).rpartition("</body>")  # scripts contain it as well
        return f"{page}{section()}{end}{rest}"

    return render_both


def _add_tab(web_ui: Any, table: Callable[[], list[dict[str, str]]]) -> None:
    """Add a tab with the figures and the metrics of the server to the web page of Locust."""
    columns = [{"key": key, "title": title} for key, title in (("name", "Figure"), ("value", "Value"))]
    web_ui.template_args |= {
        "extended_tabs": [{"title": "Dragoman", "key": _TAB}],
        "extended_tables": [{"key": _TAB, "structure": columns}],
    }

    def extend(response: Any) -> Any:
        if response.is_json and "stats" in response.json:
            response.set_data(json.dumps({**response.json, "extended_stats": [{"key": _TAB, "data": table()}]}))
        return response

    web_ui.app.after_request(extend)


locust.stats.PERCENTILES_TO_CHART = [0.5, 0.95, 0.99]
locust.stats.HISTORY_STATS_INTERVAL_SEC = 1  # of the charts in the report
events.init_command_line_parser.add_listener(lambda parser, **_: flags.add_flags(parser))
events.init.add_listener(prepare_process)
