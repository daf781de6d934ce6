"""Scenario `soak`: everything at once for half an hour, and which promises held."""

import argparse
import itertools
import math
import re
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message
from matplotlib.figure import Figure

from loadtests.generator.flags import within
from loadtests.report.report import draw, figure, figures_line, rounded
from loadtests.generator.metrics import CALLS, SEGMENTS, Footprint, footprint, work_left
from loadtests.scenarios.callers import TIMEOUT_S, Client, Kind, Load, PlannedCall
from loadtests.scenarios.stress_server import add_version, only_bundle, poll, remove_version, started, wait_until_idle
from loadtests.scenarios.soak.accounting import Entry, Notes, read_access_log
from loadtests.scenarios.soak.plan import PROBES, Plan
from loadtests.report.checks import Promise, Summary, conclude, require
from loadtests.generator.server import ServerProcess
from loadtests.generator.texts import Texts, read_texts
from loadtests.generator.calls import Method

SUMMARY: Final = "everything at once for half an hour: does anything leak, is anything lost?"

DESCRIPTION: Final = """\
Starts the server on free ports of this machine, finds out how many calls a second it answers, and then offers 65 % of
that for 30 minutes, or 3 (--mode short), one word to long documents, with every option, over Translate,
TranslateDocument and TranslateStream: most callers wait, others cancel at any moment, close their connection, have a
deadline too short, or ask what must be refused. All along the model is swapped for another version with the same
weights, by ModelAdminService and by the directory of models, now and then after one that is broken.

What must hold:
  answers   every request is answered exactly once, whole, in order, and with its own answer; probes, which are
            asked again and again, get the same answer bit by bit
  ledger    what the clients noted of each call is what the server logged of it and what its counters add up to. A call
            whose caller gave up may have been ended by the server as cancelled, late or answered, or not seen at all;
            no other difference is allowed
  errors    no status but those provoked, no error in the server's log
  left      afterwards calls, queue and batches are at 0, and threads and open files as few as before
  memory    after the warm-up (a third of the time, at most 4 minutes) the slope (Theil-Sen) of the server's resident
            memory, the lowest of each window of swaps, is not above the limit with a confidence of 95 %. In a run of 15
            minutes and more the interval must not be so wide that half of it is above the limit; a shorter run says so

The limit of the slope is --max-growth-mb over the time that is judged. Memory rises and falls by some 50 MB with every
swap, so a short run is held to 24 MB within two minutes (720 MB/h): it shows a model that stays after each swap, or
20 kB a call at 10 calls/s. Runs of 15 minutes and more are held to 16 MB; in a full run these are 37 MB/h, or 1 kB a
call. The server runs with MALLOC_TRIM_THRESHOLD_=131072 and MALLOC_ARENA_MAX=2, so that glibc returns freed memory at
once, where it would else keep it for minutes."""

SERVER_SETTINGS: Final = {
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "1",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_ARENA_MAX": "2",
}

_DURATIONS_S: Final = {"short": 180.0, "full": 1800.0}
_LONG_S: Final = 900.0
_MAX_GROWTH_SHORT_MB: Final = 24.0
_MAX_GROWTH_MB: Final = 16.0
_Z: Final = 1.959964  # quantile of the normal distribution for a confidence of 95 %, on both sides
_MIN_WINDOWS: Final = 6
_MAX_WINDOWS: Final = 30
_WINDOW_S: Final = 8.0
_LABEL: Final = "stable"  # always points to a version that is ready
_BROKEN: Final = 1_000_000  # added to the number of a version that cannot be loaded
_BROKEN_VERSION: Final = '"event": "model could not be loaded"'
_IDLE_TIMEOUT_S: Final = 60.0
_CALM_S: Final = 2.0  # for so long, nothing may change until the server counts as idle
_SAMPLE_EACH_S: Final = 0.5
_NUM_LINES: Final = 60
_TITLE_WIDTH: Final = 110
_VERSION: Final = re.compile(r'model="[^"]*".*version="([^"]*)"')
_ENDS: Final = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
"""What a soak must have met to have shown anything."""

