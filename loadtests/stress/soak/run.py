"""The run: one server, all callers, the swaps, and what is seen of the server meanwhile and afterwards."""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.report import figures_line
from loadtests.sampler import Footprint, footprint
from loadtests.stress.callers import TIMEOUT_S
from loadtests.stress.calls import Caller, Kind, Load, PlannedCall
from loadtests.stress.server import Versions, poll
from loadtests.stress.soak.ledger import Notes
from loadtests.stress.soak.plan import PROBES, Plan
from loadtests.target import ServerProcess, wait_until_idle
from loadtests.texts import Texts
from loadtests.wire import Method

_LABEL: Final = "stable"
"""Always points to a version that is ready."""
_BROKEN: Final = 1_000_000
"""Added to the number of a version that cannot be loaded."""
_IDLE_TIMEOUT_S: Final = 60.0
_CALM_S: Final = 2.0
"""For so long, nothing may change until the server counts as idle."""
_SAMPLE_EACH_S: Final = 0.5
_NUM_LINES: Final = 60
_WINDOW_S: Final = 8.0
_MAX_WINDOWS: Final = 30
_MAX_GROWTH_SHORT_MB: Final = 24.0
_MAX_GROWTH_MB: Final = 16.0
_LONG_S: Final = 900.0

Sample = Mapping[str, float]
"""The server at one moment of the load: at_s, rss_mb, threads, fds; calls and swaps so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long and how much."""

    duration_s: float
    num_callers: int = 16
    load_share: float = 0.65
    """Of the calls a second that were answered in the calibration."""

    swap_each_s: float = 6.0
    growth_limit_mb: float | None = None
    """By which memory may grow in the time that is judged, in MiB; None: 24, or 16 in a long run."""

    seed: int = 1

    @property
    def calibration_s(self) -> float:
        """Before the load: as many calls as are answered."""
        return min(max(2.0, self.duration_s / 15), 20.0)

    @property
    def warm_up_s(self) -> float:
        """From the start of the load; its memory is not judged, all else is."""
        return min(self.duration_s / 3, 240.0)

    @property
    def num_windows(self) -> int:
        """Of memory, after the warm-up."""
        return min(int((self.duration_s - self.warm_up_s) / _WINDOW_S), _MAX_WINDOWS)

    @property
    def is_long(self) -> bool:
        """Whether memory that is too uneven to be judged breaks the promise; a short run only shows that it grows."""
        return self.duration_s >= _LONG_S

    @property
    def max_slope(self) -> float:
        """The limit of growth in MiB per hour."""
        max_growth_mb = self.growth_limit_mb or (_MAX_GROWTH_MB if self.is_long else _MAX_GROWTH_SHORT_MB)
        return max_growth_mb / (self.duration_s - self.warm_up_s) * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The server without connections."""

    footprint: Footprint
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen from outside, before the server ended."""

    notes: Notes
    capacity_per_s: float
    elapsed_s: float
    samples: list[Sample]
    before: Idle
    after: Idle
    num_swaps: int
    num_broken_versions: int
    """Added on purpose, for the server to reject."""


@dataclass(slots=True, kw_only=True)
class Operator:
    """Swaps versions, one after the other; every call is noted like that of any other caller."""

    caller: Caller
    versions: Versions
    notes: Notes
    num_swaps: int = 0
    num_broken: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def swapping(self, *, each_s: float) -> Iterator[None]:
        """Swap from a thread of its own, each so many seconds or as soon as the last is done; an error ends it."""
        is_over = threading.Event()

        def swap_on() -> None:
            next_s = time.monotonic()
            while not is_over.wait(max(0.0, next_s - time.monotonic())):
                next_s += each_s
                self.swap()

        with ThreadPoolExecutor(1, thread_name_prefix="swaps") as pool:
            swaps = pool.submit(swap_on)
            try:
                yield
            finally:
                is_over.set()
        if error := swaps.exception():
            self.notes.errors.append(f"a swap failed: {error}")

    def swap(self) -> None:
        """Add the next version and remove the former: by calls, by the directory, or after one that is broken.

        Raises:
            RuntimeError: if something does not come about.
        """
        old, new, way = self.num_swaps + 1, self.num_swaps + 2, self.num_swaps % 3
        if way == 2:
            self.versions.add(_BROKEN + old, is_broken=True)
            self.num_broken += 1
            self._call(Method.LOAD_MODEL, _BROKEN + old, expected="FAILED_PRECONDITION")
            self._remove(_BROKEN + old)
        self.versions.add(new)
        if way == 1:
            self._wait(lambda states: states.get(str(new)) == pb.MODEL_STATE_READY, f"version {new} is ready")
        else:
            self._call(Method.LOAD_MODEL, new)
        self.label(new)
        if way == 0:
            self._call(Method.UNLOAD_MODEL, old)
        self._remove(old)
        self.num_swaps += 1

    def label(self, version: int) -> None:
        """Let the label point to a version."""
        self._call(Method.SET_MODEL_LABEL, version, label=_LABEL)

    def _remove(self, version: int) -> None:
        self.versions.remove(version)
        self._wait(lambda states: str(version) not in states, f"version {version} is gone")

    def _wait(self, holds: Callable[[dict[str, int]], bool], what: str) -> None:
        def states() -> dict[str, int]:
            (answer,) = self._call(Method.GET_MODEL)
            return {one.version: one.state for one in pb.GetModelResponse.FromString(answer).model.versions}

        if not holds(found := poll(states, holds, timeout_s=TIMEOUT_S, each_s=0.2)):
            raise RuntimeError(f"not within {TIMEOUT_S:g} s: {what}; there are {sorted(found)}")

    def _call(
        self, method: Method, version: int | None = None, *, expected: str = "OK", **fields: Any
    ) -> tuple[bytes, ...]:
        """Make a call about a version, or all of them, and note it; return the answer, none if it was refused."""
        model = self.versions.name if version is None else f"{self.versions.name}/{version}"
        planned = PlannedCall(
            request_id=f"swap-{next(self._numbers)}",
            kind=Kind.SWAP,
            method=method,
            raw=(getattr(pb, f"{method.value}Request")(model=model, **fields).SerializeToString(),),
            answers=(expected,),
        )
        reply = self.caller.make(planned)
        self.notes.note(planned, reply)
        if reply.status != expected:
            raise RuntimeError(f"{method.value}: {reply.status} instead of {expected}: {reply.message}")
        return reply.messages


