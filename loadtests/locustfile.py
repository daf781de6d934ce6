"""Load tests with Locust.

locust -f loadtests/locustfile.py                                               # web page, started server
locust -f loadtests/locustfile.py --headless --host localhost:50051 --users 20 --run-time 1m --slo "p95<400ms,errors<1%"

Each user is an independent caller in an open loop: its calls are sent at their due times, from which their latency
counts. `--users 20 --rate 1` offers 20 calls per second. The users and shapes are in `loadtests.load`.
"""

import atexit
import math
import sys
import time
from argparse import Namespace
from typing import Any, Final

import gevent
import grpc.experimental.gevent
import locust.stats
from locust import events
from locust.runners import MasterRunner

from loadtests.generator.metrics import Sample, scrape
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS
from loadtests.generator.slo import Slo, parse_slo
from loadtests.load import flags, shapes
from loadtests.load.results import count_outcomes, figures_of, server_figures, violations
from loadtests.load.users import (
    LAG,
    STAGE,
    ChatUser,
    DocumentUser,
    HttpApiUser,
    LinesUser,
    MixedUser,
    ParagraphUser,
    SentenceUser,
    TranslatingUser,
    merge_timings,
    timings,
)

__all__ = ["ChatUser", "DocumentUser", "HttpApiUser", "LinesUser", "MixedUser", "ParagraphUser", "SentenceUser"]

_REPORT_S: Final = 10.0  # for the last reports of workers, beyond --stop-timeout
_MARGIN_S: Final = 1.0
_TIMINGS: Final = "dragoman-timings"  # in the reports of workers
_FINISH: Final = "dragoman-finish"  # message from the master to its workers