Sample = Mapping[str, float]
"""The server at one moment of the load: at_s, rss_mb, threads, fds; calls and swaps so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long and how much."""

    duration_s: float
    num_callers: int = 16
    load_share: float = 0.65  # of the calls a second that were answered in the calibration
    swap_each_s: float = 6.0
    growth_limit_mb: float | None = None  # of memory in the time that is judged; None: 24, or 16 in a long run
    seed: int = 1

    @property
    def warm_up_s(self) -> float:
        """From the start of the load; its memory is not judged, all else is."""
        return min(self.duration_s / 3, 240.0)

    @property
    def is_long(self) -> bool:
        """Whether memory that is too uneven to be judged breaks the promise; a short run only shows that it grows."""
        return self.duration_s >= _LONG_S

    @property
    def max_slope(self) -> float:
        """The limit of growth in MiB per hour."""
        max_growth_mb = self.growth_limit_mb or (_MAX_GROWTH_MB if self.is_long else _MAX_GROWTH_SHORT_MB)
        return max_growth_mb / (self.duration_s - self.warm_up_s) * 3600


class Idle(NamedTuple):
    """The server without connections."""

    footprint: Footprint
    metrics: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Observations:
    """Everything that is seen from outside, before the server ends."""

    settings: Settings
    before: Idle
    after: Idle
    notes: Notes = field(default_factory=Notes)
    samples: list[Sample] = field(default_factory=list)
    capacity_per_s: float = 0.0
    elapsed_s: float = 0.0
    num_swaps: int = 0
    num_broken_versions: int = 0  # added on purpose, for the server to reject


@dataclass(slots=True, kw_only=True)
class Operator:
    """Swaps versions of a model, one after the other; every call is noted like that of any other caller."""

    caller: Client
    models: Path  # has version 1
    bundle: Path
    found: Observations
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
            self.found.notes.errors.append(f"a swap failed: {error}")

    def swap(self) -> None:
        """Add the next version, by a call, by the directory, or after one that is broken, and remove the former."""
        old, new, way = self.found.num_swaps + 1, self.found.num_swaps + 2, self.found.num_swaps % 3
        if way == 2:
            add_version(self.bundle, self.models, _BROKEN + old, is_broken=True)
            self.found.num_broken_versions += 1
            self._call(Method.LOAD_MODEL, _BROKEN + old, expected="FAILED_PRECONDITION")
            self._remove(_BROKEN + old)
        add_version(self.bundle, self.models, new)
        if way == 1:
            self._wait(lambda states: states.get(str(new)) == pb.MODEL_STATE_READY, f"version {new} is ready")
        else:
            self._call(Method.LOAD_MODEL, new)
        self.label(new)
        if way == 0:
            self._call(Method.UNLOAD_MODEL, old)
        self._remove(old)
        self.found.num_swaps += 1

    def label(self, version: int) -> None:
        """Let the label point to a version."""
        self._call(Method.SET_MODEL_LABEL, version, label=_LABEL)

    def _remove(self, version: int) -> None:
        remove_version(self.models / self.bundle.parent.name / str(version))
        self._wait(lambda states: str(version) not in states, f"version {version} is gone")

    def _wait(self, holds: Callable[[dict[str, int]], bool], what: str) -> None:
        def states() -> dict[str, int]:
            (answer,) = self._call(Method.GET_MODEL)
            return {one.version: one.state for one in pb.GetModelResponse.FromString(answer).model.versions}

        if not holds(found := poll(states, holds, timeout_s=TIMEOUT_S, each_s=0.2)):
            raise RuntimeError(f"not within {TIMEOUT_S:g} s: {what}; there are {sorted(found)}")

    def _call(self, method: Method, *version: int, expected: str = "OK", **fields: str) -> tuple[bytes, ...]:
        """Make a call about a version, or about all, and note it; return the answer, none if it was refused."""
        message: Message = getattr(pb, f"{method.value}Request")(
            model="/".join(map(str, (self.bundle.parent.name, *version))), **fields
        )
        planned = PlannedCall(
            request_id=f"swap-{next(self._numbers)}",
            kind=Kind.SWAP,
            method=method,
            raw=(message.SerializeToString(),),
            answers=(expected,),
        )
        self.found.notes.note(planned, reply := self.caller.make(planned))
        if reply.status != expected:
            raise RuntimeError(f"{method.value}: {reply.status} instead of {expected}: {reply.message}")
        return reply.messages


