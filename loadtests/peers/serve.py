"""`serve`: another system behind the same contract, with the usual dynamic batching; what `load` compares with."""

import argparse
import asyncio
import json
import logging
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.bundle.files import Bundle
from dragoman_service.datatypes import Hypothesis, SegmentResult, StageTimings, TranslationResult
from dragoman_service.errors import (
    DragomanError,
    EngineError,
    ModelNotFoundError,
    OverloadedError,
    UnsupportedFieldError,
)
from dragoman_service.middleware import conversion, error_mapping
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.translation.options import TranslationDefaults, TranslationLimits, check_request, fit_to_model
from loadtests.flags import parsed_by
from loadtests.peers import systems
from loadtests.peers.systems import (
    GPU_PRECISIONS,
    Device,
    Output,
    Peer,
    Precision,
    SearchOptions,
    System,
    TokenIds,
    add_gpu,
)

PRECISIONS: Final[dict[Peer, Precision]] = {"ctranslate2": "int8", "transformers": "fp32"}
"""What can be served so, at the precision at which it is quickest: Transformers has no int8 on CPUs."""

log = logging.getLogger(__name__)
_PATTERN: Final = re.compile(
    r"(?P<num_streams>[1-9]\d*)x(?P<num_threads>[1-9]\d*),b(?P<batch_size>[1-9]\d*),w(?P<max_wait_ms>\d+(\.\d+)?)"
)

_RETRY_AFTER_S: Final = 1.0  # what a caller is told who finds the queue full
_WARM_UP: Final = SearchOptions(max_target_tokens=16, extra_target_tokens=EXTRA_TARGET_TOKENS)
_WARM_UP_SOURCE: Final = (*[5] * 23, 2)
_GRACE_S: Final = 5.0  # for callers who wait for an answer when the server is told to end
_SUPPORTED: Final = {
    *("beam_size", "length_penalty", "min_target_tokens", "max_target_tokens", "early_stopping", "repetition_guard")
}
"""What a request may choose. The systems behind stop as they do, whether told or not: CTranslate2, under a length
penalty, and Transformers with the K-th finished hypothesis. There is no guard here, so that is as if it found nothing.
"""
_DESCRIPTION: Final = """\
Serves TranslationService.Translate of dragoman.v1 and grpc.health.v1 over CTranslate2 or Transformers' generate, with
the text pipeline of the service around it and the usual dynamic batching: sentences of all callers are collected until
a batch is full or the first of them has waited long enough, translated together, and answered when all are done.
Sentences with different options (beam, length penalty, limits) are never in one batch. Options that the systems are
not asked for, and all other methods, are UNIMPLEMENTED.

Logs {"event": "listening", "grpc_port": N} and then {"event": "ready"}; ends on SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings(systems.SystemSettings):
    """A system with the usual dynamic batching."""

    peer: Peer = "ctranslate2"
    precision: Precision = "int8"
    batch_size: int = 32
    max_wait_ms: float = 5.0  # which the first sentence of a batch waits for others
    max_waiting: int = 4096  # most sentences that wait; calls that come then are rejected

    @property
    def name(self) -> str:
        """Such as `2x1,b32,w5`: streams, threads of each, sentences of a batch, milliseconds of waiting."""
        return f"{self.num_streams}x{self.num_threads},b{self.batch_size},w{self.max_wait_ms:g}"

    @classmethod
    def parse(cls, name: str) -> "BatchingSettings":
        """Return the settings of a name; ValueError if it is none."""
        match = _PATTERN.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r}: expected STREAMSxTHREADS,bSENTENCES,wMILLISECONDS, such as 2x1,b32,w5")
        values: dict[str, Any] = {field: json.loads(value) for field, value in match.groupdict().items()}
        return cls(**values)

    def of(self, peer: Peer, gpu: Device | None = None) -> "BatchingSettings":
        """Return the same for a system, perhaps in a comparison on a GPU."""
        precision = GPU_PRECISIONS[gpu] if gpu else PRECISIONS[peer]
        return replace(self, peer=peer, precision=precision, device=gpu or "cpu")


Answer = tuple[Output, StageTimings]
"""What became of one sentence: queued until its batch began, decoded with the whole of it."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Sentences that will be translated together."""

    waiting: list[tuple[TokenIds, float, "asyncio.Future[Answer]"]] = field(default_factory=list)  # since when
    is_full: asyncio.Event = field(default_factory=asyncio.Event)


