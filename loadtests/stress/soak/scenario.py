"""Scenario `soak`: everything at once for half an hour, and which promises held."""

import argparse
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.flags import within
from loadtests.report import figures_line, rounded
from loadtests.sampler import held_segments, open_calls
from loadtests.stress import server
from loadtests.stress.soak import memory
from loadtests.stress.soak.judging import Notes
from loadtests.stress.soak.ledger import AccessLog, read_access_log
from loadtests.stress.soak.run import Observations, Sample, Settings, soak
from loadtests.stress.verdict import Promise, Summary, conclude, require
from loadtests.texts import read_texts

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
"""What differs from the defaults: versions come and go all the time; and what is freed goes back to the system at once,
where glibc would keep up to 200 MB for minutes and hide what is not freed."""

_DURATIONS_S: Final = {"short": 180.0, "full": 1800.0}
_LINES: Final = 60
_TITLE_WIDTH: Final = 110
_OUTCOMES: Final = ("error", "ok")
_VERSION: Final = re.compile(r'model="[^"]*".*version="([^"]*)"')
_BROKEN_VERSION: Final = '"event": "model could not be loaded"'
_ENDS: Final = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
"""What a soak must have met to have shown anything."""


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
    notes = Notes()
    with tempfile.TemporaryDirectory(prefix="dragoman-soak-") as models:
        versions = server.Versions(Path(models), server.only_bundle(options.model_dir))
        versions.add(1)
        with server.started(options.output, models=Path(models), settings=SERVER_SETTINGS) as tested:
            found = soak(tested, versions, read_texts(), notes, settings, progress=_progress(settings))
            exit_code = tested.stop()
    with server.log_path(options.output).open(encoding="utf-8", errors="replace") as lines:
        log = read_access_log(lines)
    summary = summarize(found, notes, log, settings, exit_code=exit_code)
    figure = _figure(found.samples, settings, title=summary.line)
    return conclude(summary, options.output, details=details(found, notes, settings), figure=figure)


def summarize(found: Observations, notes: Notes, log: AccessLog, settings: Settings, *, exit_code: int = 0) -> Summary:
    """Return figures and promises."""
    metrics = found.after.metrics
    num_failed, num_answered = (round(metrics.get(f'mt_segments_total{{outcome="{name}"}}', 0)) for name in _OUTCOMES)
    complaints = _complaints(log, found.num_broken_versions)
    of_calls = notes.promises(log, metrics, errors=complaints + [f"{num_failed} segments failed"] * bool(num_failed))
    answered, twice, right, errors, ledger = of_calls
    num_swaps = round(sum(value for name, value in metrics.items() if name.startswith("mt_model_swaps_total")))
    trend = memory.trend(judged_lows(found.samples, settings))
    memory_promise, doubt = _memory(trend, settings)
    left = _left(found)
    missed = [status for status in _ENDS if not notes.num_ended(status)]
    figures = {
        "seconds": f"{found.elapsed_s:.0f}",
        "calls": notes.num_calls,
        "unanswered": len(answered.broken),
        "twice": len(twice.broken),
        "ledger_difference": ledger.figures["difference"],
        "rss_slope_mb_per_h": rounded(trend.slope if trend else None),
        "rss_noise": rounded(trend.noise if trend else None),
        **{f"{name}_left": count for name, count in left.items()},
        "swaps": found.num_swaps,
        "wrong": len(right.broken),
        "errors": len(errors.broken),
    }
    swaps = f"{found.num_swaps} were made, the server counted {num_swaps}"
    sentences = f"callers got {notes.num_sentences} sentences, the server counted {num_answered} segments"
    met = f"no call ended with {missed}"
    promises = [
        *of_calls,
        Promise(name="nothing is left", broken=[f"{count} {name}" for name, count in left.items() if count]),
        require("each swap is counted once", found.num_swaps == num_swaps, swaps),
        require("each sentence is counted", notes.num_sentences <= num_answered, sentences),
        memory_promise,
        require("everything is met", not missed and found.num_swaps > 0, f"run longer: {found.num_swaps} swaps, {met}"),
        require("the server drains", exit_code == 0, f"it ended with exit code {exit_code}"),
    ]
    return Summary(scenario="soak", figures=figures, promises=promises, notes=doubt)


