"""`serve`: run the server until a signal arrives."""

import argparse
import asyncio
import logging
import os
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dragoman_service import app
from dragoman_service.config import CONFIG_VARIABLE, Settings, load_settings
from dragoman_service.errors import ConfigError, DragomanError
from dragoman_service.models.watcher import LOAD_THREAD_PREFIX
from dragoman_service.observability.logs import LogStream, configure_logs
from dragoman_service.threads import exit_after

_EXIT_S = 3.0  # for all threads to end; some wait for a file or a caller
_MAX_LOG_DELAY_S = 0.05  # of lines below the level `warning`, which are written together
_KILL_S = 2.0  # for loader threads to kill the processes that load

_DESCRIPTION = """\
Serves all models of a directory over gRPC and HTTP.

Settings come from flags, the environment (DRAGOMAN_GRPC__PORT=50051) and a TOML file, in this order of precedence.
The defaults serve the bundled models. docs/reference/settings.md lists all settings.

SIGTERM, SIGINT, SIGHUP or SIGQUIT drains the server: it sends clients to other servers and answers accepted requests.
A second signal stops it. SIGUSR1 and SIGUSR2 have no effect.

exit status: 0 after a complete drain, 1 if requests stayed unanswered or a model failed, 2 if a setting is invalid"""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "serve", help="run the server", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"settings in TOML (default: ${CONFIG_VARIABLE})")
    parser.add_argument("--models", metavar="DIR", help="models.directory: directory of the bundles, as NAME/VERSION/")
    parser.add_argument("--host", metavar="H", help="grpc.host and http.host: address to listen on")
    parser.add_argument("--grpc-port", metavar="N", help="grpc.port; 0 selects a free port and logs it")
    parser.add_argument("--http-port", metavar="M", help="http.port: API, metrics and probes; 0 selects a free port")
    parser.add_argument(
        "--fake",
        action="store_true",
        help="serve a fake model for tests of callers: `Hello.` becomes `[de] Hello.` for every language pair, and a "
        "sentence such as `fake:overloaded 0.5 x2` fails; excludes models.directory",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal arrives; return the exit status."""
    flags = {
        "models.directory": arguments.models,
        "grpc.host": arguments.host,
        "grpc.port": arguments.grpc_port,
        "http.host": arguments.host,
        "http.port": arguments.http_port,
    }
    try:
        settings = load_settings(file=arguments.config, environment=os.environ, flags=flags)
        stream = LogStream(sys.stderr.fileno(), max_delay_s=_MAX_LOG_DELAY_S)
        configure_logs(settings.logs, stream=stream)
        is_drained = _serve_fake(settings, stream) if arguments.fake else asyncio.run(app.serve(settings, stream))
    except DragomanError as error:
        logging.shutdown()  # writes all lines first
        print(f"dragoman: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    exit_code = 0 if is_drained else 1
    exit_after(_EXIT_S, exit_code)
    for thread in threading.enumerate():
        if thread.name.startswith(LOAD_THREAD_PREFIX):
            thread.join(_KILL_S)
            if thread.is_alive():
                logging.shutdown()
                os._exit(exit_code)  # a network that still runs would abort the process
    return exit_code


def _serve_fake(settings: Settings, stream: LogStream) -> bool:
    from dragoman_service.fake_model import fake_loader, with_fake_model  # noqa: PLC0415 - only for tests of callers

    try:
        bundles = TemporaryDirectory(prefix="dragoman-fake-")
    except OSError as error:
        raise ConfigError("--fake", True, f"a writable directory for temporary files, see TMPDIR ({error})") from error
    with bundles as directory:
        settings = with_fake_model(settings, Path(directory))
        return asyncio.run(app.serve(settings, stream, make_loader=fake_loader))
