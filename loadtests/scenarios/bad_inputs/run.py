"""Sends bad inputs in parallel, in batches, with control traffic; checks the server after each batch."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final

import grpc
from tqdm import tqdm

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Reply, translate_requests
from loadtests.generator.client import Client
from loadtests.generator.metrics import footprint
from loadtests.generator.server import ServerError, ServerProcess
from loadtests.hostile.inputs import BadInput
from loadtests.scenarios.bad_inputs.kinds import Plan, make
from loadtests.scenarios.bad_inputs.responses import Result, faults, send
from loadtests.scenarios.control_traffic import Question, TranslatingTraffic, connect, learn_answers
from loadtests.scenarios.stress_server import log_errors, wait_until_idle

_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one input."""

    kind: str
    index: int
    method: str
    num_characters: int
    status: str
    seconds: float
    num_retries: int = 0
    faults: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The flags that repeat it."""
        return f"--only {self.kind} --index {self.index}"


@dataclass(slots=True, kw_only=True)
class Observations:
    """Everything seen during the run."""

    model: pb.ModelVersion
    records: list[Record] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)  # after the warm-up and after each batch
    server_faults: list[str] = field(default_factory=list)
    undisturbed: Sequence[Reply] = ()  # control traffic before the first input
    translations: list[Reply] = field(default_factory=list)  # control traffic among the inputs
    probes: list[Reply] = field(default_factory=list)
    elapsed_s: float = 0.0


def send_all(server: ServerProcess, planned: Plan, options: argparse.Namespace, *, warm_up: Plan) -> Observations:
    """Send the inputs after a warm-up; ends early if the server does."""
    questions = learn_answers(server.target, translate_requests(options.seed, count=16, texts=2))
    control = partial(
        TranslatingTraffic,
        server.target,
        questions,
        num_translating=1,
        each_s=0.25,
        probe=Client.list_models,
        probe_each_s=0.05,
    )
    with connect(server.target) as client:
        models = pb.ListModelsResponse.FromString(client.call(Method.LIST_MODELS, b"").messages[0]).models
    ready = next(one for model in models for one in model.versions if one.state == pb.MODEL_STATE_READY)
    seen = Observations(model=ready, server_faults=list(_faults(server, questions)))
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server.target)) for _ in range(options.callers)]
        senders = [partial(send, client.channels[0], model=ready, timeout_s=options.timeout) for client in clients]
        list(_send_planned(senders, warm_up, model=ready, seed=-1))
        with control() as undisturbed:
            time.sleep(1)
        seen.undisturbed = undisturbed.translations
        seen.memory_mb.append(footprint(server.pid).rss_mb)
        began_s = time.monotonic()
        try:
            for first in tqdm(range(0, len(planned), _BATCH), unit="batches", disable=None):
                with control() as traffic:
                    batch = planned[first : first + _BATCH]
                    seen.records += _send_planned(senders, batch, model=ready, seed=options.seed)
                seen.elapsed_s = time.monotonic() - began_s
                seen.translations += traffic.translations
                seen.probes += traffic.probes
                seen.server_faults += _faults(server, questions)
                seen.memory_mb.append(footprint(server.pid).rss_mb)
        except (ServerError, grpc.RpcError, OSError) as error:
            seen.server_faults.append(f"the server ended after {len(seen.records)} inputs: {error}")
    seen.server_faults += [f"server log: {line[:400]}" for line in log_errors(options.output)]
    return seen


def _send_planned(
    senders: Sequence[Callable[[BadInput], Result]], planned: Plan, *, model: pb.ModelVersion, seed: int
) -> Iterator[Record]:
    """Let each free sender send the next input; yield the records in order."""
    free = SimpleQueue[Callable[[BadInput], Result]]()
    for sender in senders:
        free.put(sender)

    def send_next(one: tuple[str, int], bad: BadInput) -> Record:
        sender = free.get()
        try:
            result = sender(bad)
        finally:
            free.put(sender)
        characters, method = bad.num_characters, bad.method.value
        found = list(faults(bad, result))
        return Record(*one, method, characters, result.status, result.seconds, result.num_retries, found)

    with ThreadPoolExecutor(len(senders)) as pool:
        yield from pool.map(send_next, planned, (make(*one, seed=seed, model=model) for one in planned))


def _faults(server: ServerProcess, questions: Sequence[Question]) -> Iterator[str]:
    """Check that a server without other callers is healthy and idle, and translates as before."""
    if left := wait_until_idle(server, timeout_s=30):
        yield f"work remains on the server: {left}"
    with connect(server.target) as client:
        replies = [client.check(), *(question.ask(client) for question in questions[:4])]
    yield from (f"an ordinary call: {reply.status} {reply.message}" for reply in replies if reply.status != "OK")
    if not all(pb.TranslateResponse.FromString(question.answer).translations for question in questions):
        yield "an ordinary request has no translation"
