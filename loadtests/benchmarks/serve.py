"""`serve`: another system behind the same contract, with the usual dynamic batching."""

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
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.bundle.files import Bundle
from dragoman_service.calls import conversion, error_mapping
from dragoman_service.datatypes import Hypothesis, SegmentResult, StageTimings, TranslationResult
from dragoman_service.errors import (
    DragomanError,
    EngineError,
    ModelNotFoundError,
    OverloadedError,
    UnsupportedFieldError,
)
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.translation.options import check_request, fit_to_model
from dragoman_service.translation.settings import TranslationDefaults, TranslationLimits
from loadtests.benchmarks.interface import (
    GPU_PRECISIONS,
    Device,
    Output,
    Precision,
    SearchOptions,
    System,
    SystemName,
    SystemSettings,
    TokenIds,
    add_gpu,
)
from loadtests.benchmarks.systems import open_system
from loadtests.generator.flags import parsed_by

PRECISIONS: Final[dict[SystemName, Precision]] = {  # the fastest; Transformers has no int8 on CPUs
    "ctranslate2": "int8",
    "transformers": "fp32",
}

log = logging.getLogger(__name__)
_PATTERN: Final = re.compile(
    r"(?P<num_streams>[1-9]\d*)x(?P<num_threads>[1-9]\d*),b(?P<batch_size>[1-9]\d*),w(?P<max_wait_ms>\d+(\.\d+)?)"
)

