"""The run: batches of bad inputs side by side, bystanders among them, a look at the server after each batch."""

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
from dragoman.v1 import translation_pb2 as pb
from tqdm import tqdm

from loadtests.generator.metrics import footprint
from loadtests.scenarios.bad_inputs.answers import Answer, faults, send
from loadtests.scenarios.bad_inputs.inputs import CHEAP, OK, BadInput, Draw, repeated
from loadtests.scenarios.bad_inputs.kinds import Plan, make
from loadtests.hostile.texts import shaped
from loadtests.scenarios.callers import Bystanders, Client, Question, Reply, connect, learn_answers
from loadtests.scenarios.stress_server import log_path, read_log, wait_until_idle
from loadtests.generator.server import ServerError, ServerProcess
from loadtests.generator.calls import Method, translate_requests

_BATCH: Final = 1000
_CLEAR_RATIO: Final = 2.5
"""Work that grows no faster is not measured again; what looks steeper may have been disturbed by other work."""


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one input."""

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
    """The same shape of text at two sizes, of which the larger has `num_characters`.

    Times are the fastest of some tries: the text work of a request; for a document, until its first sentence.
    """

    shape: str
    method: str
    num_characters: int
    half_s: float
    whole_s: float
    ratio: float  # of the times: 2 if the work grows as the text does, 4 if with its square


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything that was seen."""

    model: pb.ModelVersion
    records: list[Record] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)  # resident, after the warm-up and after each batch
    server_faults: list[str] = field(default_factory=list)
    alone: Sequence[Reply] = ()  # translations of bystanders before the first bad input; the next two come after it
    translations: list[Reply] = field(default_factory=list)
    looks: list[Reply] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    elapsed_s: float = 0.0


def send_all(
    server: ServerProcess, planned: Plan, options: argparse.Namespace, *, warm_up: Plan, grown_shapes: Sequence[str]
) -> Run:
    """Send inputs, after some that only warm up; then measure growth. End early if the server does."""
    questions = learn_answers(server.target, translate_requests(options.seed, count=16, texts=2))
    call_beside = partial(
        Bystanders, server.target, questions, num_translating=1, each_s=0.25, look=Client.list_models, look_each_s=0.05
    )
    with Client(server.target) as client:
        models = pb.ListModelsResponse.FromString(client.call(Method.LIST_MODELS, b"").messages[0]).models
    ready = next(one for model in models for one in model.versions if one.state == pb.MODEL_STATE_READY)
    seen = Run(model=ready, server_faults=list(_faults(server, questions)))
    with ExitStack() as stack:
        channels = [stack.enter_context(connect(server.target)) for _ in range(options.callers)]
        senders = [partial(send, channel, model=ready, timeout_s=options.timeout) for channel in channels]
        list(_sent(senders, warm_up, model=ready, seed=-1))
        with call_beside() as alone:
            time.sleep(1)
        seen.alone = alone.translations
        seen.memory_mb.append(footprint(server.pid).rss_mb)
        began_s = time.monotonic()
        try:
            for first in tqdm(range(0, len(planned), _BATCH), unit="batches", disable=None):
                with call_beside() as bystanders:
                    batch = planned[first : first + _BATCH]
                    seen.records += _sent(senders, batch, model=ready, seed=options.seed)
                seen.elapsed_s = time.monotonic() - began_s
                seen.translations += bystanders.translations
                seen.looks += bystanders.looks
                seen.server_faults += _faults(server, questions)
                seen.memory_mb.append(footprint(server.pid).rss_mb)
            measured = growths(senders[0], ready, shapes=grown_shapes, seed=options.seed)
            seen.growths += tqdm(measured, total=2 * len(grown_shapes), unit="shapes", disable=None)
            seen.server_faults += _faults(server, questions)
            seen.memory_mb.append(footprint(server.pid).rss_mb)
        except (ServerError, grpc.RpcError, OSError) as error:
            seen.server_faults.append(f"the server is gone after {len(seen.records)} inputs: {error}")
    log = log_path(options.output).read_text(encoding="utf-8", errors="replace").splitlines()
    seen.server_faults += [f"the server's log has: {line[:400]}" for line in read_log(log)[1]]
    return seen


def _sent(
    senders: Sequence[Callable[[BadInput], Answer]], planned: Plan, *, model: pb.ModelVersion, seed: int
) -> Iterator[Record]:
    """Let each sender that is free send the next input; yield the records as they come."""
    free = SimpleQueue[Callable[[BadInput], Answer]]()
    for sender in senders:
        free.put(sender)

    def send_next(one: tuple[str, int], bad: BadInput) -> Record:
        sender = free.get()
        try:
            answer = sender(bad)
        finally:
            free.put(sender)
        found = list(faults(bad, answer))
        characters, method = bad.num_characters, bad.method.value
        return Record(*one, method, characters, answer.status, answer.seconds, answer.num_retries, found)

    with ThreadPoolExecutor(len(senders)) as pool:
        yield from pool.map(send_next, planned, (make(*one, seed=seed, model=model) for one in planned))


def _faults(server: ServerProcess, questions: Sequence[Question]) -> Iterator[str]:
    """Look at a server without other callers: is it healthy and idle, and does it translate as it did?"""
    if left := wait_until_idle(server, timeout_s=30):
        yield f"work is left on the server: {left}"
    with Client(server.target) as client:
        replies = [client.check(), *(question.ask(client) for question in questions[:4])]
    yield from (f"an ordinary call: {reply.status} {reply.message}" for reply in replies if reply.status != "OK")
    if not all(pb.TranslateResponse.FromString(question.answer).translations for question in questions):
        yield "an ordinary request has no translation"


def growths(
    send: Callable[[BadInput], Answer], model: pb.ModelVersion, *, shapes: Sequence[str], seed: int
) -> Iterator[Growth]:
    """Yield how the work for requests and documents of each shape grows up to their greatest size."""
    options = {**CHEAP, "max_target_tokens": 1}
    sizes = {
        Method.TRANSLATE: model.limits.max_text_characters,
        Method.TRANSLATE_DOCUMENT: model.limits.max_document_characters,
    }

    def seconds(draw: Draw, method: Method, text: str) -> float:
        if method is Method.TRANSLATE_DOCUMENT:
            return send(draw.document(text, expected=OK, leaves=True)).seconds
        answer = send(draw.request(text, expected=OK, method=method, options=options))
        return sum((response.timings.text.ToNanoseconds() / 1e9 for response in answer.responses), 0.0)

    for shape, (method, size) in itertools.product(shapes, sizes.items()):
        draw = Draw(f"{seed}/{shape}", model=model)
        text, half_s, whole_s = repeated(shaped(draw, 61, shape), size), math.inf, math.inf
        for _ in range(4):
            half_s = min(half_s, seconds(draw, method, text[: size // 2]))
            whole_s = min(whole_s, seconds(draw, method, text))
            if whole_s <= _CLEAR_RATIO * half_s:
                break
        yield Growth(shape, method.value, size, half_s, whole_s, whole_s / half_s if half_s else 1.0)
