"""`serve`: run the server until SIGTERM or SIGINT."""

import argparse
import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from dragoman_service import app
from dragoman_service.config import CONFIG_VARIABLE, load_settings
from dragoman_service.errors import ConfigError, DragomanError
from dragoman_service.models.watcher import LOADING
from dragoman_service.observability.logs import LogStream, configure_logs
from dragoman_service.threads import exit_after

_EXIT_S = 3.0
"""For all threads to end, of which some wait for a file or a caller."""

_KILL_S = 2.0
"""For threads that load models to kill the processes that load."""

_DESCRIPTION = """\
Serves every model of a directory over gRPC, and metrics and probes over HTTP.

Settings come from flags, else from the environment (DRAGOMAN_GRPC__PORT=50051), else from the file (TOML), else the
defaults serve the model that ships. docs/reference/settings.md lists them all.

SIGTERM or SIGINT drains: new calls are rejected, admitted ones answered. A second signal stops at once.

exit codes: 0 after a complete drain, 1 if calls were left unanswered or a model failed, 2 if a setting is wrong"""


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "serve", help="run the server", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"settings in TOML; else ${CONFIG_VARIABLE}")
    parser.add_argument("--models", metavar="DIR", help="models.directory: where bundles are, as NAME/VERSION/")
    parser.add_argument("--host", metavar="H", help="grpc.host and http.host: address to listen on")
    parser.add_argument("--grpc-port", metavar="N", help="grpc.port; 0 takes a free one and logs it")
    parser.add_argument("--http-port", metavar="M", help="http.port of metrics and probes; 0 as above")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve; return the exit code."""
    flags = {
        "models.directory": arguments.models,
        "grpc.host": arguments.host,
        "grpc.port": arguments.grpc_port,
        "http.host": arguments.host,
        "http.port": arguments.http_port,
    }
    try:
        settings = load_settings(file=arguments.config, environment=os.environ, flags=flags)
        stream = LogStream(sys.stderr.fileno())
        configure_logs(settings.logs, stream=stream)
        is_drained = asyncio.run(app.serve(settings, stream))
    except ConfigError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    except DragomanError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 1
    exit_code = 0 if is_drained else 1
    exit_after(_EXIT_S, exit_code)
    for thread in threading.enumerate():
        if thread.name.startswith(LOADING):
            thread.join(_KILL_S)
            if thread.is_alive():
                os._exit(exit_code)  # a network that still runs in this process would abort it
    return exit_code