class Test:
    """The state of a test in the master, or in the only process."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.samples: list[Sample] = []  # of the server, at the start and the end
        self.idle_workers: set[str] = set()  # whose last report had no users
        self.num_lost_workers = 0
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

    def check(self) -> None:
        """Check the flags, and connect; raises ValueError and OSError."""
        options = self.options
        if options.rate < 0 or options.pause < 0:
            raise ValueError(f"--rate {options.rate:g}, --pause {options.pause:g}: expected at least 0")
        if self.environment.shape_class and options.headless and not (options.run_time and options.num_users):
            raise ValueError(f"--shape {options.shape} requires --users and --run-time")
        self.slo  # noqa: B018 - raises for invalid thresholds
        for cls in self.environment.user_classes:
            cls.prepare(options, self.environment.host)
        if options.metrics_url:
            scrape(options.metrics_url)

    def begin(self) -> None:
        """Leave the calls in flight at the end the time until their deadline, and forget the last test."""
        workloads = [cls.workload(self.options) for cls in self.environment.user_classes]
        timeouts_s = (workload.deadline_s + _MARGIN_S for workload in workloads)
        self.environment.stop_timeout = max(self.environment.stop_timeout, *timeouts_s)
        self.samples.clear()
        self.sample()

    def sample(self) -> None:
        """Sample the metrics of the server if their address is known."""
        if self.options.metrics_url:
            try:
                self.samples.append(Sample(at_s=time.monotonic(), values=scrape(self.options.metrics_url)))
            except (OSError, ValueError) as error:
                print(f"locustfile: {self.options.metrics_url}: {error}", file=sys.stderr)

    def merge(self, client_id: str, data: Any) -> None:
        """Add the report of a worker."""
        (self.idle_workers.discard if data["user_count"] else self.idle_workers.add)(client_id)
        merge_timings(data.get(_TIMINGS, ()))

    def end(self) -> None:
        """Let the workers finish their calls before Locust ends them, which would lose the slowest ones."""
        runner = self.environment.runner
        if isinstance(runner, MasterRunner):
            missing = {worker.id for worker in runner.clients.missing}
            self.num_lost_workers, self.idle_workers = len(missing), missing
            runner.send_message(_FINISH)
            with gevent.Timeout(self.environment.stop_timeout + _REPORT_S, False):
                while {worker.id for worker in runner.clients.all} - self.idle_workers:
                    gevent.sleep(0.1)
        self.sample()

    def conclude(self) -> None:
        """Print the result, set the exit code, and stop the started server."""
        self.environment.runner.quit()
        if self.options.csv_prefix:
            gevent.sleep(1.1 * locust.stats.CSV_STATS_INTERVAL_SEC)  # until Locust has written the last calls
        statistics, slo = self.environment.stats, self.slo
        lag_ms = timings.get("", LAG).get_response_time_percentile(0.99)
        max_lag_ms = float(self.options.max_lag or (MAX_GENERATOR_LAG_P99_MS if slo else math.inf))
        limits: dict[str, Any] = {"slo": slo, "lag_ms": lag_ms, "max_lag_ms": max_lag_ms}
        failures = violations(statistics, **limits, num_lost_workers=self.num_lost_workers)
        if self.server is not None and (exit_code := self.server.stop()):
            failures.append(f"server exited with {exit_code}")
        for sentence in failures:
            print(f"failed: {sentence}", file=sys.stderr)
        figures = figures_of(statistics)
        latencies = {name: figures[name] for name in ("p50", "p95", "p99", "max")}
        result = {
            **{f"{name}_ms": "none" if value is None else f"{1000 * value:.0f}" for name, value in latencies.items()},
            "calls": count_outcomes(statistics).total(),
            "goodput_per_s": f"{figures['goodput/s']:.1f}",
            **{name: f"{figures[name]:.4f}" for name in ("goodput", "rejected", "late", "errors")},
            **{
                f"mean_{name}_ms": f"{entry.avg_response_time:.1f}"
                for (name, method), entry in timings.entries.items()
                if method == STAGE
            },
            "generator_lag_p99_ms": f"{lag_ms:.0f}",
            "lost_workers": self.num_lost_workers,
            **server_figures(self.samples),
        }
        print("loadtest", *(f"{name}={text}" for name, text in result.items()), flush=True)
        if failures:
            self.environment.process_exit_code = 1
        elif slo:
            self.environment.process_exit_code = 0


def prepare_process(environment: Any, runner: Any, **_: Any) -> None:
    """Prepare this process, after Locust has forked its workers."""
    events.test_start.add_listener(lambda **_: TranslatingUser.prepared.clear())
    events.test_start.add_listener(lambda **_: timings.clear_all())
    if environment.parsed_options.worker:
        grpc.experimental.gevent.init_gevent()
        runner.register_message(_FINISH, lambda **_: runner.stop(), concurrent=True)
        events.report_to_master.add_listener(lambda data, **_: data.update({_TIMINGS: timings.serialize_stats()}))
        return
    test = Test(environment)
    if not environment.host:
        test.start_server()
    grpc.experimental.gevent.init_gevent()  # gRPC must wait with gevent, or the first call would block all users
    options = test.options
    if not options.user_classes:
        environment.user_classes = [environment.available_user_classes[flags.USERS[options.texts]]]
    if options.shape in flags.SHAPES:
        environment.shape_class = shapes.Shape()
        environment.shape_class.runner = runner
    try:
        test.check()
    except (OSError, ValueError) as error:
        sys.exit(f"locustfile: {error}")
    events.test_start.add_listener(lambda **_: test.begin())
    events.test_stop.add_listener(lambda **_: test.end())
    events.worker_report.add_listener(lambda client_id, data, **_: test.merge(client_id, data))
    events.quitting.add_listener(lambda **_: test.conclude())
    gevent.get_hub().loop.update_now()  # --run-time counts from the time of the loop, which start-up has delayed


locust.stats.PERCENTILES_TO_CHART = [0.5, 0.95, 0.99]
locust.stats.HISTORY_STATS_INTERVAL_SEC = 1  # of the charts in the report
events.init_command_line_parser.add_listener(lambda parser, **_: flags.add_flags(parser))
events.init.add_listener(prepare_process)
