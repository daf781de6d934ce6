"""Sends bad inputs in parallel, in batches, with control traffic; checks the server after each batch."""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final, NamedTuple

import grpc
from tqdm import tqdm

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Reply, translate_requests
from loadtests.generator.client import Client
from loadtests.generator.metrics import footprint
from loadtests.generator.server import ServerError, ServerProcess
from loadtests.hostile.inputs import CHEAP, OK, BadInput, Draw, repeated
from loadtests.hostile.texts import shaped
from loadtests.scenarios.bad_inputs.kinds import Plan, make
from loadtests.scenarios.bad_inputs.responses import Result, faults, send
from loadtests.scenarios.control_traffic import Question, TranslatingTraffic, connect, learn_answers
from loadtests.scenarios.stress_server import log_errors, wait_until_idle

_BATCH: Final = 1000
_CLEAR_RATIO: Final = 2.5  # steeper growth is measured again, because it may be noise


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


class Growth(NamedTuple):
    """Time for a shape of text at a size and at half of it, the minimum of some tries.

    For requests, the time of text processing; for documents, the time to the first sentence.
    """

    shape: str
    method: str
    num_characters: int
    half_s: float
    whole_s: float
    ratio: float  # 2 for linear work, 4 for quadratic work


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
    growths: list[Growth] = field(default_factory=list)
    elapsed_s: float = 0.0


def send_all(
    server: ServerProcess, planned: Plan, options: argparse.Namespace, *, warm_up: Plan, grown_shapes: Sequence[str]
) -> Observations:
    """Send the inputs after a warm-up, then measure growth; ends early if the server does."""
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
            measured = growths(senders[0], ready, shapes=grown_shapes, seed=options.seed)
            seen.growths += tqdm(measured, total=2 * len(grown_shapes), unit="shapes", disable=None)
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


def growths(
    send: Callable[[BadInput], Result], model: pb.ModelVersion, *, shapes: Sequence[str], seed: int
) -> Iterator[Growth]:
    """Measure how work grows with the size of requests and documents of each shape."""
    options = {**CHEAP, "max_target_tokens": 1}
    sizes = {
        Method.TRANSLATE: model.limits.max_text_characters,
        Method.TRANSLATE_DOCUMENT: model.limits.max_document_characters,
    }

    def seconds(draw: Draw, method: Method, text: str) -> float:
        if method is Method.TRANSLATE_DOCUMENT:
            return send(draw.document(text, expected=OK, leaves=True)).seconds
        result = send(draw.request(text, expected=OK, method=method, options=options))
        return sum((response.timings.text.ToNanoseconds() / 1e9 for response in result.responses), 0.0)

    for shape, (method, size) in itertools.product(shapes, sizes.items()):
        draw = Draw(f"{seed}/{shape}", model=model)
        text, half_s, whole_s = repeated(shaped(draw, 61, shape), size), math.inf, math.inf
        for _ in range(4):
            half_s = min(half_s, seconds(draw, method, text[: size // 2]))
            whole_s = min(whole_s, seconds(draw, method, text))
            if whole_s <= _CLEAR_RATIO * half_s:
                break
        yield Growth(shape, method.value, size, half_s, whole_s, whole_s / half_s if half_s else 1.0)
