"""`serve`: another system behind the same contract, with the usual dynamic batching; what `load` compares with.

Translate of dragoman.v1 over a batcher, with our own text pipeline around it; all else is UNIMPLEMENTED.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from loadtests.flags import parsed_by
from loadtests.peers.batching import PRECISIONS, Answer, BatchingSettings, DynamicBatcher
from loadtests.peers.systems import ModelFiles, SearchOptions, System
from loadtests.peers.workers import open_system
from service.api import messages, status
from service.bundle import Bundle
from service.datatypes import Hypothesis, SegmentResult, StageTimings, TranslationResult
from service.errors import DragomanError, ModelNotFoundError, UnsupportedFieldError
from service.requests import TranslationOptions, TranslationRequest
from service.text.pipeline import EXTRA_TARGET_TOKENS, TextPipeline
from service.text.tokenizer import SentencePieceTokenizer, open_tokenizer
from service.translate.options import TranslationDefaults, TranslationLimits, check_request, fit_to_model

_WARM_UP: Final = SearchOptions(max_target_tokens=16, extra_target_tokens=EXTRA_TARGET_TOKENS)
_WARM_UP_LENGTH: Final = 24
_GRACE_S: Final = 5.0
"""For callers who wait for an answer when the server is told to end."""
_SERVICE_NAME: Final[str] = pb.DESCRIPTOR.services_by_name["TranslationService"].full_name
_DESCRIPTION: Final = """\
Serves TranslationService.Translate of dragoman.v1 and grpc.health.v1 over CTranslate2 or Transformers' generate, with
the text pipeline of the service around it and the usual dynamic batching: sentences of all callers are collected until
a batch is full or the first of them has waited long enough, translated together, and answered when all are done.
Sentences with different options (beam, length penalty, limits) are never in one batch. Options that the systems are
not asked for, and all other methods, are UNIMPLEMENTED.

Logs {"event": "listening", "grpc_port": N} and then {"event": "ready"}; ends on SIGTERM."""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "serve",
        help="serve another system behind the same contract",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--system", choices=tuple(PRECISIONS), required=True, help="what translates")
    add("--model", choices=("base", "shipped"), default="shipped", help="which weights (shipped)")
    add("--files", type=Path, metavar="DIR", help="the model as `load` has prepared it; default: prepare it now")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=50061, metavar="N", help="0: any that is free (50061)")
    add(
        "--settings",
        type=parsed_by(BatchingSettings.parse),
        default=BatchingSettings(),
        metavar="STREAMSxTHREADS,bN,wMS",
        help="batches at a time, threads of each, most sentences of a batch, milliseconds that the first one waits for "
        f"others ({BatchingSettings().name})",
    )
    add("--output", type=Path, default=Path("build/peers-load"), metavar="DIR", help="for models (build/peers-load)")
    parser.set_defaults(run=run)


_SUPPORTED = (
    "beam_size",
    "length_penalty",
    "min_target_tokens",
    "max_target_tokens",
    "early_stopping",
    "repetition_guard",
)
"""What a request may choose. The systems behind stop as they do, whether told or not: CTranslate2, under a length
penalty, and Transformers with the K-th finished hypothesis. There is no guard here, so that is as if it found nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedText:
    """What the text pipeline must know of the model."""

    tokenizer: SentencePieceTokenizer
    max_source_tokens: int
    max_target_tokens: int


class PeerServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService, of which it implements the call of load tests."""

    def __init__(self, bundle: Bundle, batcher: DynamicBatcher) -> None:
        """Take tokenizer, names and limits from the bundle."""
        self._manifest = bundle.manifest
        limits = self._manifest.limits
        self._text = ServedText(
            tokenizer=open_tokenizer(bundle),
            max_source_tokens=limits.max_source_tokens,
            max_target_tokens=limits.max_target_tokens,
        )
        self._batcher = batcher

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, context: grpc.aio.ServicerContext
    ) -> pb.TranslateResponse:
        """Translate all texts of the request; errors are told as the service does."""
        try:
            result = await self._translated(messages.from_translate_request(request))
        except DragomanError as error:
            answer = status.answer(error)
            context.set_trailing_metadata(answer.trailing_metadata)
            await context.abort(answer.code, answer.message)
        return messages.to_translate_response(result, request_id=request.request_id)

    async def _translated(self, request: TranslationRequest) -> TranslationResult:
        began_s = time.monotonic()
        pipeline, options = self._prepared(request)
        plans = pipeline.plan()
        segments = [part.segment for plan in plans for part in plan.parts]
        split_s = time.monotonic() - began_s
        answers = await self._batcher.translate([segment.source_ids for segment in segments], options)
        ended_s = time.monotonic()
        results = [_result(answer, self._text.tokenizer.eos_id) for answer in answers]
        translations = pipeline.assemble(plans, results)
        return TranslationResult(
            translations=translations,
            model_name=self._manifest.name,
            model_version=self._manifest.version,
            timings=StageTimings(
                queue_s=max((answer.queue_s for answer in answers), default=0.0),
                decode_s=max((answer.translate_s for answer in answers), default=0.0),
                text_s=split_s + time.monotonic() - ended_s,
            ),
            num_source_tokens=sum(len(segment.source_ids) for segment in segments),
            num_target_tokens=sum(len(answer.output.token_ids) for answer in answers),
        )

    def _prepared(self, request: TranslationRequest) -> tuple[TextPipeline, SearchOptions]:
        """Check a request as the service does; return its text side and what the system is asked for."""
        limits, defaults = TranslationLimits(), TranslationDefaults()
        search = check_request(request, limits, defaults, draw_seed=lambda: 0)  # nothing is drawn here
        _check_supported(request)
        known = f"{self._manifest.source_language}-{self._manifest.target_language}"
        if f"{request.source_language}-{request.target_language}" != known:
            raise ModelNotFoundError("source_language", "the language pair", (known,))
        name = f"{self._manifest.name}/{self._manifest.version}"
        search = fit_to_model(search, request.options, self._text, name=name, has_attention=False)
        has_limit = request.options.max_target_tokens is not None
        options = SearchOptions(
            beam_size=search.beam_size,
            min_target_tokens=search.min_target_tokens,
            max_target_tokens=search.max_target_tokens if has_limit else self._text.max_target_tokens,
            extra_target_tokens=None if has_limit else EXTRA_TARGET_TOKENS,
            length_penalty=search.length_penalty,
        )
        return TextPipeline(request, model=self._text, search=search), options


def _check_supported(request: TranslationRequest) -> None:
    """Raise UnsupportedFieldError if a request chooses what the systems behind are not asked for."""
    chosen = {name: getattr(request.options, name) for name in _SUPPORTED}
    if request.options != replace(TranslationOptions(), **chosen):
        raise UnsupportedFieldError("options")
    if any(request.target_prefixes):
        raise UnsupportedFieldError("target_prefixes")


def _result(answer: Answer, eos_id: int) -> SegmentResult:
    token_ids, score = answer.output.token_ids, answer.output.score
    is_finished = token_ids[-1:] == (eos_id,)
    best = Hypothesis(token_ids=token_ids, token_log_probs=(), log_prob=score, score=score, is_finished=is_finished)
    return SegmentResult(hypotheses=(best,), num_steps=len(token_ids), timings=StageTimings())


class PeerServer:
    """Answers over gRPC; made and used within a running event loop."""

    def __init__(self, bundle: Bundle, system: System, settings: BatchingSettings) -> None:
        """Build it; its caller closes the system."""
        self._batcher = DynamicBatcher(
            lambda sources, search: system.translate(sources, search, batch_size=settings.max_batch_size), settings
        )
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server()
        pb_grpc.add_TranslationServiceServicer_to_server(PeerServicer(bundle, self._batcher), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, *, host: str, port: int) -> int:
        """Serve calls; return the bound port. RuntimeError if the address cannot be listened on."""
        bound: int = self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()
        for name in (health.OVERALL_HEALTH, _SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def stop(self) -> None:
        """Answer callers who wait, for a few seconds, and end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_GRACE_S)
        self._batcher.close()


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to end; return the exit code."""
    files = _files(arguments)
    settings: BatchingSettings = arguments.settings
    system = open_system(files, settings.of_system(arguments.system))
    try:
        sources = [(*[5] * (_WARM_UP_LENGTH - 1), 2)] * settings.max_batch_size
        for _ in range(1 + settings.num_streams):  # full batches, so that the first callers wait for no memory
            system.translate(sources, _WARM_UP, batch_size=settings.max_batch_size)
        asyncio.run(_serve(files.open(), system, settings, arguments))
    finally:
        system.close()
    return 0


def _files(arguments: argparse.Namespace) -> ModelFiles:
    if arguments.files is not None:
        return ModelFiles(directory=arguments.files)
    models = import_module("loadtests.peers.models")  # needs PyTorch, which a server else does without
    files: ModelFiles = models.prepare_model(arguments.output / "models" / arguments.model, arguments.model, ends=True)
    return files


async def _serve(bundle: Bundle, system: System, settings: BatchingSettings, arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; says in its log, as `python -m service serve` does, where and since when."""
    server, told = PeerServer(bundle, system, settings), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    _log("listening", grpc_port=await server.start(host=arguments.host, port=arguments.port))
    _log("ready")
    await told.wait()
    await server.stop()
    _log("stopped")


def _log(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), file=sys.stderr, flush=True)
