"""`python -m loadtests.soak`: everything at once for half an hour; shows that nothing leaks and nothing is lost."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from loadtests.soak import report
from loadtests.soak.access_log import read_access_log
from loadtests.soak.book import Book
from loadtests.soak.observations import Sample, Settings
from loadtests.soak.run import run
from loadtests.soak.verdict import broken_promises, memory_doubt, summarize
from loadtests.stress.server import Versions
from loadtests.target import ServerError, ServerProcess
from loadtests.texts import read_texts

_DESCRIPTION: Final = """\
Starts the server on free ports of this machine, finds out how many calls a second it answers, and then offers 65 % of
that for 30 minutes, or 3 (--mode short), one word to long documents, with every option, over Translate,
TranslateDocument and TranslateStream: most callers wait, others cancel at any moment, close their connection, have a
deadline too short, or ask what must be refused. All along the model is swapped for another version with the same
weights, by ModelAdminService and by the directory of models, now and then after one that is broken.

What must hold:
  answers   every request is answered exactly once, whole, in order, and by nobody else's answer; probes, which are
            asked again and again, get the same answer bit by bit
  ledger    what the clients noted of each call is what the server logged of it and what its counters add up to. A call
            whose caller gave up may have been ended by the server as cancelled, late or answered, or not seen at all;
            no other difference is allowed for
  errors    no status but those provoked, no error in the server's log
  left      when all have gone, calls, queue and batches are at 0, and threads and open files as few as before
  memory    after the warm-up (a third of the time, at most 4 minutes) the server's resident memory, the lowest of each
            window of time, has a slope (Theil-Sen) that is not above the limit with a confidence of 95 %. In a run of
            15 minutes and more the interval must not be so wide either that half of it is above the limit, which is no
            knowledge; a shorter run says so and is not broken by it

The limit of the slope is --max-growth-mb over the time that is judged. Memory rises and falls by some 50 MB with every
swap, so a short run is held to 24 MB within two minutes (720 MB/h): it shows a model that stays after each swap, or
20 kB a call at 10 calls/s. Runs of 15 minutes and more are held to 16 MB; in a full run these are 37 MB/h, or 1 kB a
call. With the said confidence nothing that grows three times as fast as the limit passes. The server runs with
MALLOC_TRIM_THRESHOLD_=131072 and MALLOC_ARENA_MAX=2, so that glibc gives back what is freed at once, where it would
else keep it for minutes.

The last line holds the figures, the JSON and the picture (DIR/soak.json, DIR/soak.png) the whole run.

exit codes: 0 every promise held, 1 one was broken or the server failed, 2 called wrongly"""

_DURATIONS_S: Final = {"short": 180.0, "full": 1800.0}
_MIN_DURATION_S: Final = 10.0
_MAX_DURATION_S: Final = 86_400.0
_WARM_UP_SHARE: Final = 1 / 3
_MAX_WARM_UP_S: Final = 240.0
_CALIBRATION_SHARE: Final = 1 / 15
_MAX_CALIBRATION_S: Final = 20.0
_WINDOW_S: Final = 8.0
_MAX_WINDOWS: Final = 30
_SWAP_EACH_S: Final = 6.0
_MAX_GROWTH_SHORT_MB: Final = 24.0
_MAX_GROWTH_MB: Final = 16.0
_LONG_S: Final = 900.0
"""From which duration the smaller of the two holds."""

_LINES: Final = 60
"""Of progress, about; none sooner than five seconds after the last."""
_START_TIMEOUT_S: Final = 120.0
SERVER_SETTINGS: Final = {
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "1",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_ARENA_MAX": "2",
}
"""What differs from the defaults: versions come and go all the time; and what is freed goes back to the system at once,
where glibc would keep up to 200 MB for minutes and hide what is not freed."""

_BUNDLE: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "en-de" / "1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return the exit code."""
    options = _parser().parse_args(arguments)
    settings = settings_for(options.duration or _DURATIONS_S[options.mode], options)
    book, log = Book(), options.output / "server.log"
    try:
        with tempfile.TemporaryDirectory(prefix="dragoman-soak-") as models:
            versions = Versions(Path(models), options.bundle)
            versions.add(1)
            with ServerProcess(log, "--models", models, environment=SERVER_SETTINGS) as server:
                server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
                found = run(server, versions, read_texts(), book, settings, progress=_progress(settings))
                exit_code = server.stop()
    except (ServerError, RuntimeError, OSError, ValueError) as error:
        print(f"loadtests.soak: {error}; the server's log: {log}", file=sys.stderr)
        return 1
    summary = summarize(found, book, read_access_log(log), settings)
    broken = broken_promises(summary, settings)
    if exit_code:
        broken.append(f"the server ended with exit code {exit_code}")
    soak = report.Soak(settings=settings, found=found, book=book, summary=summary, broken=broken)
    report.write(options.output, soak)
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    if (doubt := memory_doubt(summary, settings)) and doubt not in broken:
        print(f"note: {doubt}", file=sys.stderr)
    print(report.line(summary, broken))
    return 1 if broken else 0


