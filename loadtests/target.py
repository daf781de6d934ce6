"""The server that a test is about: one that runs already, or one that is started for it; and the flags that say so."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtests.sampling import scrape
from loadtests.server_process import ServerError, ServerProcess

_START_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to be tested."""

    address: str
    metrics_url: str | None
    process: ServerProcess | None = None
    """If it was started for the test."""

    def stop(self) -> int:
        """Let a server that was started drain; return its exit code, 0 for one that runs on."""
        return self.process.stop() if self.process else 0


def add_server_flags(parser: Any) -> None:
    """Declare which server it is; `parser` is an `argparse.ArgumentParser` or a group of one."""
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", help="one that runs already; default: one is started")
    add("--metrics-url", metavar="URL", help="of that one, such as http://localhost:9464/metrics")
    add("--model-dir", type=Path, metavar="DIR", help="models to start one with (the one that ships)")
    add("--config", type=Path, metavar="FILE", help="settings to start one with (its defaults)")


@contextmanager
def open_target(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server that the flags name, or one that is started, with its log in `options.output`.

    Raises:
        ServerError: if it does not start, or does not show its metrics.
    """
    if options.target:
        if options.metrics_url:
            _require_metrics(options.metrics_url)
        yield Target(address=options.target, metrics_url=options.metrics_url)
        return
    given = {"--config": options.config, "--models": options.model_dir}
    flags = [part for flag, path in given.items() if path is not None for part in (flag, str(path.resolve()))]
    with ServerProcess(options.output / "server.log", *flags) as server:
        server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
        yield Target(address=server.target, metrics_url=server.metrics_url, process=server)


def _require_metrics(url: str) -> None:
    try:
        scrape(url)
    except (OSError, ValueError) as error:
        raise ServerError(f"{url}: no metrics: {error}") from error