class DynamicBatcher:
    """Translates sentences of all callers in batches of the same options; used from one event loop.

    A batch is due when it is full or its first sentence has waited long enough. While no thread is free, it goes on
    growing.
    """

    def __init__(self, system: System, settings: BatchingSettings) -> None:
        """Start as many threads as there are streams; the system is called by all of them."""
        self._translate = partial(system.translate, batch_size=settings.batch_size)
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.num_streams, thread_name_prefix="translating")
        self._free = asyncio.Semaphore(settings.num_streams)
        self._growing: dict[SearchOptions, _Batch] = {}
        self._num_waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def translate(self, sources: Sequence[TokenIds], options: SearchOptions) -> list[Answer]:
        """Return the answer to each source, in order; if the awaiting task is cancelled, those that wait are dropped.

        Raises OverloadedError if not all of them find a place in the queue, EngineError if a batch of them failed.
        """
        limit = self._settings.max_waiting
        if self._num_waiting + len(sources) > limit:
            raise OverloadedError(queued=self._num_waiting, limit=limit, unit="sentences", retry_after_s=_RETRY_AFTER_S)
        self._num_waiting += len(sources)
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        answers: list[asyncio.Future[Answer]] = [loop.create_future() for _ in sources]
        for source, answer in zip(sources, answers, strict=True):
            batch = self._growing.get(options)
            if batch is None or batch.is_full.is_set():
                batch = self._growing[options] = _Batch()
                task = asyncio.create_task(self._run(batch, options))
                self._tasks.add(task)  # the event loop itself keeps only a weak reference
                task.add_done_callback(self._tasks.discard)
            batch.waiting.append((source, now_s, answer))
            if len(batch.waiting) == self._settings.batch_size:
                batch.is_full.set()
        return await asyncio.gather(*answers)

    def close(self) -> None:
        """End the threads once their batches are done."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown()

    async def _run(self, batch: _Batch, options: SearchOptions) -> None:
        """Let a batch grow, translate what callers still wait for, and answer them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.max_wait_ms / 1000):
                await batch.is_full.wait()
        async with self._free:
            if self._growing[options] is batch:  # callers may choose among any number of options: keep no empty ones
                del self._growing[options]
            self._num_waiting -= len(batch.waiting)
            wanted = [one for one in batch.waiting if not one[2].done()]
            if not wanted:
                return
            began_s, sources = time.monotonic(), [source for source, _, _ in wanted]
            loop, outputs = asyncio.get_running_loop(), list[Output]()
            try:
                outputs += await loop.run_in_executor(self._threads, self._translate, sources, options)
            except Exception:  # its callers are told, and others are still answered
                log.exception("a batch of %d sentences failed", len(wanted))
        translate_s = time.monotonic() - began_s
        for place, (_, arrived_s, answer) in enumerate(wanted):
            if answer.done():
                continue
            if outputs:
                answer.set_result((outputs[place], StageTimings(queue_s=began_s - arrived_s, decode_s=translate_s)))
            else:
                answer.set_exception(EngineError("translating failed"))


