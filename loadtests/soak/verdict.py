"""What a soak came to, and which promises it broke. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.soak import memory
from loadtests.soak.access_log import AccessLog
from loadtests.soak.book import Book
from loadtests.soak.ledger import Balance, balance
from loadtests.soak.observations import Observations, Sample, Settings

_MAX_TOLD: Final = 5
"""Of the sentences of one kind; the JSON has all."""
_BROKEN_VERSION: Final = '"event": "model could not be loaded"'
_ENDS: Final = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
"""What a soak must have met to have shown anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one soak."""

    seconds: float
    num_calls: int
    ends: Mapping[str, int]
    """Calls by status, as their callers saw it."""

    unanswered: Sequence[str]
    twice: Sequence[str]
    balance: Balance
    trend: memory.Trend | None
    """None: too short to tell."""

    threads_left: int
    """More than there were before the load; so are the files."""

    fds_left: int
    tasks_left: int
    """Calls that the server still counts as being answered."""

    slots_left: int
    """Gauges of queue and batches that are not back at 0, versions that are still told of though they are gone."""

    num_swaps: int
    num_swaps_counted: int
    errors: Sequence[str]
    wrong: Sequence[str]
    num_sentences: int
    """That callers received."""

    num_segments: int
    """That the server says it answered."""


def summarize(found: Observations, book: Book, log: AccessLog, settings: Settings) -> Summary:
    """Return the figures."""
    before, after = found.before.footprint, found.after.footprint
    ends = Counter[str]()
    for (_, status), count in book.ends.items():
        ends[status] += count
    return Summary(
        seconds=found.elapsed_s,
        num_calls=book.num_calls,
        ends=dict(ends),
        unanswered=book.unanswered,
        twice=book.twice,
        balance=balance(book.entries, log.logged, found.counted),
        trend=_trend(found.samples, settings),
        threads_left=max(0, after.num_threads - before.num_threads),
        fds_left=max(0, after.num_fds - before.num_fds),
        tasks_left=round(sum(found.after.open_calls.values())),
        slots_left=len(found.after.held_segments) + max(0, len(found.after.versions) - 1),
        num_swaps=found.num_swaps,
        num_swaps_counted=found.num_swaps_counted,
        errors=[*book.errors, *_complaints(log, found.num_broken_versions), *_failed_segments(found)],
        wrong=book.wrong,
        num_sentences=book.num_sentences,
        num_segments=found.num_segments_ok,
    )


def broken_promises(summary: Summary, settings: Settings) -> list[str]:
    """Return a sentence for each promise that did not hold."""
    counted = {
        "requests were not answered": summary.unanswered,
        "requests were answered twice": [*summary.twice, *summary.balance.twice],
        "answers are wrong": summary.wrong,
        "errors that nobody provoked": summary.errors,
        "calls differ between clients and server": [*summary.balance.differing, *summary.balance.miscounted],
    }
    broken = [f"{len(sentences)} {what}: {_told(sentences)}" for what, sentences in counted.items() if sentences]
    left = {
        "threads": summary.threads_left,
        "open files": summary.fds_left,
        "calls still counted as being answered": summary.tasks_left,
        "gauges of queue, batches and versions not back at rest": summary.slots_left,
    }
    broken += [f"{count} {what} are left" for what, count in left.items() if count]
    if summary.num_swaps != summary.num_swaps_counted:
        broken.append(f"{summary.num_swaps} swaps were made, the server counted {summary.num_swaps_counted}")
    if summary.num_segments < summary.num_sentences:
        broken.append(
            f"callers got {summary.num_sentences} sentences, the server counted {summary.num_segments} segments"
        )
    if summary.trend is None:
        broken.append("too short to tell whether memory grows")
    else:
        growth = memory.growth(summary.trend, max_slope=settings.max_slope)
        unsure = memory_doubt(summary, settings) if settings.must_be_sure_of_memory else None
        broken += [sentence for sentence in (growth, unsure) if sentence][:1]
    missed = [status for status in _ENDS if not summary.ends.get(status)]
    if missed or not summary.num_swaps:
        broken.append(f"not everything was met, run longer: {summary.num_swaps} swaps, no call ended with {missed}")
    return broken


def memory_doubt(summary: Summary, settings: Settings) -> str | None:
    """Return a sentence if memory changed too unevenly to be judged."""
    return None if summary.trend is None else memory.doubt(summary.trend, max_slope=settings.max_slope)


def judged_lows(samples: Sequence[Sample], settings: Settings) -> list[tuple[float, float]]:
    """Return the lows of memory (seconds, MiB) that are judged: under load, after the warm-up."""
    judged = [
        (sample.at_s, sample.footprint.rss_mb)
        for sample in samples
        if settings.warm_up_s <= sample.at_s <= settings.duration_s
    ]
    return memory.lows(judged, num_windows=settings.num_windows)


def _trend(samples: Sequence[Sample], settings: Settings) -> memory.Trend | None:
    try:
        return memory.trend(judged_lows(samples, settings))
    except ValueError:
        return None


def _complaints(log: AccessLog, num_broken_versions: int) -> list[str]:
    """Return what the server complained of, but for the versions that could not be loaded, once each."""
    provoked = [line for line in log.complaints if _BROKEN_VERSION in line]
    return [line for line in log.complaints if _BROKEN_VERSION not in line] + provoked[num_broken_versions:]


def _failed_segments(found: Observations) -> list[str]:
    return [f"{found.num_segments_failed} segments failed"] if found.num_segments_failed else []


def _told(sentences: Sequence[str]) -> str:
    more = len(sentences) - _MAX_TOLD
    return "; ".join(sentences[:_MAX_TOLD]) + (f"; and {more} more" if more > 0 else "")