def soak(server: ServerProcess, models: Path, bundle: Path, texts: Texts, settings: Settings) -> Observations:
    """Calibrate, let the server become idle, put it under load, let it become idle again.

    The server is fresh and ready, and its directory of models has version 1 of the bundle. Raises RuntimeError if a
    probe is not answered by an idle server, or nothing under load; OSError if the server ends.
    """
    idle, name = Idle(footprint(server.pid), {}), bundle.parent.name
    found = Observations(settings=settings, before=idle, after=idle)
    notes, samples = found.notes, found.samples
    load = Load(target=server.target, num_callers=settings.num_callers, note=notes.note, look_each_s=_SAMPLE_EACH_S)
    calibration, plan = (
        Plan(texts=texts, models=("", name, f"{name}@{_LABEL}"), prefix=prefix, seed=seed)
        for prefix, seed in (("c", settings.seed + 1), ("s", settings.seed))
    )
    samples_a_line = max(10, round(settings.duration_s / _NUM_LINES / _SAMPLE_EACH_S))
    calibration_s = min(max(2.0, settings.duration_s / 15), 20.0)
    with Client(server.target) as caller:
        for probe in PROBES:
            notes.note(probe, reply := caller.make(probe))
            if reply.status != "OK":
                raise RuntimeError(f"{probe.request_id}: not answered when idle: {reply.status}: {reply.message}")
        operator = Operator(caller=caller, models=models, bundle=bundle, found=found)
        operator.label(1)
        with operator.swapping(each_s=settings.swap_each_s):
            found.capacity_per_s = load.run(calibration, duration_s=calibration_s) / calibration_s
        if not found.capacity_per_s:
            raise RuntimeError(f"no call was answered in {calibration_s:g} s: is the machine busy otherwise?")
        found.before, began_s = _idle(server), time.monotonic()

        def look() -> None:
            at_s, now = round(time.monotonic() - began_s, 2), footprint(server.pid)
            sizes = {"rss_mb": round(now.rss_mb, 2), "threads": now.num_threads, "fds": now.num_fds}
            figures = {**sizes, "calls": notes.num_calls, "swaps": found.num_swaps}
            if len(samples) % samples_a_line == 0:
                line = figures_line(f"{at_s:.0f} of {settings.duration_s:.0f} s:", figures)
                print(line, file=sys.stderr, flush=True)
            samples.append({"at_s": at_s, **figures})

        with operator.swapping(each_s=settings.swap_each_s):
            rate_per_s = settings.load_share * found.capacity_per_s
            load.run(plan, rate_per_s=rate_per_s, duration_s=settings.duration_s, look=look)
        found.elapsed_s = time.monotonic() - began_s
    found.after = _idle(server, like=found.before.footprint)
    return found


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


