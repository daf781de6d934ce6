"""The server of a stress scenario, its log, and the versions of its model."""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from dragoman_service.cli.server_process import ServerProcess
from loadtests.generator.metrics import remaining_work, scrape

_Seen = TypeVar("_Seen")
_LOG_EVERY_FAILURE: Final = {"DRAGOMAN_LOGS__MAX_FAILURES_PER_S": "1000000"}
_ERRORS: Final = frozenset({"error", "critical"})
_MANIFEST: Final = "manifest.json"
_STEPS: Final = "dragoman_decoder_steps_total"  # grows as long as a batch is not empty


def poll(
    look: Callable[[], _Seen], is_done: Callable[[_Seen], bool], *, timeout_s: float, each_s: float = 0.05
) -> _Seen:
    """Return the first value of `look` that is done, or the last one before the timeout."""
    until_s = time.monotonic() + timeout_s
    while True:
        seen = look()
        if is_done(seen) or time.monotonic() > until_s:
            return seen
        time.sleep(each_s)


def log_path(output: Path) -> Path:
    """Return the path of the server log in an output directory."""
    return output / "server.log"


@contextmanager
def started(output: Path, *, models: Path, settings: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start a server with its log in `output` and wait until it is ready; raises ServerProcessError."""
    environment = {**_LOG_EVERY_FAILURE, **(settings or {})}
    with ServerProcess("--models", str(models.resolve()), log=log_path(output), environment=environment) as server:
        server.wait_until_ready()
        yield server


def wait_until_idle(server: ServerProcess, *, timeout_s: float) -> dict[str, float]:
    """Wait until a server without callers is idle; return the remaining work after the timeout."""
    num_steps = math.nan

    def remaining() -> dict[str, float]:
        nonlocal num_steps
        samples = scrape(server.metrics_url)
        num_new, num_steps = samples[_STEPS] - num_steps, samples[_STEPS]
        return remaining_work(samples) | ({_STEPS: num_new} if num_new else {})

    return poll(remaining, lambda work: not work, timeout_s=timeout_s, each_s=0.25)


def read_log(lines: Iterable[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records below the level error, and all other lines: errors, and output that is not a record."""
    records, errors = [], []
    for line in filter(None, map(str.strip, lines)):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and record.get("level") not in _ERRORS:
            records.append(record)
        else:
            errors.append(line)
    return records, errors


def log_errors(output: Path) -> list[str]:
    """Return the errors in the log of a server."""
    return read_log(log_path(output).read_text(encoding="utf-8", errors="replace").splitlines())[1]


def only_bundle(models: Path) -> Path:
    """Return the single bundle of a directory of models; raises ValueError."""
    bundles = sorted(path.parent for path in models.glob(f"*/*/{_MANIFEST}"))
    if len(bundles) != 1:
        raise ValueError(f"{models}: expected one bundle MODEL/VERSION, found {len(bundles)}")
    return bundles[0]


def add_version(bundle: Path, models: Path, version: int, *, is_broken: bool = False) -> Path:
    """Add a copy of a bundle as another version, atomically by a rename; a broken one has truncated weights."""
    path = models / bundle.parent.name / str(version)
    hidden = path.with_name(f".{version}")
    shutil.copytree(bundle, hidden, copy_function=shutil.copyfile)
    manifest = hidden / _MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "version": str(version)}), encoding="utf-8")
    if is_broken:
        weights = next(hidden.glob("weights*.bin"))
        weights.write_bytes(weights.read_bytes()[:-1])
    return hidden.rename(path)


def remove_version(path: Path) -> None:
    """Remove a version, atomically by a rename."""
    shutil.rmtree(path.rename(path.with_name(f".{path.name}-gone")))
