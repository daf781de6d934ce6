"""Scenario `soak`: everything at once for half an hour, and which promises held."""

import argparse
import itertools
import math
import re
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.flags import within
from loadtests.report import rounded
from loadtests.sampler import CALLS, SEGMENTS, work_left
from loadtests.stress import server
from loadtests.stress.soak.ledger import Entry, read_access_log
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
_Z: Final = 1.959964
"""Quantile of the normal distribution for a confidence of 95 %, on both sides."""
_MIN_WINDOWS: Final = 6
_PANELS: Final = (("rss_mb",), ("threads", "fds"), ("calls", "swaps"))
_TITLE_WIDTH: Final = 110
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
    with tempfile.TemporaryDirectory(prefix="dragoman-soak-") as models:
        versions = server.Versions(Path(models), server.only_bundle(options.model_dir))
        versions.add(1)
        with server.started(options.output, models=Path(models), settings=SERVER_SETTINGS) as tested:
            found = soak(tested, versions, read_texts(), settings)
            exit_code = tested.stop()
    summary = summarize(found, *read_access_log(options.output), settings, exit_code=exit_code)
    figure = _figure(found.samples, settings, title=summary.line)
    return conclude(summary, options.output, details=details(found, settings), figure=figure)


def summarize(
    found: Observations, logged: Sequence[Entry], complaints: Sequence[str], settings: Settings, *, exit_code: int = 0
) -> Summary:
    """Return figures and promises."""
    notes, metrics = found.notes, found.after.metrics
    provoked = [line for line in complaints if _BROKEN_VERSION in line]
    errors = [line for line in complaints if _BROKEN_VERSION not in line] + provoked[found.num_broken_versions :]
    of_calls = notes.promises(logged, metrics, errors=errors, exit_code=exit_code)
    num_unanswered, num_twice, num_wrong, num_errors = (len(promise.broken) for promise in of_calls[:4])
    num_swaps = round(sum(value for name, value in metrics.items() if name.startswith("mt_model_swaps_total")))
    num_answered = round(metrics.get('mt_segments_total{outcome="ok"}', 0))
    memory, doubt = judge_memory(found.samples, settings)
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
    windows = defaultdict[float, list[tuple[float, float]]](list)
    for sample in judged:
        if sample["swaps"] >= first:
            index = (sample["swaps"] - first) * min(settings.num_windows, num_swaps) // num_swaps
            windows[index].append((sample["rss_mb"], sample["at_s"]))
    return [(at_s, rss_mb) for rss_mb, at_s in map(min, windows.values())]


def details(found: Observations, settings: Settings) -> dict[str, Any]:
    """Return settings, calls and the server over time as JSON-ready values."""
    capacity_per_s, notes = found.capacity_per_s, found.notes
    return {
        "settings": asdict(settings),
        "max_slope_mb_per_h": round(settings.max_slope, 2),
        "capacity_calls_per_s": round(capacity_per_s, 2),
        "offered_calls_per_s": round(settings.load_share * capacity_per_s, 2),
        "num_sentences": notes.num_sentences,
        "calls": [{"kind": kind, "status": end, "count": count} for (kind, end), count in sorted(notes.ends.items())],
        "before": asdict(found.before),
        "after": asdict(found.after),
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


def _figure(samples: Sequence[Sample], settings: Settings, *, title: str) -> Figure:
    figure = Figure(figsize=(10, 9), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_WIDTH)), fontsize="small")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, names in zip(panels, _PANELS, strict=True):
        for name in names:
            axes.plot([sample["at_s"] for sample in samples], [sample[name] for sample in samples], label=name)
    memory, counts, work = panels
    lows = judged_lows(samples, settings)
    memory.plot([at_s for at_s, _ in lows], [size_mb for _, size_mb in lows], "o-", label="low of a window")
    memory.axvspan(0, settings.warm_up_s, color="lightgrey", label="warm-up, not judged")
    counts.set_ylim(bottom=0)
    work.set(xlabel="seconds", yscale="symlog")
    for axes in panels:
        axes.legend(loc="lower right")
    return figure
