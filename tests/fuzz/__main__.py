"""Fuzz all parts that process untrusted input: `python -m tests.fuzz --minutes 30`.

Each target runs in a process of its own, so that a crash of a library is a finding as well. The smallest input of a
finding is as_entry to `build/fuzz/found/`; move it to `tests/fuzz/corpus/` with a description.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.target import Check, Target, as_entry, corpus, no_hang
from tests.fuzz.targets import TARGETS

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_BUILD: Final = _CHECKOUT / "build" / "fuzz"
_EXAMPLES_EACH: Final = 100  # per seed


class Search:
    """Searches for a finding of one target until its time is over."""

    def __init__(self, target: Target, check: Check, *, until_s: float) -> None:
        self._target = target
        self._check = check
        self._until_s = until_s
        self._current = _BUILD / f"{target.name}.current"
        self.num_inputs = 0
        self.last = b""  # after a finding, the smallest input that shows it

    def run(self, generator: random.Random) -> None:
        """Raise the first finding."""
        for entry in corpus(self._target.name):
            self._judge(entry.content)
        while time.monotonic() < self._until_s:
            test = settings(
                max_examples=_EXAMPLES_EACH,
                deadline=None,
                database=DirectoryBasedExampleDatabase(_BUILD / "examples"),
                phases=(Phase.reuse, Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            )(seed(generator.getrandbits(64))(given(self._target.inputs)(self._judge_in_time)))
            test()

    def _judge_in_time(self, content: bytes) -> None:
        if time.monotonic() < self._until_s or content == self.last:
            self._judge(content)

    def _judge(self, content: bytes) -> None:
        self.last = content
        self._current.write_bytes(content)  # for crashes
        self.num_inputs += 1
        with no_hang():
            self._check(content)


def search(target: Target, *, duration_s: float, first_seed: int) -> int:
    """Search for one finding; return the exit code."""
    until_s = time.monotonic() + duration_s
    with target.opened() as check:
        found = Search(target, check, until_s=until_s)
        try:
            found.run(random.Random(f"{target.name} {first_seed}"))  # noqa: S311 - reproducible
        except Exception as error:  # noqa: BLE001 - any error is a finding
            print(f"{target.name}: {type(error).__name__}: {str(error)[:500]}")
            print(f"{target.name}: FOUND, see {_save(target.name, found.last, repr(error)[:300])}", flush=True)
            return 1
    print(f"{target.name}: {found.num_inputs} inputs, no finding", flush=True)
    return 0


def search_all(targets: list[Target], *, duration_s: float, first_seed: int) -> int:
    """Search in one process per target, in parallel on all cores; return the exit code."""
    num_jobs = os.cpu_count() or 1
    share_s = num_jobs * duration_s / max(num_jobs, sum(target.share for target in targets))

    def run(target: Target) -> int:
        duration = f"{share_s * target.share:.1f}"
        flags = ["--worker", "--target", target.name, "--seconds", duration, "--seed", str(first_seed)]
        exit_code = subprocess.call([sys.executable, "-m", "tests.fuzz", *flags], cwd=_CHECKOUT)
        current = _BUILD / f"{target.name}.current"
        if exit_code not in {0, 1} or (exit_code and not _found(target.name)):
            path = _save(target.name, current.read_bytes() if current.exists() else b"", f"exit code {exit_code}")
            print(f"{target.name}: FOUND, ended with exit code {exit_code}, see {path}", flush=True)
        return exit_code

    by_share = sorted(targets, key=lambda target: -target.share)
    with ThreadPoolExecutor(num_jobs) as pool:
        return int(any(pool.map(run, by_share)))


def _found(name: str) -> list[Path]:
    return list((_BUILD / "found").glob(f"{name}-*.json"))


def _save(name: str, content: bytes, found: str) -> Path:
    path = _BUILD / "found" / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_entry(found, content), encoding="utf-8")
    return path


def main() -> int:
    """Return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    names = sorted(target.name for target in TARGETS)
    parser.add_argument("--minutes", type=float, default=1.0, help="total time of all targets, without start-up")
    parser.add_argument("--target", action="append", choices=names, help="only this target; repeatable")
    parser.add_argument("--seed", type=int, default=None, help="seed of an earlier run")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = [target for target in TARGETS if not arguments.target or target.name in arguments.target]
    first_seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    _BUILD.mkdir(parents=True, exist_ok=True)
    if arguments.worker:
        return search(chosen[0], duration_s=arguments.seconds, first_seed=first_seed)
    for path in (found for target in chosen for found in _found(target.name)):
        path.unlink()
    print(f"seed {first_seed}", flush=True)
    return search_all(chosen, duration_s=60 * arguments.minutes, first_seed=first_seed)


if __name__ == "__main__":
    sys.exit(main())