_RETRY_AFTER_S: Final = 1.0  # of rejections
_WARM_UP: Final = SearchOptions(max_target_tokens=16, extra_target_tokens=EXTRA_TARGET_TOKENS)
_WARM_UP_SOURCE: Final = (*[5] * 23, 2)
_GRACE_S: Final = 5.0  # for calls in flight at the end
_SUPPORTED: Final = {
    *("beam_size", "length_penalty", "min_target_tokens", "max_target_tokens", "early_stopping", "repetition_guard")
}
"""Options that a request may set. CTranslate2 with a length penalty and Transformers always stop with the K-th finished
hypothesis; the repetition guard is ignored."""
_DESCRIPTION: Final = """\
Serves TranslationService.Translate of dragoman.v1 and grpc.health.v1 over CTranslate2 or generate of Transformers, with
the text pipeline of the service and the usual dynamic batching: sentences of all callers are collected until a batch is
full or the first of them has waited long enough, translated together, and answered when all are done. Sentences with
different options (beam, length penalty, limits) are never in one batch. Other options and methods are UNIMPLEMENTED.

Logs {"event": "listening", "grpc_port": N} and then {"event": "ready"}; ends on SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings(SystemSettings):
    """A system with dynamic batching."""

    system: SystemName = "ctranslate2"
    precision: Precision = "int8"
    batch_size: int = 32
    max_wait_ms: float = 5.0  # maximum wait of the first sentence of a batch
    max_waiting: int = 4096  # sentences in the queue

    @property
    def name(self) -> str:
        """Streams, threads of each, batch size and milliseconds of wait, such as `2x1,b32,w5`."""
        return f"{self.num_streams}x{self.num_threads},b{self.batch_size},w{self.max_wait_ms:g}"

    @classmethod
    def parse(cls, name: str) -> "BatchingSettings":
        """Parse a name; raises ValueError."""
        match = _PATTERN.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r}: expected STREAMSxTHREADS,bSENTENCES,wMILLISECONDS, such as 2x1,b32,w5")
        values: dict[str, Any] = {field: json.loads(value) for field, value in match.groupdict().items()}
        return cls(**values)

    def of(self, system: SystemName, gpu: Device | None = None) -> "BatchingSettings":
        """Return the settings for a system, also on a GPU."""
        precision = GPU_PRECISIONS[gpu] if gpu else PRECISIONS[system]
        return replace(self, system=system, precision=precision, device=gpu or "cpu")


Answer = tuple[Output, StageTimings]  # of one sentence: queued until its batch began, decoded with it


@dataclass(slots=True, eq=False)
class _Batch:
    """Sentences that are translated together."""

    waiting: list[tuple[TokenIds, float, "asyncio.Future[Answer]"]] = field(
        default_factory=list
    )  # source, arrival, answer
    is_full: asyncio.Event = field(default_factory=asyncio.Event)


class DynamicBatcher:
    """Translates sentences of all callers in batches with equal options; used from one event loop.

    A batch is due when it is full or its first sentence has waited long enough; until a thread is free, it grows.
    """

    def __init__(self, system: System, settings: BatchingSettings) -> None:
        self._translate = partial(system.translate, batch_size=settings.batch_size)
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.num_streams, thread_name_prefix="translating")
        self._free = asyncio.Semaphore(settings.num_streams)
        self._growing: dict[SearchOptions, _Batch] = {}
        self._num_waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def translate(self, sources: Sequence[TokenIds], options: SearchOptions) -> list[Answer]:
        """Return the answer to each source; cancellation drops those in the queue.

        Raises OverloadedError if the queue is full, EngineError if a batch failed.
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
        """Finish the running batches and end the threads."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown()

    async def _run(self, batch: _Batch, options: SearchOptions) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.max_wait_ms / 1000):
                await batch.is_full.wait()
        async with self._free:
            if self._growing[options] is batch:  # remove entries of past options
                del self._growing[options]
            self._num_waiting -= len(batch.waiting)
            pending = [one for one in batch.waiting if not one[2].done()]
            if not pending:
                return
            began_s, sources = time.monotonic(), [source for source, _, _ in pending]
            loop, outputs = asyncio.get_running_loop(), list[Output]()
            try:
                outputs += await loop.run_in_executor(self._threads, self._translate, sources, options)
            except Exception:  # only the callers of this batch get an error
                log.exception("a batch of %d sentences failed", len(pending))
        translate_s = time.monotonic() - began_s
        for index, (_, arrived_s, answer) in enumerate(pending):
            if answer.done():
                continue
            if outputs:
                answer.set_result((outputs[index], StageTimings(queue_s=began_s - arrived_s, decode_s=translate_s)))
            else:
                answer.set_exception(EngineError("translating failed"))


class _Servicer(pb_grpc.TranslationServiceServicer):
    """Translate over a batcher; also the `TextModel` of the text pipeline."""

    def __init__(self, bundle: Bundle, batcher: DynamicBatcher) -> None:
        self._manifest = bundle.manifest
        self._batcher = batcher
        self.tokenizer = open_tokenizer(bundle)
        self.max_source_tokens = bundle.manifest.limits.max_source_tokens
        self.max_target_tokens = bundle.manifest.limits.max_target_tokens
        self.confidence = None  # other systems do not return the log-probabilities of tokens

    async def Translate(self, request: pb.TranslateRequest, context: Any) -> pb.TranslateResponse:  # noqa: N802
        """Translate all texts of the request, with the errors of the service."""
        try:
            result = await self._translate(conversion.from_translate_request(request))
        except DragomanError as error:
            answer = error_mapping.to_rpc_error(error)
            await context.abort(answer.code, answer.message, answer.trailing_metadata)
        return conversion.to_translate_response(result, request_id=request.request_id)

    async def _translate(self, request: TranslationRequest) -> TranslationResult:
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
        translations = pipeline.assemble(plans, pipeline.attempts(plans, results))
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
        """Validate a request as the service does; return its text pipeline and the search options."""
        manifest, requested = self._manifest, request.options
        search = check_request(request, TranslationLimits(), TranslationDefaults(), draw_seed=lambda: 0).search
        if requested != replace(TranslationOptions(), **{name: getattr(requested, name) for name in _SUPPORTED}):
            raise UnsupportedFieldError("options")
        if any(request.target_prefixes):
            raise UnsupportedFieldError("target_prefixes")
        pair = f"{manifest.source_language}-{manifest.target_language}"
        if f"{request.source_language}-{request.target_language}" != pair:
            raise ModelNotFoundError("source_language", "the language pair", (pair,))
        search = fit_to_model(search, requested, self, name=manifest.name, has_attention=False)
        options = SearchOptions(
            beam_size=search.beam_size,
            min_target_tokens=search.min_target_tokens,
            max_target_tokens=min(search.max_target_tokens, self.max_target_tokens),
            extra_target_tokens=None if requested.max_target_tokens else EXTRA_TARGET_TOKENS,
            length_penalty=search.length_penalty,
        )
        return TextPipeline(request, model=self, search=search), options


@asynccontextmanager
async def serving(bundle: Bundle, system: System, settings: BatchingSettings, *, address: str) -> AsyncIterator[int]:
    """Serve gRPC and yield the port; at the end, finish calls for a few seconds. Raises RuntimeError."""
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
    """Add the command and its flags."""
    parser = add_command("serve", help="serve another system behind the same contract", description=_DESCRIPTION)
    add = parser.add_argument
    add("--system", choices=tuple(PRECISIONS), required=True, help="the system")
    add_gpu(parser, is_required=True)
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=50061, metavar="N", help="0: any free port (50061)")
    usual = BatchingSettings()
    settings = "concurrent batches, threads of each, batch size, milliseconds of wait "
    form, parse = "STREAMSxTHREADS,bN,wMS", parsed_by(BatchingSettings.parse)
    add("--settings", type=parse, default=usual, metavar=form, help=f"{settings}({usual.name})")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    files = arguments.files
    settings: BatchingSettings = arguments.settings.of(arguments.system, arguments.gpu)
    system = open_system(files, settings)
    for _ in range(1 + settings.num_streams):  # full batches, to allocate memory
        system.translate([_WARM_UP_SOURCE] * settings.batch_size, _WARM_UP, batch_size=settings.batch_size)

    def log_event(event: str, **fields: object) -> None:  # as `python -m dragoman_service serve` does
        print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)

    async def serve() -> None:
        is_over = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, is_over.set)
        address = f"{arguments.host}:{arguments.port}"
        async with serving(files.open(), system, settings, address=address) as port:
            log_event("listening", grpc_port=port)
            log_event("ready")
            await is_over.wait()
        log_event("stopped")

    asyncio.run(serve())
    return 0
