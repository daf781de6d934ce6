"""`serve`: another system behind the same contract, with the usual dynamic batching; what `load` compares with."""

import argparse
import asyncio
import json
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import grpc
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from loadtests.flags import parsed_by
from loadtests.peers.batching import PRECISIONS, BatchingSettings, DynamicBatcher
from loadtests.peers.servicer import PeerServicer
from loadtests.peers.systems import ModelFiles, SearchOptions, System
from loadtests.peers.workers import open_system
from service.bundle import Bundle
from service.text.pipeline import EXTRA_TARGET_TOKENS

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
