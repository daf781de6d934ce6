"""The run: one server, all callers, the swaps, and what is seen of the server meanwhile and afterwards."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from loadtests.contract import meaning
from loadtests.sampler import Footprint, footprint, held_segments, open_calls
from loadtests.stress.calls import Caller, Ended, Load, UsualTimes
from loadtests.stress.server import Versions
from loadtests.stress.soak.judging import Notes, judge
from loadtests.stress.soak.ledger import MethodAndStatus
from loadtests.stress.soak.plan import SoakCall, planned_calls, probe_call
from loadtests.stress.soak.requests import probe_requests
from loadtests.stress.soak.swaps import Operator, Swapping
from loadtests.target import ServerProcess, wait_until_idle
from loadtests.texts import Texts

_IDLE_TIMEOUT_S: Final = 60.0
_CALM_S: Final = 2.0
"""For so long, nothing may change until the server counts as idle."""
_REQUESTS: Final = re.compile(r'mt_requests_total\{method="(\w+)",status="(\w+)"\}')
_VERSION: Final = re.compile(r'model="[^"]*".*version="([^"]*)"')
_SWAPS: Final = "mt_model_swaps_total"
_SEGMENTS: Final = 'mt_segments_total{outcome="%s"}'
_S_PER_H: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long and how much."""

    duration_s: float
    """Of the load, its warm-up included."""

    warm_up_s: float
    """From the start of the load; its memory is not judged, all else is."""

    calibration_s: float
    """Before the load: as many calls as are answered."""

    num_callers: int
    load_share: float
    """Of the calls a second that were answered in the calibration."""

    swap_each_s: float
    sample_each_s: float
    num_windows: int
    """Of memory, after the warm-up; each should see a swap or more from its beginning to its end."""

    max_growth_mb: float
    """By which memory may grow in the time that is judged, in MiB."""

    seed: int

    must_be_sure_of_memory: bool = True
    """Whether memory that is too uneven to be judged breaks the promise; a short run can only show that it grows."""

    @property
    def max_slope(self) -> float:
        """The same in MiB per hour."""
        return self.max_growth_mb / (self.duration_s - self.warm_up_s) * _S_PER_H


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment of the load."""

    at_s: float
    """From the start of the load."""

    footprint: Footprint
    num_calls: int
    num_swaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The server without connections."""

    footprint: Footprint
    open_calls: Mapping[str, float]
    """Gauges that are not back at 0; so are the next."""

    held_segments: Mapping[str, float]
    versions: tuple[str, ...]
    """Those that the metrics still have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Everything that was seen from outside, before the server ended."""

    capacity_per_s: float
    rate_per_s: float
    elapsed_s: float
    samples: Sequence[Sample]
    before: Idle
    after: Idle
    counted: Mapping[MethodAndStatus, int]
    num_segments_ok: int
    num_segments_failed: int
    num_swaps: int
    """Made by the operator."""

    num_swaps_counted: int
    """By the server."""

    num_broken_versions: int


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

    Args:
        server: fresh, ready, and with version 1 of `versions`.
        versions: in its directory of models.
        texts: to be translated.
        notes: where every call is noted.
        settings: how long and how much.
        progress: called with each sample.

    Raises:
        RuntimeError: if a probe is not answered by an idle server, or nothing under load.
        ServerError: if the server ends.
    """
    probes, usual = probe_requests(), UsualTimes()
    references = _first_answers(server.target, probes, notes, usual)

    def note(planned: SoakCall, ended: Ended) -> None:
        notes.add(judge(planned, ended, reference=None if planned.probe is None else references[planned.probe]))

    def plan(prefix: str, seed: int) -> Iterator[SoakCall]:
        return planned_calls(texts, probes, model=versions.name, prefix=prefix, seed=seed)

    load: Load[SoakCall] = Load(
        target=server.target,
        num_callers=settings.num_callers,
        note=note,
        usual=usual,
        look_each_s=settings.sample_each_s,
    )
    with closing(Operator(server.target, versions, notes, name="swap")) as operator:
        operator.begin()
        swapping = partial(Swapping, operator, notes, each_s=settings.swap_each_s)
        with swapping():
            num_calibrated = load.run(plan("c", settings.seed + 1), duration_s=settings.calibration_s)
        if not num_calibrated:
            raise RuntimeError(f"no call was answered in {settings.calibration_s:g} s: is the machine busy otherwise?")
        capacity_per_s = num_calibrated / settings.calibration_s
        rate_per_s = settings.load_share * capacity_per_s
        before = _idle(server, like=None)
        began_s, samples = time.monotonic(), list[Sample]()

        def look() -> None:
            samples.append(
                Sample(
                    at_s=time.monotonic() - began_s,
                    footprint=footprint(server.pid),
                    num_calls=notes.num_calls,
                    num_swaps=operator.num_swaps,
                )
            )
            progress(samples[-1])

        with swapping():
            load.run(plan("s", settings.seed), rate_per_s=rate_per_s, duration_s=settings.duration_s, look=look)
        elapsed_s = time.monotonic() - began_s
    after, final = _idle(server, like=before), server.samples()
    return Observations(
        capacity_per_s=capacity_per_s,
        rate_per_s=rate_per_s,
        elapsed_s=elapsed_s,
        samples=samples,
        before=before,
        after=after,
        counted=counted_requests(final),
        num_segments_ok=round(final.get(_SEGMENTS % "ok", 0)),
        num_segments_failed=round(final.get(_SEGMENTS % "error", 0)),
        num_swaps=operator.num_swaps,
        num_swaps_counted=round(sum(value for name, value in final.items() if name.startswith(_SWAPS))),
        num_broken_versions=operator.num_broken,
    )


def counted_requests(samples: Mapping[str, float]) -> dict[MethodAndStatus, int]:
    """Return what the server has counted, by method and status."""
    matches = ((_REQUESTS.fullmatch(name), value) for name, value in samples.items())
    return {(match[1], match[2]): round(value) for match, value in matches if match}


def _first_answers(target: str, probes: Sequence[bytes], notes: Notes, usual: UsualTimes) -> list[bytes]:
    """Return what the answers to the probes mean on an idle server."""
    references = []
    with closing(Caller(target, usual)) as caller:
        for number, raw in enumerate(probes):
            planned = probe_call(f"first-{number}", raw, number)
            ended = caller.make(planned)
            notes.add(judge(planned, ended))
            if not ended.messages:
                raise RuntimeError(
                    f"probe {number} was not answered by an idle server: {ended.status}: {ended.details}"
                )
            references.append(meaning(ended.messages[0]))
    return references


def _idle(server: ServerProcess, *, like: Idle | None) -> Idle:
    """Wait until the server is idle, and threads and files are as few as before; return what was found then."""
    wait_until_idle(server, timeout_s=_IDLE_TIMEOUT_S)
    until_s = time.monotonic() + _IDLE_TIMEOUT_S
    found = _look_at_idle(server)
    while time.monotonic() < until_s:
        time.sleep(_CALM_S)
        last, found = found, _look_at_idle(server)
        if _is_back(found, like or last) and _is_back(last, found):
            break
    return found


def _is_back(found: Idle, before: Idle) -> bool:
    now, then = found.footprint, before.footprint
    return now.num_threads <= then.num_threads and now.num_fds <= then.num_fds


def _look_at_idle(server: ServerProcess) -> Idle:
    samples = server.samples()
    told = {match[1] for name in samples if (match := _VERSION.search(name))}
    return Idle(
        footprint=footprint(server.pid),
        open_calls=open_calls(samples),
        held_segments=held_segments(samples),
        versions=tuple(sorted(told)),
    )
