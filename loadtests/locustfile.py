"""Locust's users: they call the methods of a server over gRPC, as often as answers come back, or by a schedule.

locust --headless -f loadtests/locustfile.py --host localhost:50051 --users 10 --run-time 30s
locust --headless -f loadtests/locustfile.py --host localhost:50051 --arrivals poisson --rate 20 --run-time 30s

The first is a closed loop: each user waits for an answer before the next call. The second is an open loop: calls are
sent when they are due, whatever became of those before, and their latency counts from then; the workers of a run share
the schedule. DRAGOMAN_API_KEY is sent along where the server asks for a key. A call counts as failed if its status is
not OK, and so does a rejection for load: it is what a caller would see.

Locust explains itself before it looks at this file; `python -m loadtests.locustfile` lists these flags too.
`python -m loadtests load` offers the same without Locust, at a third of the processor time, and makes a page of it.
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
from loadtests.generator.client import Client
from loadtests.generator.flags import add_workload_flags, workload_of
from loadtests.generator.server import add_access_flags, target_of
from loadtests.generator.calls import Outcome
from loadtests.generator.workload import PlannedCall, Workload

_CLOSED: Final = "closed"


def add_flags(parser: Any, **_: Any) -> None:
    """Declare what Locust's own flags do not say."""
    group = parser.add_argument_group("Dragoman options", "What is called, and when.")
    add = group.add_argument
    kinds = "poisson, constant, burst[:every=S,size=N], ramp[:from=N,to=N], trace:FILE"
    closed = "closed: each user waits for an answer before the next call"
    add("--arrivals", default=_CLOSED, metavar="KIND", help=f"{closed}; or an open loop: {kinds} (closed)")
    add("--rate", type=float, default=1.0, metavar="N", help="calls a second of an open loop, of all processes (1)")
    add("--duration", type=float, metavar="S", help="in which calls of an open loop come (--run-time)")
    add("--pause", type=float, default=0.1, metavar="S", help="mean pause of a user between two calls, closed (0.1)")
    add("--seed", type=int, default=1, metavar="N", help="of arrivals and texts (1)")
    add_access_flags(group)
    add_workload_flags(group, Workload(), profile_flag="--texts")  # Locust has a --profile of its own


def join(environment: Any, **_: Any) -> None:
    """Take part in the run, now that this process knows its role; a worker gets flags and host when the test starts."""
    # From here on, gRPC waits as gevent does: without it the first call would stop all users. Not earlier, as processes
    # are forked before.
    grpc.experimental.gevent.init_gevent()
    options = environment.parsed_options
    if options.worker:
        return
    if not environment.host:
        sys.exit("name the server: --host HOST:PORT")
    options.duration = options.duration or float(options.run_time or 0)  # Locust tells workers no --run-time
    try:
        workload_of(options)
        if options.arrivals != _CLOSED:
            parse_arrivals(options.arrivals, rate_per_s=options.rate).times(options.duration, options.seed)
        if not options.master:
            TranslatingUser.client = Client(target_of(options, environment.host))
    except (OSError, ValueError) as error:
        sys.exit(f"locustfile: {error}")


def forget(**_: Any) -> None:
    """Let the first user of a test prepare it; Locust has told a worker its flags by then."""
    TranslatingUser.is_prepared = False


class TranslatingUser(User):  # type: ignore[misc]  # locust is not looked at where types are checked
    """Makes the next call of its process: of an open loop when it is due, else when the one before has ended."""

    client: ClassVar[Client]
    share: ClassVar[Iterator[tuple[PlannedCall, float | None]]] = iter(())
    began_s: ClassVar[float] = 0.0
    is_prepared: ClassVar[bool] = False
    preparing: ClassVar[Any] = BoundedSemaphore()

    @classmethod
    def prepare(cls, environment: Any) -> None:
        """Make this process's share of the calls."""
        options = environment.parsed_options
        if options.worker:
            cls.client = Client(target_of(options, environment.host))
        count = max(1, options.expect_workers) if options.worker else 1
        first, calls = max(0, environment.runner.worker_index), workload_of(options).calls(options.seed)
        if options.arrivals == _CLOSED:
            cls.share = ((calls.call(number), None) for number in itertools.count(first, count))
        else:
            arrivals = parse_arrivals(options.arrivals, rate_per_s=options.rate)
            whole = make_schedule(arrivals, warm_up_s=0.0, duration_s=options.duration, seed=options.seed)
            cls.share = iter([(calls.call(one.number, method=one.method), one.offset_s) for one in whole[first::count]])
        cls.began_s, cls.is_prepared = time.monotonic(), True

    def on_start(self) -> None:
        """Have no calls under way yet."""
        self.under_way = Group()
        with self.preparing:
            if not self.is_prepared:
                self.prepare(self.environment)

    def on_stop(self) -> None:
        """Wait for the calls that are under way, as long as Locust's --stop-timeout allows."""
        self.under_way.join()

    def call(self) -> None:
        """Make one call, or begin it."""
        planned, offset_s = next(self.share, (None, None))
        if planned is None:
            raise StopUser
        if offset_s is None:
            self.make(planned, time.monotonic())
            return
        due_s = self.began_s + offset_s
        gevent.sleep(max(0.0, due_s - time.monotonic()))
        self.under_way.spawn(self.make, planned, due_s)

    tasks: ClassVar = [call]

    def make(self, planned: PlannedCall, planned_s: float) -> None:
        """Make a call and let Locust count it; one that was cancelled as planned is no failure."""
        record = self.client.make(planned, planned_s)
        is_well = record.outcome in {Outcome.ANSWERED, Outcome.LEFT}
        self.environment.events.request.fire(
            request_type="grpc",
            name=record.method,
            response_time=1000 * record.latency_s,
            response_length=0,
            exception=None if is_well else RuntimeError(f"{record.outcome.value}: {record.status}"),
            context={},
        )

    def wait_time(self) -> float:
        """Return how long a user of a closed loop waits before the next call."""
        options = self.environment.parsed_options
        return random.uniform(0.5, 1.5) * (options.pause if options.arrivals == _CLOSED else 0.0)


events.init_command_line_parser.add_listener(add_flags)
events.init.add_listener(join)
events.test_start.add_listener(forget)

if __name__ == "__main__":
    get_parser().print_help()