def soak(server: ServerProcess, versions: Versions, texts: Texts, settings: Settings) -> Observations:
    """Calibrate, let the server become idle, put it under load, let it become idle again.

    The server is fresh, ready, and has version 1 of `versions`.

    Raises:
        RuntimeError: if a probe is not answered by an idle server, or nothing under load.
        ServerError: if the server ends.
    """
    notes, samples, models = Notes(), list[Sample](), ("", versions.name, f"{versions.name}@{_LABEL}")
    load = Load(target=server.target, num_callers=settings.num_callers, note=notes.note, look_each_s=_SAMPLE_EACH_S)
    calibration = Plan(texts=texts, models=models, prefix="c", seed=settings.seed + 1)
    plan = Plan(texts=texts, models=models, prefix="s", seed=settings.seed)
    samples_a_line = max(10, round(settings.duration_s / _NUM_LINES / _SAMPLE_EACH_S))
    with Caller(server.target, {}) as caller:
        for probe in PROBES:
            reply = caller.make(probe)
            notes.note(probe, reply)
            if reply.status != "OK":
                raise RuntimeError(f"{probe.request_id}: not answered when idle: {reply.status}: {reply.message}")
        operator = Operator(caller=caller, versions=versions, notes=notes)
        operator.label(1)
        with operator.swapping(each_s=settings.swap_each_s):
            num_calibrated = load.run(iter(calibration), duration_s=settings.calibration_s)
        if not num_calibrated:
            raise RuntimeError(f"no call was answered in {settings.calibration_s:g} s: is the machine busy otherwise?")
        capacity_per_s = num_calibrated / settings.calibration_s
        before, began_s = _idle(server), time.monotonic()

        def look() -> None:
            at_s, found = round(time.monotonic() - began_s, 2), footprint(server.pid)
            sizes = {"rss_mb": round(found.rss_mb, 2), "threads": found.num_threads, "fds": found.num_fds}
            figures = {**sizes, "calls": notes.num_calls, "swaps": operator.num_swaps}
            if len(samples) % samples_a_line == 0:
                line = figures_line(f"{at_s:.0f} of {settings.duration_s:.0f} s:", figures)
                print(line, file=sys.stderr, flush=True)
            samples.append({"at_s": at_s, **figures})

        with operator.swapping(each_s=settings.swap_each_s):
            rate_per_s = settings.load_share * capacity_per_s
            load.run(iter(plan), rate_per_s=rate_per_s, duration_s=settings.duration_s, look=look)
        elapsed_s = time.monotonic() - began_s
    return Observations(
        notes=notes,
        capacity_per_s=capacity_per_s,
        elapsed_s=elapsed_s,
        samples=samples,
        before=before,
        after=_idle(server, like=before.footprint),
        num_swaps=operator.num_swaps,
        num_broken_versions=operator.num_broken,
    )


def _idle(server: ServerProcess, *, like: Footprint | None = None) -> Idle:
    """Wait until the server is idle, and threads and files are as few as before; return what was found then."""
    wait_until_idle(server, timeout_s=_IDLE_TIMEOUT_S)
    seen = [footprint(server.pid)]

    def is_calm() -> bool:
        time.sleep(_CALM_S)
        seen.append(footprint(server.pid))
        pairs = (seen[-1], like or seen[-2]), (seen[-2], seen[-1])
        return all(one.num_threads <= most.num_threads and one.num_fds <= most.num_fds for one, most in pairs)

    poll(is_calm, bool, timeout_s=_IDLE_TIMEOUT_S)
    return Idle(footprint=seen[-1], metrics=server.samples())
