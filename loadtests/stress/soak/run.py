"""The run: one server, all callers, the swaps, and what is seen of the server meanwhile and afterwards."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.contract import meaning
from loadtests.sampler import Footprint, footprint
from loadtests.stress.callers import REQUEST_ID_KEY, Client, Reply
from loadtests.stress.calls import Load, PlannedCall
from loadtests.stress.server import Versions, poll
from loadtests.stress.soak.judging import Notes, judge
from loadtests.stress.soak.plan import planned_calls, probe_calls
from loadtests.stress.soak.swaps import LABEL, Operator
from loadtests.target import ServerProcess, wait_until_idle
from loadtests.texts import Texts

_IDLE_TIMEOUT_S: Final = 60.0
_CALM_S: Final = 2.0
"""For so long, nothing may change until the server counts as idle."""
_SAMPLE_EACH_S: Final = 0.5
_WINDOW_S: Final = 8.0
_MAX_WINDOWS: Final = 30
_MAX_GROWTH_SHORT_MB: Final = 24.0
_MAX_GROWTH_MB: Final = 16.0
_LONG_S: Final = 900.0


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
class Sample:
    """The server at one moment of the load."""

    at_s: float
    rss_mb: float
    threads: int
    fds: int
    calls: int
    swaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The server without connections."""

    footprint: Footprint
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen from outside, before the server ended."""

    capacity_per_s: float
    rate_per_s: float
    elapsed_s: float
    samples: Sequence[Sample]
    before: Idle
    after: Idle
    num_swaps: int
    num_broken_versions: int
    """Added on purpose, for the server to reject."""


def soak(
    server: ServerProcess,
    versions: Versions,
    texts: Texts,
    notes: Notes,
    settings: Settings,
    *,
    progress: Callable[[Sample], None],
) -> Observations:
    """Calibrate, let the server become idle, put it under load, let it become idle again.

    The server is fresh, ready, and has version 1 of `versions`; every call is added to `notes`.

    Raises:
        RuntimeError: if a probe is not answered by an idle server, or nothing under load.
        ServerError: if the server ends.
    """
    probes, models = probe_calls(), ("", versions.name, f"{versions.name}@{LABEL}")

    def note(planned: PlannedCall, reply: Reply) -> None:
        notes.add(judge(planned, reply, reference=None if planned.probe is None else references[planned.probe]))

    def plan(prefix: str, seed: int) -> Iterator[PlannedCall]:
        return planned_calls(texts, probes, models=models, prefix=prefix, seed=seed)

    load = Load(server.target, num_callers=settings.num_callers, note=note, look_each_s=_SAMPLE_EACH_S)
    with Client(server.target) as client:
        references = _first_answers(client, probes, notes)
        operator = Operator(client, versions, notes)
        with operator.swapping(each_s=settings.swap_each_s):
            num_calibrated = load.run(plan("c", settings.seed + 1), duration_s=settings.calibration_s)
        if not num_calibrated:
            raise RuntimeError(f"no call was answered in {settings.calibration_s:g} s: is the machine busy otherwise?")
        capacity_per_s = num_calibrated / settings.calibration_s
        rate_per_s = settings.load_share * capacity_per_s
        before = _idle(server, like=None)
        began_s, samples = time.monotonic(), list[Sample]()

        def look() -> None:
            at_s, found = time.monotonic() - began_s, footprint(server.pid)
            samples.append(
                Sample(
                    at_s=round(at_s, 2),
                    rss_mb=round(found.rss_mb, 2),
                    threads=found.num_threads,
                    fds=found.num_fds,
                    calls=notes.num_calls,
                    swaps=operator.num_swaps,
                )
            )
            progress(samples[-1])

        with operator.swapping(each_s=settings.swap_each_s):
            load.run(plan("s", settings.seed), rate_per_s=rate_per_s, duration_s=settings.duration_s, look=look)
        elapsed_s = time.monotonic() - began_s
    return Observations(
        capacity_per_s=capacity_per_s,
        rate_per_s=rate_per_s,
        elapsed_s=elapsed_s,
        samples=samples,
        before=before,
        after=_idle(server, like=before),
        num_swaps=operator.num_swaps,
        num_broken_versions=operator.num_broken,
    )


def _first_answers(client: Client, probes: Sequence[PlannedCall], notes: Notes) -> list[bytes]:
    """Return what the answers to the probes mean on an idle server."""
    references = []
    for probe in probes:
        reply = client.call(probe.method, probe.raw[0], metadata=((REQUEST_ID_KEY, probe.request_id),))
        notes.add(judge(probe, reply))
        if not reply.messages:
            raise RuntimeError(f"{probe.request_id}: not answered when idle: {reply.status}: {reply.message}")
        references.append(meaning(reply.messages[0]))
    return references


def _idle(server: ServerProcess, *, like: Idle | None) -> Idle:
    """Wait until the server is idle, and threads and files are as few as before; return what was found then."""
    wait_until_idle(server, timeout_s=_IDLE_TIMEOUT_S)
    seen = [footprint(server.pid)]

    def is_calm() -> bool:
        time.sleep(_CALM_S)
        seen.append(footprint(server.pid))
        limit = like.footprint if like else seen[-2]
        return all(_is_back(*pair) for pair in ((seen[-1], limit), (seen[-2], seen[-1])))

    poll(is_calm, bool, timeout_s=_IDLE_TIMEOUT_S)
    return Idle(footprint=seen[-1], metrics=server.samples())


def _is_back(found: Footprint, before: Footprint) -> bool:
    return found.num_threads <= before.num_threads and found.num_fds <= before.num_fds