class _Servicer(pb_grpc.TranslationServiceServicer):
    """The call of load tests over a batcher; to the text pipeline it is the model of a bundle (`TextModel`)."""

    def __init__(self, bundle: Bundle, batcher: DynamicBatcher) -> None:
        self._manifest = bundle.manifest
        self._batcher = batcher
        self.tokenizer = open_tokenizer(bundle)
        self.max_source_tokens = bundle.manifest.limits.max_source_tokens
        self.max_target_tokens = bundle.manifest.limits.max_target_tokens
        self.confidence = None  # other systems do not tell the probabilities of tokens

    async def Translate(self, request: pb.TranslateRequest, context: Any) -> pb.TranslateResponse:  # noqa: N802
        """Translate all texts of the request; errors are told as the service does."""
        try:
            result = await self._translated(conversion.from_translate_request(request))
        except DragomanError as error:
            answer = error_mapping.answer(error)
            await context.abort(answer.code, answer.message, answer.trailing_metadata)
        return conversion.to_translate_response(result, request_id=request.request_id)

    async def _translated(self, request: TranslationRequest) -> TranslationResult:
        began_s = time.monotonic()
        pipeline, options = self._prepared(request)
        plans = pipeline.plan()
        segments = [part.segment for plan in plans for part in plan.parts]
        split_s = time.monotonic() - began_s
        answers = await self._batcher.translate([segment.source_ids for segment in segments], options)
        ended_s = time.monotonic()
        results = list[SegmentResult]()
        for (ids, score), _ in answers:
            ends = ids[-1:] == (self.tokenizer.eos_id,)
            best = Hypothesis(token_ids=ids, token_log_probs=(), log_prob=score, score=score, is_finished=ends)
            results.append(SegmentResult(hypotheses=(best,), num_steps=len(ids), timings=StageTimings()))
        translations = pipeline.assemble(plans, results)
        return TranslationResult(
            translations=translations,
            model_name=self._manifest.name,
            model_version=self._manifest.version,
            timings=StageTimings(
                queue_s=max((timings.queue_s for _, timings in answers), default=0.0),
                decode_s=max((timings.decode_s for _, timings in answers), default=0.0),
                text_s=split_s + time.monotonic() - ended_s,
            ),
            num_source_tokens=sum(len(segment.source_ids) for segment in segments),
            num_target_tokens=sum(len(output.token_ids) for output, _ in answers),
        )

    def _prepared(self, request: TranslationRequest) -> tuple[TextPipeline, SearchOptions]:
        """Check a request as the service does; return its text side and what the system is asked for."""
        manifest, wanted = self._manifest, request.options
        search = check_request(request, TranslationLimits(), TranslationDefaults(), draw_seed=lambda: 0)  # draws none
        if wanted != replace(TranslationOptions(), **{name: getattr(wanted, name) for name in _SUPPORTED}):
            raise UnsupportedFieldError("options")
        if any(request.target_prefixes):
            raise UnsupportedFieldError("target_prefixes")
        known = f"{manifest.source_language}-{manifest.target_language}"
        if f"{request.source_language}-{request.target_language}" != known:
            raise ModelNotFoundError("source_language", "the language pair", (known,))
        search = fit_to_model(search, wanted, self, name=manifest.name, has_attention=False)
        options = SearchOptions(
            beam_size=search.beam_size,
            min_target_tokens=search.min_target_tokens,
            max_target_tokens=min(search.max_target_tokens, self.max_target_tokens),
            extra_target_tokens=None if wanted.max_target_tokens else EXTRA_TARGET_TOKENS,
            length_penalty=search.length_penalty,
        )
        return TextPipeline(request, model=self, search=search), options


@asynccontextmanager
async def serving(bundle: Bundle, system: System, settings: BatchingSettings, *, address: str) -> AsyncIterator[int]:
    """Serve calls over gRPC and yield the bound port; at the end callers who wait get answers for a few seconds.

    Raises RuntimeError if the address cannot be listened on.
    """
    batcher, healthy, server = DynamicBatcher(system, settings), health.aio.HealthServicer(), grpc.aio.server()
    pb_grpc.add_TranslationServiceServicer_to_server(_Servicer(bundle, batcher), server)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    bound: int = server.add_insecure_port(address)
    await server.start()
    for name in (health.OVERALL_HEALTH, pb.DESCRIPTOR.services_by_name["TranslationService"].full_name):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield bound
    finally:
        await healthy.enter_graceful_shutdown()
        await server.stop(_GRACE_S)
        batcher.close()


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the command and its flags."""
    parser = add_command("serve", help="serve another system behind the same contract", description=_DESCRIPTION)
    add = parser.add_argument
    add("--system", choices=tuple(PRECISIONS), required=True, help="what translates")
    add("--model", choices=("base", "shipped"), default="shipped", help="which weights (shipped)")
    add_gpu(parser)
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=50061, metavar="N", help="0: any that is free (50061)")
    usual = BatchingSettings()
    what = "batches at a time, threads of each, most sentences of a batch, milliseconds that the first one waits for "
    form, parse = "STREAMSxTHREADS,bN,wMS", parsed_by(BatchingSettings.parse)
    add("--settings", type=parse, default=usual, metavar=form, help=f"{what}others ({usual.name})")
    add("--output", type=Path, default=Path("build/peers-load"), metavar="DIR", help="for models (build/peers-load)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    files = arguments.files
    if files is None:
        models = import_module("loadtests.peers.models")  # needs PyTorch, which a server else does without
        files = models.prepare_model(arguments.output / "models" / arguments.model, arguments.model, ends=True)
    settings: BatchingSettings = arguments.settings.of(arguments.system, arguments.gpu)
    system = systems.open_system(files, settings)
    for _ in range(1 + settings.num_streams):  # full batches, so that the first callers wait for no memory
        system.translate([_WARM_UP_SOURCE] * settings.batch_size, _WARM_UP, batch_size=settings.batch_size)

    def say(event: str, **facts: object) -> None:  # as `python -m dragoman_service serve` does
        print(json.dumps({"event": event, **facts}), file=sys.stderr, flush=True)

    async def serve() -> None:
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        address = f"{arguments.host}:{arguments.port}"
        async with serving(files.open(), system, settings, address=address) as port:
            say("listening", grpc_port=port)
            say("ready")
            await told.wait()
        say("stopped")

    asyncio.run(serve())
    return 0