def judged_lows(samples: Sequence[Sample], settings: Settings) -> list[tuple[float, float]]:
    """Return the lows of memory (seconds, MiB) that are judged: under load, after the warm-up."""
    judged = [
        (sample.at_s, sample.rss_mb, sample.swaps)
        for sample in samples
        if settings.warm_up_s <= sample.at_s <= settings.duration_s
    ]
    return memory.lows(judged, num_windows=settings.num_windows)


def details(found: Observations, notes: Notes, settings: Settings) -> dict[str, Any]:
    """Return settings, calls and the server over time as JSON-ready values."""
    return {
        "settings": asdict(settings),
        "max_slope_mb_per_h": round(settings.max_slope, 2),
        "capacity_calls_per_s": round(found.capacity_per_s, 2),
        "offered_calls_per_s": round(found.rate_per_s, 2),
        "num_sentences": notes.num_sentences,
        "calls": [
            {"kind": kind, "status": status, "count": count} for (kind, status), count in sorted(notes.ends.items())
        ],
        "before": asdict(found.before),
        "after": asdict(found.after),
        "samples": [asdict(sample) for sample in found.samples],
    }


def progress_line(sample: Sample, settings: Settings) -> str:
    """Return how far the soak is."""
    figures = {name: value for name, value in asdict(sample).items() if name != "at_s"}
    return figures_line(f"{sample.at_s:.0f} of {settings.duration_s:.0f} s:", figures)


def _progress(settings: Settings) -> Callable[[Sample], None]:
    """Return what prints a line now and then."""
    due_s = [0.0]

    def tell(sample: Sample) -> None:
        if sample.at_s >= due_s[0]:
            due_s[0] = sample.at_s + max(5.0, settings.duration_s / _LINES)
            print(progress_line(sample, settings), file=sys.stderr, flush=True)

    return tell


def _left(found: Observations) -> dict[str, int]:
    """Return what stayed: more than there was before the load, or more than nothing."""
    before, after, metrics = found.before.footprint, found.after.footprint, found.after.metrics
    versions = {match[1] for name in metrics if (match := _VERSION.search(name))}
    return {
        "threads": max(0, after.num_threads - before.num_threads),
        "fds": max(0, after.num_fds - before.num_fds),
        "tasks": round(sum(open_calls(metrics).values())),  # calls that the server still counts as being answered
        "slots": len(held_segments(metrics)) + max(0, len(versions) - 1),  # also series of versions that are gone
    }


def _memory(trend: memory.Trend | None, settings: Settings) -> tuple[Promise, list[str]]:
    """Return the promise of memory, and a note if it changed too unevenly to be judged in a run as short as this."""
    name, limit = "memory does not grow", settings.max_slope
    if trend is None:
        return Promise(name=name, broken=["the run is too short to tell"]), []
    growth, doubt = memory.growth(trend, max_slope=limit), memory.doubt(trend, max_slope=limit)
    broken = growth or (doubt if settings.is_long else [])
    return Promise(
        name=name, broken=broken, figures={**asdict(trend), "limit": limit}
    ), [] if doubt == broken else doubt


def _complaints(log: AccessLog, num_broken_versions: int) -> list[str]:
    """Return what the server complained of, but for the versions that could not be loaded, once each."""
    provoked = [line for line in log.complaints if _BROKEN_VERSION in line]
    return [line for line in log.complaints if _BROKEN_VERSION not in line] + provoked[num_broken_versions:]


def _figure(samples: Sequence[Sample], settings: Settings, *, title: str) -> Figure:
    figure = Figure(figsize=(10, 9), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_WIDTH)), fontsize="small")
    memory_axes, counts, work = figure.subplots(3, 1, sharex=True)
    for axes, name in ((memory_axes, "rss_mb"), (counts, "threads"), (counts, "fds"), (work, "calls"), (work, "swaps")):
        axes.plot([sample.at_s for sample in samples], [getattr(sample, name) for sample in samples], label=name)
    lowest = judged_lows(samples, settings)
    memory_axes.plot([at_s for at_s, _ in lowest], [size_mb for _, size_mb in lowest], "o-", label="low of a window")
    memory_axes.axvspan(0, settings.warm_up_s, color="lightgrey", label="warm-up, not judged")
    counts.set_ylim(bottom=0)
    work.set(xlabel="seconds", yscale="symlog")
    for axes in (memory_axes, counts, work):
        axes.legend(loc="lower right")
    return figure
