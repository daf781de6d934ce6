"""The run: batches of bad inputs side by side, bystanders among them, a look at the server after each."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
from tqdm import tqdm

from loadtests.bad_inputs import growth, kinds
from loadtests.bad_inputs.bystanders import Bystanders, Calls
from loadtests.bad_inputs.callers import Caller, UnreadableAnswerError
from loadtests.bad_inputs.growth import Growth
from loadtests.bad_inputs.inputs import BadInput, Limits
from loadtests.bad_inputs.judge import faults
from loadtests.bad_inputs.kinds import Planned
from loadtests.bad_inputs.verdict import Record, Run
from loadtests.bad_inputs.watch import Watch
from loadtests.target import ServerError, ServerProcess

_BATCH: Final = 1000
"""Inputs between two looks at the server."""

_WARM_UP_SEED: Final = -1
_WARM_UP_SHARE: Final = 0.05
"""Of the inputs; a server needs some to get the buffers of its larger batches."""

_ALONE_S: Final = 1.0
_UNREADABLE: Final = "UNKNOWN"


def run(
    server: ServerProcess,
    log: Path,
    *,
    count: int,
    only: Sequence[str],
    seed: int,
    num_callers: int,
    timeout_s: float,
    grown_shapes: Sequence[str],
) -> Run:
    """Send so many inputs of the kinds named, after some that only warm up; end early if the server does.

    Args:
        server: that runs and takes calls.
        log: where it writes.
        count: of the inputs.
        only: the kinds.
        seed: what all is made from.
        num_callers: how many inputs are under way at a time.
        timeout_s: after which a call hangs.
        grown_shapes: whose growth is measured in the end.

    Raises:
        grpc.RpcError: if the server does not answer before the first input.
    """
    with ExitStack() as stack:
        watch = stack.enter_context(closing(Watch(server, log, seed=seed)))
        limits = Limits.told_by(watch.models())
        callers = [
            stack.enter_context(closing(Caller(server.target, limits, timeout_s=timeout_s))) for _ in range(num_callers)
        ]
        server_faults = list(watch.faults())
        warm_up = kinds.plan(max(len(only), round(_WARM_UP_SHARE * count)), kinds=only, seed=seed)
        list(_sent(callers, warm_up, seed=_WARM_UP_SEED, limits=limits))
        known: dict[int, Sequence[bytes]] = {}
        with Bystanders(server.target, seed=seed, known=known) as alone:
            time.sleep(_ALONE_S)
        seen = _Seen(memory_mb=[server.rss_mb()], server_faults=server_faults)
        began_s = time.monotonic()
        planned = kinds.plan(count, kinds=only, seed=seed)
        try:
            with tqdm(total=count, unit="inputs", disable=None) as progress:
                for first in range(0, count, _BATCH):
                    with seen.beside(Bystanders(server.target, seed=seed, known=known)):
                        for record in _sent(callers, planned[first : first + _BATCH], seed=seed, limits=limits):
                            seen.records.append(record)
                            progress.update()
                    seen.look(server, watch)
            elapsed_s = time.monotonic() - began_s
            growths = list(_grown(callers[0], limits, grown_shapes, seed=seed))
            seen.look(server, watch)
        except (ServerError, grpc.RpcError, OSError) as error:
            elapsed_s, growths = time.monotonic() - began_s, []
            seen.server_faults.append(f"the server is gone after {len(seen.records)} inputs: {error}")
    return Run(
        records=seen.records,
        memory_mb=seen.memory_mb,
        server_faults=seen.server_faults,
        bystander_failures=[*alone.translating.failures, *seen.translating.failures, *seen.looking.failures],
        bystander_latencies_s=seen.translating.latencies_s,
        bystander_alone_s=alone.translating.latencies_s,
        look_latencies_s=seen.looking.latencies_s,
        growths=growths,
        elapsed_s=elapsed_s,
    )


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What was seen so far."""

    memory_mb: list[float]
    server_faults: list[str]
    records: list[Record] = field(default_factory=list)
    translating: Calls = field(default_factory=Calls)
    looking: Calls = field(default_factory=Calls)

    @contextmanager
    def beside(self, bystanders: Bystanders) -> Iterator[None]:
        """Let bystanders call meanwhile."""
        with bystanders:
            yield
        self.translating.add(bystanders.translating)
        self.looking.add(bystanders.looking)

    def look(self, server: ServerProcess, watch: Watch) -> None:
        """Look at the server, which nobody else uses now."""
        self.server_faults += watch.faults()
        self.memory_mb.append(server.rss_mb())


def _grown(caller: Caller, limits: Limits, shapes: Sequence[str], *, seed: int) -> Iterator[Growth]:
    with tqdm(total=2 * len(shapes), unit="shapes", disable=None) as progress:
        for one in growth.measured(caller, limits, shapes=shapes, seed=seed):
            progress.update()
            yield one


def judged(caller: Caller, bad: BadInput) -> Record:
    """Send one input and look at its answer."""
    began_s = time.perf_counter()
    try:
        answer = caller.send(bad)
    except UnreadableAnswerError as error:
        status, seconds, num_repeats = _UNREADABLE, time.perf_counter() - began_s, 0
        found = [f"the answer cannot be read: {error}"]
    else:
        status, seconds, num_repeats = answer.status, answer.seconds, answer.num_repeats
        found = list(faults(bad, answer))
    return Record(
        kind=bad.kind,
        index=bad.index,
        method=bad.method.name.lower(),
        num_characters=bad.content.num_characters,
        status=status,
        seconds=seconds,
        num_repeats=num_repeats,
        faults=tuple(found),
    )


def _sent(callers: Sequence[Caller], planned: Sequence[Planned], *, seed: int, limits: Limits) -> Iterator[Record]:
    """Let whoever of the callers is free send the next input; yield the records as they come."""
    own = threading.local()
    free = list(callers)

    def take_caller() -> None:
        own.caller = free.pop()

    def send(one: Planned) -> Record:
        return judged(own.caller, kinds.make(one, seed=seed, limits=limits))

    with ThreadPoolExecutor(len(callers), initializer=take_caller) as pool:
        yield from pool.map(send, planned)
