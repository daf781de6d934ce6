"""Locust users that call a server over gRPC, in a closed loop or by a schedule.

locust --headless -f loadtests/locustfile.py --host localhost:50051 --users 10 --run-time 30s
locust --headless -f loadtests/locustfile.py --host localhost:50051 --arrivals poisson --rate 20 --run-time 30s

The first command is a closed loop: each user waits for a response before its next call. The second is an open loop:
calls are sent at their scheduled time, from which their latency counts; the workers of a run share the schedule. The
API key is the value of DRAGOMAN_API_KEY. A call whose status is not OK counts as failed, including rejections.

`python -m loadtests.locustfile` lists the flags, including those of Locust. `python -m loadtests load` offers the same
load at a third of the CPU time, and writes a page.
"""

import itertools
import random
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import gevent
import grpc.experimental.gevent
from gevent.lock import BoundedSemaphore
from gevent.pool import Group
from locust import User, events
from locust.argument_parser import get_parser
from locust.exception import StopUser

from loadtests.generator.arrivals import make_schedule, parse_arrivals
from loadtests.generator.calls import Outcome, PlannedCall
from loadtests.generator.client import CONNECT_TIMEOUT_S, NUM_CHANNELS, Client
from loadtests.generator.flags import add_workload_flags, workload_of
from loadtests.generator.server import add_access_flags, target_of
from loadtests.generator.workload import Workload

_CLOSED: Final = "closed"


def add_flags(parser: Any, **_: Any) -> None:
    """Add the flags that Locust does not have."""
    group = parser.add_argument_group("Dragoman options", "Arrivals and workload.")
    add = group.add_argument
    kinds = "poisson, constant, burst[:every=S,size=N], ramp[:from=N,to=N], trace:FILE"
    closed = "closed: each user waits for a response before its next call"
    add("--arrivals", default=_CLOSED, metavar="KIND", help=f"{closed}; open loop: {kinds} (closed)")
    add("--rate", type=float, default=1.0, metavar="N", help="calls per second of an open loop, of all processes (1)")
    add("--duration", type=float, metavar="S", help="duration of an open loop (--run-time)")
    add("--pause", type=float, default=0.1, metavar="S", help="mean pause of a closed-loop user (0.1)")
    add("--seed", type=int, default=1, metavar="N", help="seed of arrivals and texts (1)")
    add_access_flags(group)
    add_workload_flags(group, Workload(), profile_flag="--texts")  # Locust has its own --profile


def prepare_process(environment: Any, **_: Any) -> None:
    """Prepare this process; a worker gets flags and host only when the test starts."""
    # gRPC must wait with gevent, or the first call would block all users. It is set here, after processes are forked.
    grpc.experimental.gevent.init_gevent()
    options = environment.parsed_options
    if options.worker:
        return
    if not environment.host:
        sys.exit("missing server: --host HOST:PORT")
    options.duration = options.duration or float(options.run_time or 0)  # workers do not get --run-time
    try:
        workload_of(options)
        if options.arrivals != _CLOSED:
            parse_arrivals(options.arrivals, rate_per_s=options.rate).times(options.duration, options.seed)
        if not options.master:
            TranslatingUser.client = _connect(options, environment.host)
    except (OSError, ValueError) as error:
        sys.exit(f"locustfile: {error}")


def _connect(options: Any, host: str) -> Client:
    return Client(target_of(options, host), num_channels=NUM_CHANNELS, connect_timeout_s=CONNECT_TIMEOUT_S)


def reset(**_: Any) -> None:
    """Let the first user of a test prepare the calls; a worker has its flags by then."""
    TranslatingUser.is_prepared = False


class TranslatingUser(User):  # type: ignore[misc]  # locust is skipped by mypy
    """Makes the next call of its process, when it is due (open loop) or after the last one (closed loop)."""

    client: ClassVar[Client]
    share: ClassVar[Iterator[tuple[PlannedCall, float | None]]] = iter(())  # calls of this process, with their offset
    began_s: ClassVar[float] = 0.0
    is_prepared: ClassVar[bool] = False
    preparing: ClassVar[Any] = BoundedSemaphore()

    @classmethod
    def prepare(cls, environment: Any) -> None:
        """Prepare the calls of this process."""
        options = environment.parsed_options
        if options.worker:
            cls.client = _connect(options, environment.host)
        count = max(1, options.expect_workers) if options.worker else 1
        first, calls = max(0, environment.runner.worker_index), workload_of(options).calls(options.seed)
        if options.arrivals == _CLOSED:
            cls.share = ((calls.call(number), None) for number in itertools.count(first, count))
        else:
            arrivals = parse_arrivals(options.arrivals, rate_per_s=options.rate)
            schedule = make_schedule(arrivals, warm_up_s=0.0, duration_s=options.duration, seed=options.seed)
            share = schedule[first::count]
            cls.share = iter([(calls.call(one.number, method=one.method), one.offset_s) for one in share])
        cls.began_s, cls.is_prepared = time.monotonic(), True

    def on_start(self) -> None:
        """Start without calls in flight."""
        self.in_flight = Group()
        with self.preparing:
            if not self.is_prepared:
                self.prepare(self.environment)

    def on_stop(self) -> None:
        """Wait for the calls in flight, within --stop-timeout."""
        self.in_flight.join()

    def call(self) -> None:
        """Make or begin one call."""
        planned, offset_s = next(self.share, (None, None))
        if planned is None:
            raise StopUser
        if offset_s is None:
            self.make(planned, time.monotonic())
            return
        due_s = self.began_s + offset_s
        gevent.sleep(max(0.0, due_s - time.monotonic()))
        self.in_flight.spawn(self.make, planned, due_s)

    tasks: ClassVar = [call]

    def make(self, planned: PlannedCall, planned_s: float) -> None:
        """Make a call and report it to Locust; a planned cancellation is not a failure."""
        record = self.client.make(planned, planned_s)
        is_ok = record.outcome in {Outcome.ANSWERED, Outcome.LEFT}
        self.environment.events.request.fire(
            request_type="grpc",
            name=record.method,
            response_time=1000 * record.latency_s,
            response_length=0,
            exception=None if is_ok else RuntimeError(f"{record.outcome.value}: {record.status}"),
            context={},
        )

    def wait_time(self) -> float:
        """Return the pause of a closed-loop user."""
        options = self.environment.parsed_options
        return random.uniform(0.5, 1.5) * (options.pause if options.arrivals == _CLOSED else 0.0)


events.init_command_line_parser.add_listener(add_flags)
events.init.add_listener(prepare_process)
events.test_start.add_listener(reset)

if __name__ == "__main__":
    get_parser().print_help()
