"""The run: one server, all callers, the swaps, and what is seen of the server meanwhile and afterwards."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

from loadtests.sampler import footprint, held_segments, open_calls
from loadtests.soak.book import Book
from loadtests.soak.callers import Caller, UsualTimes
from loadtests.soak.ledger import MethodAndStatus
from loadtests.soak.observations import Idle, Observations, Sample, Settings
from loadtests.soak.pacing import Pace
from loadtests.soak.plan import PlannedCall, planned_calls
from loadtests.soak.probes import first_answers, probe_requests
from loadtests.soak.swaps import Operator, Swapping
from loadtests.stress.server import Versions
from loadtests.target import ServerProcess, wait_until_idle
from loadtests.texts import Texts

_REST_TIMEOUT_S: Final = 60.0
_CALM_S: Final = 2.0
"""For so long, nothing may change until the server counts as being at rest."""
_REQUESTS: Final = re.compile(r'mt_requests_total\{method="(\w+)",status="(\w+)"\}')
_VERSION: Final = re.compile(r'model="[^"]*".*version="([^"]*)"')
_SWAPS: Final = "mt_model_swaps_total"
_SEGMENTS: Final = 'mt_segments_total{outcome="%s"}'


def run(
    server: ServerProcess,
    versions: Versions,
    texts: Texts,
    book: Book,
    settings: Settings,
    *,
    progress: Callable[[Sample], None],
) -> Observations:
    """Calibrate, let the server come to rest, put it under load, let it come to rest again.

    Args:
        server: fresh, ready, and with version 1 of `versions`.
        versions: in its directory of models.
        texts: to be translated.
        book: where every call is noted.
        settings: how long and how much.
        progress: called with each sample.

    Raises:
        RuntimeError: if a probe is not answered while nobody else asks, or nothing while many do.
        ServerError: if the server ends.
    """
    probes = probe_requests()
    crowd = _Crowd(server, book, first_answers(server.target, probes, book), settings)

    def plan(prefix: str, seed: int) -> Iterator[PlannedCall]:
        return planned_calls(texts, probes, model=versions.name, prefix=prefix, seed=seed)

    with closing(Operator(server.target, versions, book, name="swap")) as operator:
        operator.begin()
        swapping = partial(Swapping, operator, book, each_s=settings.swap_each_s)
        with swapping():
            capacity_per_s = crowd.load(plan("c", settings.seed + 1), Pace(None), duration_s=settings.calibration_s)
        if not capacity_per_s:
            raise RuntimeError(f"no call was answered in {settings.calibration_s:g} s: is the machine busy otherwise?")
        rate_per_s = settings.load_share * capacity_per_s
        before = _at_rest(server, like=None)
        sampler = _Sampler(server, book, operator, progress)
        with swapping():
            crowd.load(plan("s", settings.seed), Pace(rate_per_s), duration_s=settings.duration_s, look=sampler.look)
        elapsed_s = sampler.elapsed_s()
    after, final = _at_rest(server, like=before), server.samples()
    return Observations(
        capacity_per_s=capacity_per_s,
        rate_per_s=rate_per_s,
        elapsed_s=elapsed_s,
        samples=sampler.samples,
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


class _Sampler:
    """Looks at the server; begins when it is made."""

    def __init__(
        self, server: ServerProcess, book: Book, operator: Operator, progress: Callable[[Sample], None]
    ) -> None:
        self._server = server
        self._book = book
        self._operator = operator
        self._progress = progress
        self._began_s = time.monotonic()
        self.samples: list[Sample] = []

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def look(self) -> None:
        sample = Sample(
            at_s=self.elapsed_s(),
            footprint=footprint(self._server.pid),
            num_calls=self._book.num_calls,
            num_swaps=self._operator.num_swaps,
        )
        self.samples.append(sample)
        self._progress(sample)


class _Crowd:
    """All callers."""

    def __init__(self, server: ServerProcess, book: Book, references: Sequence[bytes], settings: Settings) -> None:
        self._server = server
        self._book = book
        self._references = references
        self._settings = settings
        self._usual = UsualTimes()

    def load(
        self,
        plan: Iterator[PlannedCall],
        pace: Pace,
        *,
        duration_s: float,
        look: Callable[[], None] = lambda: None,
    ) -> float:
        """Connect, make the calls of a plan until the time is up, disconnect; look at the server meanwhile.

        Returns:
            How many calls a second ended before the time was up.
        """
        until_s = time.monotonic() + duration_s
        num_in_time = itertools.count()
        lock, is_over = threading.Lock(), threading.Event()

        def make_calls(caller: Caller) -> None:
            while (wait_s := pace.wait_s()) < until_s - time.monotonic() and not is_over.wait(wait_s):
                with lock:
                    planned = next(plan)
                caller.make(planned)
                if time.monotonic() <= until_s:
                    next(num_in_time)

        with ExitStack() as stack:
            callers = [
                stack.enter_context(closing(Caller(self._server.target, self._book, self._usual, self._references)))
                for _ in range(self._settings.num_callers)
            ]
            pool = stack.enter_context(ThreadPoolExecutor(len(callers), thread_name_prefix="caller"))
            stack.callback(is_over.set)  # the first of all: if something fails, nobody goes on
            running = {pool.submit(make_calls, caller) for caller in callers}
            while running:
                look()
                ended, running = wait(running, self._settings.sample_each_s, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
        return next(num_in_time) / duration_s


def _at_rest(server: ServerProcess, *, like: Idle | None) -> Idle:
    """Wait until nobody is served, and threads and files are as few as before; return what was found then."""
    wait_until_idle(server, timeout_s=_REST_TIMEOUT_S)
    until_s = time.monotonic() + _REST_TIMEOUT_S
    found = _idle(server)
    while time.monotonic() < until_s:
        time.sleep(_CALM_S)
        last, found = found, _idle(server)
        if _is_back(found, like or last) and _is_back(last, found):
            break
    return found


def _is_back(found: Idle, before: Idle) -> bool:
    now, then = found.footprint, before.footprint
    return now.num_threads <= then.num_threads and now.num_fds <= then.num_fds


def _idle(server: ServerProcess) -> Idle:
    samples = server.samples()
    told = {match[1] for name in samples if (match := _VERSION.search(name))}
    return Idle(
        footprint=footprint(server.pid),
        open_calls=open_calls(samples),
        held_segments=held_segments(samples),
        versions=tuple(sorted(told)),
    )