def summarize(found: Observations, logged: Sequence[Entry], complaints: Sequence[str], *, exit_code: int) -> Summary:
    """Return figures and promises."""
    notes, metrics = found.notes, found.after.metrics
    provoked = [line for line in complaints if _BROKEN_VERSION in line]
    errors = [line for line in complaints if _BROKEN_VERSION not in line] + provoked[found.num_broken_versions :]
    of_calls = notes.promises(logged, metrics, errors=errors, exit_code=exit_code)
    num_unanswered, num_twice, num_wrong, num_errors = (len(promise.broken) for promise in of_calls[:4])
    num_swaps = round(sum(value for name, value in metrics.items() if name.startswith("mt_model_swaps_total")))
    num_answered = round(metrics.get('mt_segments_total{outcome="ok"}', 0))
    memory, doubt = judge_memory(found.samples, found.settings)
    left = _left(found)
    missed = [status for status in _ENDS if not notes.num_ended(status)]
    figures = {
        "seconds": f"{found.elapsed_s:.0f}",
        "calls": notes.num_calls,
        "unanswered": num_unanswered,
        "twice": num_twice,
        "ledger_difference": of_calls[4].figures["difference"],
        "rss_slope_mb_per_h": rounded(memory.figures.get("slope")),
        "rss_noise": rounded(memory.figures.get("noise")),
        **{f"{name}_left": count for name, count in left.items()},
        "swaps": found.num_swaps,
        "wrong": num_wrong,
        "errors": num_errors,
    }
    swaps = f"{found.num_swaps} were made, the server counted {num_swaps}"
    sentences = f"callers got {notes.num_sentences} sentences, the server counted {num_answered} segments"
    met = f"run longer: {found.num_swaps} swaps, no call ended with {missed}"
    promises = [
        *of_calls,
        Promise(name="nothing is left", broken=[f"{count} {name}" for name, count in left.items() if count]),
        require("each swap is counted once", found.num_swaps == num_swaps, swaps),
        require("each sentence is counted", notes.num_sentences <= num_answered, sentences),
        memory,
        require("everything is met", not missed and found.num_swaps > 0, met),
    ]
    return Summary(scenario="soak", figures=figures, promises=promises, notes=doubt)


def judge_memory(samples: Sequence[Sample], settings: Settings) -> tuple[Promise, list[str]]:
    """Return the promise of memory, and a note if it changed too unevenly to be judged in a run as short as this.

    The slope is that of Theil and Sen, with the interval of Sen 1968 (doi:10.1080/01621459.1968.10480934), from the
    variance of Kendall's statistic: it assumes nothing of how the noise is distributed, and up to 29 % of the points
    may be anywhere. Fewer than 6 points have no interval of 95 %.
    """
    name, points, limit = "memory does not grow", judged_lows(samples, settings), settings.max_slope
    if (count := len(points)) < _MIN_WINDOWS:
        return Promise(name=name, broken=["the run is too short to tell"]), []
    slopes = sorted((y2 - y1) / (x2 - x1) * 3600 for (x1, y1), (x2, y2) in itertools.combinations(points, 2))
    spread = _Z * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    lowest = slopes[max(0, round((len(slopes) - spread) / 2))]
    highest = slopes[min(len(slopes) - 1, round((len(slopes) + spread) / 2))]
    slope, noise = median(slopes), (highest - lowest) / 2
    told = f"by {slope:.1f} MB/h, with 95 % confidence between {lowest:.1f} and {highest:.1f} MB/h"
    growth = [f"it grows {told}: more than {limit:.1f}"] if lowest > limit else []
    hint = "look at the curve or run longer"
    doubt = [f"it changes {told}: too uneven to judge by {limit:.1f}, {hint}"] if noise > limit else []
    broken = growth or (doubt if settings.is_long else [])
    figures = {"slope": slope, "lowest": lowest, "highest": highest, "noise": noise, "limit": limit}
    return Promise(name=name, broken=broken, figures=figures), [] if doubt == broken else doubt


