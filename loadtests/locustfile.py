"""Locust's users: they call the methods of a server over gRPC, as often as answers come back, or by a schedule.

locust --headless -f loadtests/locustfile.py --host localhost:50051 --users 10 --run-time 30s
locust --headless -f loadtests/locustfile.py --host localhost:50051 --arrivals poisson --rate 20 --run-time 30s

The first is a closed loop: each user waits for an answer before the next call. The second is an open loop: calls are
sent when they are due, whatever became of those before, and their latency counts from then. DRAGOMAN_API_KEY is sent
along where the server asks for a key. A call counts as failed if its status is not OK, and so does a refusal for load:
it is what a caller would see.

Locust explains itself before it looks at this file; `python -m loadtests.locustfile` lists these flags too.
`python -m loadtests.loadtest` makes a page of such a run.
"""

import random
import sys
import time
from typing import Any, ClassVar

import gevent
import grpc.experimental.gevent
from locust import User, events
from locust.argument_parser import get_parser
from locust.exception import StopUser

from loadtests.flags import add_workload_flags
from loadtests.session import CLOSED, TEXTS_FLAG, Session


def add_flags(parser: Any, **_: Any) -> None:
    """Declare what Locust's own flags do not say."""
    group = parser.add_argument_group("Dragoman options", "What is called, and when.")
    add = group.add_argument
    add(
        "--arrivals",
        default=CLOSED,
        metavar="KIND",
        help="closed: each user waits for an answer before the next call; "
        "or an open loop: poisson, constant, burst[:every=S,size=N], ramp[:from=N,to=N], trace:FILE (closed)",
    )
    add("--rate", type=float, default=1.0, metavar="N", help="calls a second of an open loop, of all processes (1)")
    add("--duration", type=float, metavar="S", help="in which calls are made; the run ends with the last (--run-time)")
    add("--warm-up", type=float, default=0.0, metavar="S", help="before it, at the same rate (0)")
    add(
        "--pause",
        type=float,
        default=0.1,
        metavar="S",
        help="mean pause between two calls of a user, closed loop (0.1)",
    )
    add("--seed", type=int, default=1, metavar="N", help="of arrivals and texts (1)")
    add("--ca", metavar="FILE", help="certificate of the authority that signed the server's (no encryption)")
    add("--records", metavar="DIR", help="gets every call of each process as JSON lines")
    add_workload_flags(group, profile_flag=TEXTS_FLAG)


def join(environment: Any, **_: Any) -> None:
    """Take part in the run, now that this process knows its role."""
    # From here on, gRPC waits as gevent does: without it the first call would stop all users. Not earlier, as processes
    # are forked before.
    grpc.experimental.gevent.init_gevent()
    if not environment.host and not environment.parsed_options.worker:
        sys.exit("name the server: --host HOST:PORT")
    try:
        session = Session(environment, gevent.spawn)
    except ValueError as error:
        sys.exit(f"locustfile: {error}")
    TranslatingUser.session = session
    environment.events.test_start.add_listener(lambda **_: gevent.spawn(session.prepare))
    environment.events.quitting.add_listener(lambda **_: session.write())


class TranslatingUser(User):  # type: ignore[misc]  # locust is not looked at where types are checked
    """Makes the next call of its process: of an open loop when it is due, else when the one before has ended."""

    session: Session

    def call(self) -> None:
        """Make one call, or begin it."""
        due = self.session.next_call()
        if due is None:
            raise StopUser
        planned, planned_s = due
        if not self.session.is_open_loop:
            self.session.make(planned, planned_s)
            return
        while (left_s := planned_s - time.monotonic()) > 0:
            gevent.sleep(left_s)
        gevent.spawn(self.session.make, planned, planned_s)

    tasks: ClassVar = [call]

    def wait_time(self) -> float:
        """Return how long a user of a closed loop waits before the next call."""
        mean_s: float = 0.0 if self.session.is_open_loop else self.environment.parsed_options.pause
        return random.uniform(0.5, 1.5) * mean_s


events.init_command_line_parser.add_listener(add_flags)
events.init.add_listener(join)

if __name__ == "__main__":
    get_parser().print_help()
