"""The server under test: started with models and a log of its own, and what it complains of."""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from loadtests.generator.metrics import work_left
from loadtests.generator.server import ServerProcess

SHIPPED_MODELS: Final = Path(__file__).resolve().parents[2] / "deploy" / "models"

_Seen = TypeVar("_Seen")
_START_TIMEOUT_S: Final = 120.0
_EVERY_LINE: Final = {"DRAGOMAN_LOGS__MAX_FAILURES_PER_S": "1000000"}
"""The log tells of every call, also of those that fail by the thousand."""

_COMPLAINTS: Final = frozenset({"error", "critical"})
_MANIFEST: Final = "manifest.json"
_STEPS: Final = "mt_decoder_steps_total"  # grows as long as anything is in a batch


def poll(
    look: Callable[[], _Seen], is_done: Callable[[_Seen], bool], *, timeout_s: float, each_s: float = 0.05
) -> _Seen:
    """Look again and again; return what was seen when it is done, or last before the time was out."""
    until_s = time.monotonic() + timeout_s
    while True:
        seen = look()
        if is_done(seen) or time.monotonic() > until_s:
            return seen
        time.sleep(each_s)


def log_path(output: Path) -> Path:
    """Return where a server that is started for an output directory writes its log."""
    return output / "server.log"


@contextmanager
def started(output: Path, *, models: Path, settings: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start a server, ready for calls, with a log in `output`, or raise ServerError; kill it if it runs at the end."""
    environment = {**_EVERY_LINE, **(settings or {})}
    with ServerProcess(log_path(output), "--models", str(models.resolve()), environment=environment) as server:
        server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
        yield server


def wait_until_idle(server: ServerProcess, *, timeout_s: float) -> dict[str, float]:
    """Wait until a server without callers is idle; return gauges of work, and steps, that it has when time runs out."""
    num_steps = math.nan

    def left() -> dict[str, float]:
        nonlocal num_steps
        samples = server.samples()
        num_new, num_steps = samples[_STEPS] - num_steps, samples[_STEPS]
        return work_left(samples) | ({_STEPS: num_new} if num_new else {})

    return poll(left, lambda found: not found, timeout_s=timeout_s, each_s=0.25)


def read_log(lines: Iterable[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a log that complain of nothing, and the lines that do.

    These are records of errors, and what is no record: what Python or a library writes when something is wrong.
    """
    records, complaints = [], []
    for line in filter(None, map(str.strip, lines)):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and record.get("level") not in _COMPLAINTS:
            records.append(record)
        else:
            complaints.append(line)
    return records, complaints


def only_bundle(models: Path) -> Path:
    """Return the one bundle of a directory of models; ValueError if there is none, or more than one."""
    bundles = sorted(path.parent for path in models.glob(f"*/*/{_MANIFEST}"))
    if len(bundles) != 1:
        raise ValueError(f"{models}: expected one bundle MODEL/VERSION, found {len(bundles)}")
    return bundles[0]


def add_version(bundle: Path, models: Path, version: int, *, is_broken: bool = False) -> Path:
    """Let a copy of a bundle, MODEL/VERSION, appear beside it or elsewhere as another version: as a whole, by a rename.

    The weights of a broken one lack their last byte.
    """
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
    """Let a version disappear, by a rename too."""
    shutil.rmtree(path.rename(path.with_name(f".{path.name}-gone")))
