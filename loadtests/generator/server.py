"""The server under test: a running one, or a process that is started for the test."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from loadtests.generator.metrics import scrape, server_info

if TYPE_CHECKING:
    from dragoman_service.cli.server_process import ServerProcess  # not installed with the extra [locust]

CHECKOUT: Final = Path(__file__).resolve().parents[2]
BUNDLED_MODELS: Final = CHECKOUT / "deploy" / "models" / "dragoman_models"
_KEY_VARIABLE: Final = "DRAGOMAN_API_KEY"
_CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test: a running one, or a process that is started for the test."""

    address: str  # HOST:PORT
    metrics_url: str | None = None
    process: "ServerProcess | None" = None  # if it was started for the test
    key: str | None = None
    tls: bool = False
    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    private_key_file: str | Path | None = None

    def channel(self) -> grpc.Channel:
        """Return a new connection without retries; raises OSError if a file cannot be read."""
        files = (self.ca_file, self.private_key_file, self.certificate_file)
        if not self.tls and not any(files):
            return grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() if file else None for file in files))
        return grpc.secure_channel(self.address, credentials, options=_CHANNEL_OPTIONS)

    def info(self) -> list[str]:
        """Return version and models as the metrics show them; empty without metrics."""
        return server_info(scrape(self.metrics_url)) if self.metrics_url else []

    def stop(self) -> list[str]:
        """Stop a server that was started for the test; return a sentence if its exit code is not 0."""
        exit_code = self.process.stop() if self.process else 0
        return [f"server exited with {exit_code}"] if exit_code else []


def add_access_flags(parser: Any) -> None:
    """Add the flags for credentials to a parser or group."""
    add = parser.add_argument
    add("--api-key-file", metavar="FILE", help=f"file with the API key (default: the value of {_KEY_VARIABLE})")
    add("--tls", action="store_true", help="use TLS; implied by the following flags, whose files are PEM")
    add("--ca-file", metavar="FILE", help="trusted certificate authorities (default: the public ones)")
    add("--certificate-file", metavar="FILE", help="client certificate for mutual TLS")
    add("--private-key-file", metavar="FILE", help="private key of --certificate-file")


def add_server_flags(parser: Any) -> None:
    """Add the flags for the server and its credentials."""
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", help="running server (default: start one)")
    add("--metrics-url", metavar="URL", help="metrics of the running server, such as http://localhost:9464/metrics")
    add("--model-dir", type=Path, metavar="DIR", help="models of the server to start (default: the bundled models)")
    add("--config", type=Path, metavar="FILE", help="settings of the server to start")
    add_access_flags(parser)


def target_of(options: argparse.Namespace, address: str, **known: Any) -> Target:
    """Return the target that the flags describe; raises OSError if the file with the key cannot be read."""
    key_file = options.api_key_file
    key = Path(key_file).read_text(encoding="utf-8-sig") if key_file else os.environ.get(_KEY_VARIABLE, "")
    access = {name: getattr(options, name) for name in ("tls", "ca_file", "certificate_file", "private_key_file")}
    return Target(address=address, key=key.strip() or None, **access, **known)


@contextmanager
def open_target(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server that the flags name, or a started one with its log in `options.output`.

    Raises ServerProcessError if it does not start or has no metrics, OSError if the file with the key cannot be read.
    """
    from dragoman_service.cli.server_process import ServerProcess, ServerProcessError  # noqa: PLC0415 - not installed with [locust]

    options.output.mkdir(parents=True, exist_ok=True)
    if options.target:
        try:
            if options.metrics_url:
                scrape(options.metrics_url)
        except (OSError, ValueError) as error:
            raise ServerProcessError(f"{options.metrics_url}: no metrics: {error}") from error
        yield target_of(options, options.target, metrics_url=options.metrics_url)
        return
    given = {"--config": options.config, "--models": options.model_dir}
    flags = [part for flag, path in given.items() if path is not None for part in (flag, str(path.resolve()))]
    with ServerProcess(*flags, log=options.output / "server.log") as server:
        server.wait_until_ready()
        yield target_of(options, server.target, metrics_url=server.metrics_url, process=server)
