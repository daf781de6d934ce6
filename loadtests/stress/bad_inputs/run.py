"""The run: batches of bad inputs side by side, bystanders among them, a look at the server after each batch."""

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError
from tqdm import tqdm

from loadtests import wire
from loadtests.stress.bad_inputs import growth, kinds
from loadtests.stress.bad_inputs.growth import Growth
from loadtests.stress.bad_inputs.inputs import BadInput, Limits
from loadtests.stress.bad_inputs.kinds import Planned
from loadtests.stress.bad_inputs.sender import Answer, Sender, faults
from loadtests.stress.callers import Bystanders, Client, Question, Reply, connect, learn_answers
from loadtests.stress.server import complaints, log_path
from loadtests.target import ServerError, ServerProcess, wait_until_idle

_BATCH: Final = 1000
_WARM_UP_SEED: Final = -1
_WARM_UP_SHARE: Final = 0.05
"""Of the inputs; a server needs some to get the buffers of its larger batches."""

_ALONE_S: Final = 1.0
_NUM_QUESTIONS: Final = 16
_NUM_PROBES: Final = 4
_TRANSLATE_EACH_S: Final = 0.25
_LOOK_EACH_S: Final = 0.05
_IDLE_TIMEOUT_S: Final = 30.0
_MAX_SHOWN: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What became of one input."""

    kind: str
    index: int
    method: str
    num_characters: int
    status: str
    seconds: float
    num_retries: int = 0
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The flags that repeat it."""
        return f"--only {self.kind} --index {self.index}"


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything that was seen."""

    records: list[Record] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    """Resident memory of the server after the warm-up and after each batch."""

    server_faults: list[str] = field(default_factory=list)
    alone: Sequence[Reply] = ()
    """Translations of bystanders before the first bad input; the next two come after it."""

    translations: list[Reply] = field(default_factory=list)
    looks: list[Reply] = field(default_factory=list)
    growths: Sequence[Growth] = ()
    elapsed_s: float = 0.0


class Watch:
    """Looks at a server without other callers: healthy, idle, no error in its log, and translating as it did."""

    def __init__(self, server: ServerProcess, output: Path, *, seed: int) -> None:
        """`output` is where the server's log is; a server that is well translates now as it must later."""
        self._server = server
        self._log = log_path(output)
        self._num_read = 0
        self.questions = learn_answers(server.target, wire.translate_requests(seed, count=_NUM_QUESTIONS, texts=2))

    def limits(self) -> Limits:
        """Return what the server accepts."""
        with connect(self._server.target) as channel:
            raw = channel.unary_unary(wire.Method.LIST_MODELS.path)(b"", timeout=_IDLE_TIMEOUT_S)
        return Limits.from_models(pb.ListModelsResponse.FromString(raw))

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the server now, and in its log since the last look."""
        left = wait_until_idle(self._server, timeout_s=_IDLE_TIMEOUT_S)
        if left:
            yield f"work is left on the server: {left}"
        with Client(self._server.target) as client:
            health = client.check()
            replies = [one.ask(client) for one in self.questions[:_NUM_PROBES]]
        if not all(pb.TranslateResponse.FromString(one.answer).translations for one in self.questions):
            yield "an ordinary request has no translation"
        if health.status != "OK":
            yield f"the server does not say that it serves: {health.status} {health.message}"
        yield from (f"an ordinary request: {reply.status} {reply.message}" for reply in replies if reply.status != "OK")
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from (f"the server's log has: {line[:_MAX_SHOWN]}" for line in complaints(lines[self._num_read :]))
        self._num_read = len(lines)


def send_all(server: ServerProcess, options: argparse.Namespace, *, grown_shapes: Sequence[str]) -> Run:
    """Send inputs as the flags say, after some that only warm up; end early if the server does.

    Raises:
        ServerError: if the server does not answer before the first input.
    """
    count, only, seed = options.count, options.only, options.seed
    with ExitStack() as stack:
        watch = Watch(server, options.output, seed=seed)
        limits = watch.limits()
        senders = [Sender(server.target, limits, timeout_s=options.timeout) for _ in range(options.callers)]
        for sender in senders:
            stack.callback(sender.close)
        seen = Run(server_faults=list(watch.faults()))
        warm_up = kinds.plan(max(len(only), round(_WARM_UP_SHARE * count)), kinds=only, seed=seed)
        list(_sent(senders, warm_up, seed=_WARM_UP_SEED, limits=limits))
        with _bystanders(server, watch.questions) as alone:
            time.sleep(_ALONE_S)
        seen.alone = alone.translations
        seen.memory_mb.append(server.rss_mb())
        began_s = time.monotonic()
        try:
            planned = kinds.plan(count, kinds=only, seed=seed)
            for first in tqdm(range(0, count, _BATCH), unit="batches", disable=None):
                with _bystanders(server, watch.questions) as bystanders:
                    seen.records += _sent(senders, planned[first : first + _BATCH], seed=seed, limits=limits)
                seen.translations += bystanders.translations
                seen.looks += bystanders.looks
                seen.server_faults += watch.faults()
                seen.memory_mb.append(server.rss_mb())
            seen.elapsed_s = time.monotonic() - began_s
            measured = growth.measured(senders[0].send, limits, shapes=grown_shapes, seed=seed)
            seen.growths = list(tqdm(measured, total=2 * len(grown_shapes), unit="shapes", disable=None))
            seen.server_faults += watch.faults()
            seen.memory_mb.append(server.rss_mb())
        except (ServerError, grpc.RpcError, OSError) as error:
            seen.elapsed_s = seen.elapsed_s or time.monotonic() - began_s
            seen.server_faults.append(f"the server is gone after {len(seen.records)} inputs: {error}")
    return seen


def send_one(sender: Sender, planned: Planned, bad: BadInput) -> Record:
    """Send one input and judge its answer."""
    began_s = time.perf_counter()
    try:
        answer = sender.send(bad)
        found = list(faults(bad, answer))
    except DecodeError as error:
        answer = Answer(status="UNKNOWN", seconds=time.perf_counter() - began_s)
        found = [f"the answer cannot be read: {error}"]
    return Record(
        kind=planned[0],
        index=planned[1],
        method=bad.method.value,
        num_characters=bad.num_characters,
        status=answer.status,
        seconds=answer.seconds,
        num_retries=answer.num_retries,
        faults=tuple(found),
    )


def _bystanders(server: ServerProcess, questions: Sequence[Question]) -> Bystanders:
    pauses = {"each_s": _TRANSLATE_EACH_S, "look_each_s": _LOOK_EACH_S}
    return Bystanders(server.target, questions, num_translating=1, look=Client.list_models, **pauses)


def _sent(senders: Sequence[Sender], planned: Sequence[Planned], *, seed: int, limits: Limits) -> Iterator[Record]:
    """Let each sender that is free send the next input; yield the records as they come."""
    free = SimpleQueue[Sender]()
    for sender in senders:
        free.put(sender)

    def send(one: Planned, bad: BadInput) -> Record:
        sender = free.get()
        try:
            return send_one(sender, one, bad)
        finally:
            free.put(sender)

    with ThreadPoolExecutor(len(senders)) as pool:
        yield from pool.map(send, planned, (kinds.make(one, seed=seed, limits=limits) for one in planned))
