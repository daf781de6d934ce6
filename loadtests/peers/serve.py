"""`serve`: another system behind the same contract, with the usual dynamic batching; what `load` compares with."""

import argparse
import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from loadtests.peers.model_files import ModelFiles
from loadtests.peers.serving.server import PeerServer, serve_until_told
from loadtests.peers.serving.settings import PRECISIONS, BatchingSettings
from loadtests.peers.systems import SearchOptions, System
from loadtests.peers.workers import open_system
from service.text.pipeline import EXTRA_TARGET_TOKENS

_WARM_UP: Final = SearchOptions(max_target_tokens=16, extra_target_tokens=EXTRA_TARGET_TOKENS)
_WARM_UP_LENGTH: Final = 24
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
        type=settings_of,
        default=BatchingSettings(),
        metavar="STREAMSxTHREADS,bN,wMS",
        help="batches at a time, threads of each, most sentences of a batch, milliseconds that the first one waits for "
        f"others ({BatchingSettings().name})",
    )
    add("--output", type=Path, default=Path("build/peers-load"), metavar="DIR", help="for models (build/peers-load)")
    parser.set_defaults(run=run)


def settings_of(text: str) -> BatchingSettings:
    """Parse a flag."""
    try:
        return BatchingSettings.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to end; return the exit code."""
    files = _files(arguments)
    settings: BatchingSettings = arguments.settings
    system = open_system(files, settings.of_system(arguments.system))
    try:
        _warm_up(system, settings)
        asyncio.run(_serve(files, system, settings, arguments))
    finally:
        system.close()
    return 0


async def _serve(files: ModelFiles, system: System, settings: BatchingSettings, arguments: argparse.Namespace) -> None:
    server = PeerServer(files.open(), system, settings)
    await serve_until_told(server, host=arguments.host, port=arguments.port)


def _files(arguments: argparse.Namespace) -> ModelFiles:
    if arguments.files is not None:
        return ModelFiles(directory=arguments.files)
    workspace = import_module("loadtests.peers.workspace")  # needs PyTorch, which a server else does without
    files: ModelFiles = workspace.prepare_model(
        arguments.output / "models" / arguments.model, arguments.model, ends=True
    )
    return files


def _warm_up(system: System, settings: BatchingSettings) -> None:
    """Translate full batches, so that the first callers wait for no memory."""
    sources = [(*[5] * (_WARM_UP_LENGTH - 1), 2)] * settings.max_batch_size
    for _ in range(1 + settings.num_streams):
        system.translate(sources, _WARM_UP, batch_size=settings.max_batch_size)