def settings_for(duration_s: float, options: argparse.Namespace) -> Settings:
    """Return how to spend the time."""
    warm_up_s = min(_WARM_UP_SHARE * duration_s, _MAX_WARM_UP_S)
    window_s = max(_WINDOW_S, (duration_s - warm_up_s) / _MAX_WINDOWS)
    return Settings(
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        calibration_s=min(_CALIBRATION_SHARE * duration_s, _MAX_CALIBRATION_S),
        num_callers=options.callers,
        load_share=options.load,
        swap_each_s=_SWAP_EACH_S,
        sample_each_s=0.5,
        num_windows=int((duration_s - warm_up_s) / window_s),
        max_growth_mb=options.max_growth_mb or (_MAX_GROWTH_MB if duration_s >= _LONG_S else _MAX_GROWTH_SHORT_MB),
        must_be_sure_of_memory=duration_s >= _LONG_S,
        seed=options.seed,
    )


def _progress(settings: Settings) -> Callable[[Sample], None]:
    """Return what prints a line now and then."""
    each_s = max(5.0, settings.duration_s / _LINES)
    next_s = 0.0

    def tell(sample: Sample) -> None:
        nonlocal next_s
        if sample.at_s >= next_s:
            next_s = sample.at_s + each_s
            print(report.progress_line(sample, settings), file=sys.stderr, flush=True)

    return tell


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.soak",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--mode", choices=list(_DURATIONS_S), default="full", help="short: 3 minutes, full: 30 (full)")
    add("--duration", type=_duration, metavar="S", help="seconds of load, in place of those of the mode")
    add("--load", type=_share, default=0.65, metavar="X", help="share of the capacity that is offered (0.65)")
    add("--callers", type=_callers, default=16, metavar="N", help="calls at a time, at most (16)")
    add(
        "--max-growth-mb",
        type=_size,
        metavar="MB",
        help=f"memory promise, see above ({_MAX_GROWTH_SHORT_MB:g} or {_MAX_GROWTH_MB:g})",
    )
    add("--seed", type=int, default=1, metavar="N", help="of texts, options and moments (1)")
    add("--bundle", type=Path, default=_BUNDLE, metavar="DIR", help="a model from English to German (the shipped one)")
    add("--output", type=Path, default=Path("build/soak"), metavar="DIR", help="(build/soak)")
    return parser


def _duration(text: str) -> float:
    return _within(text, _MIN_DURATION_S, _MAX_DURATION_S)


def _share(text: str) -> float:
    return _within(text, 0.01, 1.0)


def _size(text: str) -> float:
    return _within(text, 0.1, 10_000.0)


def _callers(text: str) -> int:
    return round(_within(text, 1, 256))


def _within(text: str, low: float, high: float) -> float:
    value = float(text)
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text}: expected {low:g} to {high:g}")
    return value


if __name__ == "__main__":
    sys.exit(main())
