"""Fuzz all parts that process untrusted input: `python -m tests.fuzz --minutes 30`.

Each target runs in a process of its own, so that a crash of a library is a finding as well. The smallest input of a
finding is written to `build/fuzz/found/`; move it to `tests/fuzz/corpus/` with a description.
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
from tests.fuzz.test_targets import TARGETS

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_BUILD: Final = _CHECKOUT / "build" / "fuzz"
_FOUND: Final = _BUILD / "found"
_EXAMPLES_EACH: Final = 100  # per seed


def search(target: Target, check: Check, *, until_s: float, seeds: random.Random) -> int:
    """Search until a time and return the number of inputs; raise the first finding, shrunk to its smallest input."""
    current = _BUILD / f"{target.name}.current"
    num_inputs = 0

    def judge(content: bytes) -> None:
        nonlocal num_inputs
        num_inputs += 1
        current.write_bytes(content)  # for crashes; after a finding, the smallest input that shows it
        with no_hang():
            check(content)

    def judge_in_time(content: bytes) -> None:
        if time.monotonic() < until_s or content == current.read_bytes():
            judge(content)

    for content in corpus(target.name):
        judge(content)
    while time.monotonic() < until_s:
        settings(
            max_examples=_EXAMPLES_EACH,
            deadline=None,
            database=DirectoryBasedExampleDatabase(_BUILD / "examples"),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )(seed(seeds.getrandbits(64))(given(target.inputs)(judge_in_time)))()
    return num_inputs


def run_worker(target: Target, *, duration_s: float, first_seed: int) -> int:
    """Search for one finding and print the result; return 1 after a finding."""
    seeds = random.Random(f"{target.name} {first_seed}")  # noqa: S311 - reproducible
    until_s = time.monotonic() + duration_s
    try:
        with target.opened() as check:
            num_inputs = search(target, check, until_s=until_s, seeds=seeds)
    except Exception as error:  # noqa: BLE001 - any error is a finding
        print(f"{target.name}: {type(error).__name__}: {str(error)[:500]}")
        _report(target, repr(error)[:300])
        return 1
    print(f"{target.name}: {num_inputs} inputs, no finding", flush=True)
    return 0


def search_all(targets: list[Target], *, duration_s: float, first_seed: int) -> int:
    """Search in one process per target, in parallel on all cores; return the exit code."""
    num_jobs = os.cpu_count() or 1
    share_s = num_jobs * duration_s / max(num_jobs, sum(target.share for target in targets))

    def run(target: Target) -> int:
        duration = f"{share_s * target.share:.1f}"
        flags = ["--worker", "--target", target.name, "--seconds", duration, "--seed", str(first_seed)]
        exit_code = subprocess.call([sys.executable, "-m", "tests.fuzz", *flags], cwd=_CHECKOUT)
        if exit_code not in {0, 1} or (exit_code and not list(_FOUND.glob(f"{target.name}-*.json"))):
            _report(target, f"exit code {exit_code}")
        return exit_code

    with ThreadPoolExecutor(num_jobs) as pool:
        return int(any(pool.map(run, sorted(targets, key=lambda target: -target.share))))


def _report(target: Target, found: str) -> None:
    current = _BUILD / f"{target.name}.current"
    content = current.read_bytes() if current.exists() else b""
    path = _FOUND / f"{target.name}-{hashlib.sha256(content).hexdigest()[:12]}.json"
    path.write_text(as_entry(found, content), encoding="utf-8")
    print(f"{target.name}: FOUND, see {path}: {found}", flush=True)


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
    _FOUND.mkdir(parents=True, exist_ok=True)
    if arguments.worker:
        return run_worker(chosen[0], duration_s=arguments.seconds, first_seed=first_seed)
    for path in (path for target in chosen for path in _FOUND.glob(f"{target.name}-*.json")):
        path.unlink()
    print(f"seed {first_seed}", flush=True)
    return search_all(chosen, duration_s=60 * arguments.minutes, first_seed=first_seed)


if __name__ == "__main__":
    sys.exit(main())