def judged_lows(samples: Sequence[Sample], settings: Settings) -> list[tuple[float, float]]:
    """Return the smallest memory in MiB of each window of whole swaps, and when it was: under load, after the warm-up.

    A version that is loaded beside another, or a large document, takes memory for a while and frees it: what stays is
    seen in the lows. Windows are counted in swaps, not in seconds, so that each of them has a time with one version
    however long a swap takes on a busy machine. What is before the first swap does not count.
    """
    judged = [sample for sample in samples if settings.warm_up_s <= sample["at_s"] <= settings.duration_s]
    if not judged or judged[0]["swaps"] == judged[-1]["swaps"]:
        return []
    first, num_swaps = judged[0]["swaps"] + 1, judged[-1]["swaps"] - judged[0]["swaps"]
    num_windows = min(int((settings.duration_s - settings.warm_up_s) / _WINDOW_S), _MAX_WINDOWS, num_swaps)
    counted = [sample for sample in judged if sample["swaps"] >= first]
    windows = itertools.groupby(counted, lambda sample: (sample["swaps"] - first) * num_windows // num_swaps)
    lows = (min(window, key=lambda sample: sample["rss_mb"]) for _, window in windows)
    return [(low["at_s"], low["rss_mb"]) for low in lows]


def details(found: Observations) -> dict[str, Any]:
    """Return settings, calls and the server over time as JSON-ready values."""
    settings, capacity_per_s, notes = found.settings, found.capacity_per_s, found.notes
    ends = {"before": found.before, "after": found.after}
    return {
        "settings": asdict(settings),
        "max_slope_mb_per_h": round(settings.max_slope, 2),
        "capacity_calls_per_s": round(capacity_per_s, 2),
        "offered_calls_per_s": round(settings.load_share * capacity_per_s, 2),
        "num_sentences": notes.num_sentences,
        "calls": [{"kind": kind, "status": end, "count": count} for (kind, end), count in sorted(notes.ends.items())],
        **{when: {**idle._asdict(), "footprint": asdict(idle.footprint)} for when, idle in ends.items()},
        "samples": found.samples,
    }


def _left(found: Observations) -> dict[str, int]:
    """Return what stayed: more than there was before the load, or more than nothing."""
    before, after, metrics = found.before.footprint, found.after.footprint, found.after.metrics
    versions = {match[1] for name in metrics if (match := _VERSION.search(name))}
    return {
        "threads": max(0, after.num_threads - before.num_threads),
        "fds": max(0, after.num_fds - before.num_fds),
        "tasks": round(sum(work_left(metrics, CALLS).values())),  # calls that the server still counts as being answered
        "slots": len(work_left(metrics, SEGMENTS)) + max(0, len(versions) - 1),  # also series of versions that are gone
    }


def _picture(found: Observations, *, title: str) -> Figure:
    made, (memory, counts, work) = figure(3, size=(10, 9), sharex=True)
    made.suptitle("\n".join(textwrap.wrap(title, _TITLE_WIDTH)), fontsize="small")
    over_time = {name: [(one["at_s"], one[name]) for one in found.samples] for name in found.samples[0]}
    memory.axvspan(0, found.settings.warm_up_s, color="lightgrey", label="warm-up, not judged")
    lows = judged_lows(found.samples, found.settings)
    draw(memory, {"rss_mb": over_time["rss_mb"], "low of a window": lows}, yscale="linear")
    draw(counts, {name: over_time[name] for name in ("threads", "fds")})
    draw(work, {name: over_time[name] for name in ("calls", "swaps")}, xlabel="seconds", yscale="symlog")
    return made


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this scenario."""
    add = parser.add_argument
    add("--duration", type=within(10, 86_400), metavar="S", help="seconds of load, in place of those of the mode")
    add("--load", type=within(0.01, 1), default=0.65, metavar="X", help="share of the capacity that is offered (0.65)")
    add("--callers", type=within(1, 256, int), default=16, metavar="N", help="calls at a time, at most (16)")
    add("--max-growth-mb", type=within(0.1, 10_000), metavar="MB", help="memory promise, see above")


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    settings = Settings(
        duration_s=options.duration or _DURATIONS_S[options.mode],
        num_callers=options.callers,
        load_share=options.load,
        growth_limit_mb=options.max_growth_mb,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory(prefix="dragoman-soak-") as directory:
        models, bundle = Path(directory), only_bundle(options.model_dir)
        add_version(bundle, models, 1)
        with started(options.output, models=models, settings=SERVER_SETTINGS) as tested:
            found = soak(tested, models, bundle, read_texts(), settings)
            exit_code = tested.stop()
    summary = summarize(found, *read_access_log(options.output), exit_code=exit_code)
    return conclude(summary, options.output, details=details(found), figure=_picture(found, title=summary.line))
