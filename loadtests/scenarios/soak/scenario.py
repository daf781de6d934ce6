"""Scenario `soak`: mixed traffic with model swaps for half an hour; checks for leaks and losses."""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from dragoman_service.cli.server_process import ServerProcess
from loadtests.generator.flags import within
from loadtests.generator.metrics import CALLS, SEGMENTS, Footprint, footprint, remaining_work, scrape
from loadtests.generator.server import Target
from loadtests.generator.texts import Texts, read_texts
from loadtests.report.report import Check, Report, figures_line, require, rounded
from loadtests.scenarios.soak.accounting import Accounting, Entry, read_access_log
from loadtests.scenarios.soak.calls import CallerPool, SoakClient
from loadtests.scenarios.soak.memory import Sample, Settings, check_memory, needs_phase
from loadtests.scenarios.soak.plan import MAX_MESSAGE_BYTES, PROBES, TRAFFIC, Plan, rejected_calls
from loadtests.scenarios.soak.swaps import LABEL, ModelSwaps
from loadtests.scenarios.stress_server import add_version, only_bundle, poll, started, wait_until_idle

SUMMARY: Final = "mixed traffic with model swaps for half an hour; checks for leaks and losses"

DESCRIPTION: Final = """\
Starts the server on free local ports, measures how many calls per second it answers, and then offers 65 % of that for
30 minutes, or one (--mode short): one word to long documents, with every option, over Translate, TranslateDocument and
TranslateStream. Most clients wait; others cancel at any moment, close their connection, have a deadline that is too
short, or send invalid requests. With --traffic cancellations, 19 of 20 clients cancel: before admission, in the queue,
while decoding, while the response is sent. Meanwhile the model is swapped for another version with the same weights,
through ModelAdminService and through the model directory, sometimes after a broken version.

Checks:
  responses   every request is answered exactly once, completely, in order, and with its own response; probes, which are
              repeated, get the same response bit for bit
  accounting  clients, access log and counters of the server agree on every call. A call that its client gave up may
              have been ended by the server as cancelled, late or answered, or not have been seen; no other difference
              is allowed
  errors      only expected statuses, no error in the server's log
  leaks       afterwards calls, queue and batches are at 0, and threads and open files as few as before,
              without counting the threads of gRPC's own pool
  memory      the load has phases of three swaps, after each of which the server is idle and has one version. From the
              third phase on, the growth of its resident memory per phase (Theil-Sen) is within the limit with a
              confidence of 95 %

The limit of the growth is --max-growth-mb over the judged phases. A full run has 100 phases of 18 s and detects some
0.2 MB per phase, or 1 kB per call. A short run has 8 phases of 6 s and detects 3 MB per phase: a version that stays
after its swap, or 30 kB per call, but not a slow leak. If the memory is too noisy to judge, up to eight phases are
added. The server runs with MALLOC_TRIM_THRESHOLD_=131072 and MALLOC_ARENA_MAX=2, so that glibc returns freed memory
at once."""

SERVER_SETTINGS: Final = {
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "1",
    "DRAGOMAN_GRPC__MAX_MESSAGE_BYTES": str(MAX_MESSAGE_BYTES),
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_ARENA_MAX": "2",
}

_DURATIONS_S: Final = {"short": 48.0, "full": 1800.0}
_SWAP_EACH_S: Final = {"short": 2.0, "full": 6.0}
_SETTLE_S: Final = 1.0  # from idle until the memory is measured
_BROKEN_VERSION: Final = '"event": "model could not be loaded"'
_IDLE_TIMEOUT_S: Final = 60.0
_CALM_S: Final = 2.0  # without change until the server counts as idle
_SAMPLE_EACH_S: Final = 0.5
_VERSION: Final = re.compile(r'model="[^"]*".*version="([^"]*)"')


class Idle(NamedTuple):
    """The server without connections."""

    footprint: Footprint
    metrics: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Observations:
    """Everything seen before the server ends."""

    settings: Settings
    before: Idle
    after: Idle
    accounting: Accounting = field(default_factory=Accounting)
    samples: list[Sample] = field(default_factory=list)
    settled: list[Sample] = field(default_factory=list)  # after each phase
    capacity_per_s: float = 0.0
    elapsed_s: float = 0.0
    num_swaps: int = 0
    num_broken_versions: int = 0  # added on purpose

    @property
    def settled_mb(self) -> list[float]:
        """Memory of the idle server after each phase, in MiB."""
        return [one["rss_mb"] for one in self.settled]


def soak(server: ServerProcess, models: Path, bundle: Path, texts: Texts, settings: Settings) -> Observations:
    """Calibrate, wait until the server is idle, put it under load, wait until it is idle again.

    The server has just started with version 1 of the bundle in `models`. Raises RuntimeError if an idle server does not
    answer a probe, or nothing under load; OSError if the server ends.
    """
    name, traffic = bundle.parent.name, TRAFFIC[settings.traffic]
    started_server = Idle(footprint(server.pid), {})  # `before` and `after` are set below
    observed = Observations(settings=settings, before=started_server, after=started_server)
    accounting = observed.accounting
    pool = CallerPool(
        address=server.target, num_callers=settings.num_callers, record=accounting.record, sample_each_s=_SAMPLE_EACH_S
    )
    calibration_s = min(max(2.0, settings.duration_s / 15), 20.0)
    with SoakClient(Target(address=server.target)) as caller:
        for probe in PROBES:
            accounting.record(probe, reply := caller.perform(probe))
            if reply.status != "OK":
                raise RuntimeError(f"{probe.request_id}: idle server answered {reply.status}: {reply.message}")
        model_swaps = ModelSwaps(caller=caller, models=models, bundle=bundle, accounting=accounting)
        model_swaps.label(1)
        rejected = rejected_calls(model_swaps.limits())
        calibration, plan = (
            iter(
                Plan(
                    texts=texts,
                    models=("", name, f"{name}@{LABEL}"),
                    prefix=prefix,
                    seed=seed,
                    traffic=traffic,
                    rejected=rejected,
                )
            )
            for prefix, seed in (("c", settings.seed + 1), ("s", settings.seed))
        )
        with model_swaps.in_background(each_s=0.0):
            observed.capacity_per_s = pool.run(calibration, duration_s=calibration_s) / calibration_s
        if not observed.capacity_per_s:
            raise RuntimeError(f"no call was answered within {calibration_s:g} s; the machine may be busy")
        observed.before, began_s = _idle(server), time.monotonic()

        def sample() -> Sample:
            now = footprint(server.pid)
            sizes = {"rss_mb": round(now.rss_mb, 2), "threads": now.num_threads, "fds": now.num_fds}
            counts = {"calls": accounting.num_calls, "swaps": model_swaps.num_swaps}
            return {"at_s": round(time.monotonic() - began_s, 2), **sizes, **counts}

        load = {"rate_per_s": settings.load_share * observed.capacity_per_s, "duration_s": settings.phase_s}
        while needs_phase(observed.settled_mb, settings):
            with model_swaps.in_background(each_s=settings.swap_each_s):
                pool.run(plan, **load, sample=lambda: observed.samples.append(sample()))
            wait_until_idle(server, timeout_s=_IDLE_TIMEOUT_S)
            time.sleep(_SETTLE_S)
            observed.settled.append(sample())
            line = figures_line(f"phase {len(observed.settled)} of {settings.num_phases}:", observed.settled[-1])
            print(line, file=sys.stderr, flush=True)
        observed.elapsed_s = time.monotonic() - began_s
        observed.num_swaps, observed.num_broken_versions = model_swaps.num_swaps, model_swaps.num_broken_versions
    observed.after = _idle(server, like=observed.before.footprint)
    return observed


def _idle(server: ServerProcess, *, like: Footprint | None = None) -> Idle:
    """Wait until the server is idle, with no more threads and files than before."""
    wait_until_idle(server, timeout_s=_IDLE_TIMEOUT_S)
    seen = [footprint(server.pid)]

    def is_calm() -> bool:
        time.sleep(_CALM_S)
        seen.append(footprint(server.pid))
        pairs = (seen[-1], like or seen[-2]), (seen[-2], seen[-1])
        return all(one.num_threads <= most.num_threads and one.num_fds <= most.num_fds for one, most in pairs)

    poll(is_calm, bool, timeout_s=_IDLE_TIMEOUT_S)
    return Idle(footprint=seen[-1], metrics=scrape(server.metrics_url))


def report_of(observed: Observations, logged: Sequence[Entry], log_errors: Sequence[str], *, exit_code: int) -> Report:
    """Return figures and checks."""
    accounting, metrics = observed.accounting, observed.after.metrics
    expected = [line for line in log_errors if _BROKEN_VERSION in line]
    errors = [line for line in log_errors if _BROKEN_VERSION not in line] + expected[observed.num_broken_versions :]
    of_calls = accounting.checks(logged, metrics, errors=errors, exit_code=exit_code)
    num_unanswered, num_duplicates, num_faults, num_errors = (len(check.failures) for check in of_calls[:4])
    num_swaps = round(sum(value for name, value in metrics.items() if name.startswith("dragoman_model_swaps_total")))
    num_answered = round(metrics.get('dragoman_segments_total{outcome="ok"}', 0))
    memory = check_memory(observed.settled_mb, observed.settings)
    left = _remaining(observed)
    missed = [status for status in TRAFFIC[observed.settings.traffic].ends if not accounting.num_ended(status)]
    figures = {
        "seconds": f"{observed.elapsed_s:.0f}",
        "calls": accounting.num_calls,
        "unanswered": num_unanswered,
        "duplicates": num_duplicates,
        "accounting_difference": of_calls[4].figures["difference"],
        **{f"rss_{name}_mb": rounded(memory.figures.get(name), 2) for name in ("growth", "lowest", "highest")},
        **{f"{name}_left": count for name, count in left.items()},
        "swaps": observed.num_swaps,
        "faults": num_faults,
        "errors": num_errors,
    }
    swaps = f"{observed.num_swaps} swaps, the server counted {num_swaps}"
    sentences = f"clients received {accounting.num_sentences} sentences, the server counted {num_answered} segments"
    incomplete = f"the run is too short: {observed.num_swaps} swaps, no call ended with {missed}"
    checks = [
        *of_calls,
        Check(name="no requests leaked", failures=[f"{count} {name}" for name, count in left.items() if count]),
        require("each swap is counted once", observed.num_swaps == num_swaps, swaps),
        require("each sentence is counted", accounting.num_sentences <= num_answered, sentences),
        memory,
        require("all call kinds covered", not missed and observed.num_swaps > 0, incomplete),
    ]
    ends = {"before": observed.before, "after": observed.after}
    values = {
        "settings": asdict(observed.settings),
        "capacity_calls_per_s": round(observed.capacity_per_s, 2),
        "num_sentences": accounting.num_sentences,
        "calls": [
            {"kind": kind, "status": end, "count": count} for (kind, end), count in sorted(accounting.ends.items())
        ],
        **{when: {**idle._asdict(), "footprint": asdict(idle.footprint)} for when, idle in ends.items()},
        "samples": observed.samples,
        "settled": observed.settled,
    }
    return Report(name="soak", figures=figures, checks=checks, values=values)


def _remaining(observed: Observations) -> dict[str, int]:
    """Return the remaining threads, files, calls and segments compared with the time before the load."""
    before, after, metrics = observed.before.footprint, observed.after.footprint, observed.after.metrics
    versions = {match[1] for name in metrics if (match := _VERSION.search(name))}
    return {
        "threads": max(0, after.num_threads - before.num_threads),
        "fds": max(0, after.num_fds - before.num_fds),
        "tasks": round(sum(remaining_work(metrics, CALLS).values())),  # calls in flight
        "slots": len(remaining_work(metrics, SEGMENTS)) + max(0, len(versions) - 1),  # also series of old versions
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this scenario."""
    add = parser.add_argument
    add("--duration", type=within(10, 86_400), metavar="S", help="seconds of load (default: by mode)")
    add("--traffic", choices=tuple(TRAFFIC), default="everything", help="composition of the calls (everything)")
    add("--load", type=within(0.01, 1), default=0.65, metavar="X", help="share of the capacity that is offered (0.65)")
    add("--callers", type=within(1, 256, int), default=16, metavar="N", help="maximum number of concurrent calls (16)")
    add("--max-growth-mb", type=within(0.1, 10_000), default=16.0, metavar="MB", help="memory limit, see above (16)")


def run(options: argparse.Namespace) -> int:
    """Run the scenario; return the exit code."""
    settings = Settings(
        duration_s=options.duration or _DURATIONS_S[options.mode],
        num_callers=options.callers,
        load_share=options.load,
        swap_each_s=_SWAP_EACH_S[options.mode],
        growth_limit_mb=options.max_growth_mb,
        seed=options.seed,
        traffic=options.traffic,
    )
    with tempfile.TemporaryDirectory(prefix="dragoman-soak-") as directory:
        models, bundle = Path(directory), only_bundle(options.model_dir)
        add_version(bundle, models, 1)
        with started(options.output, models=models, settings=SERVER_SETTINGS) as tested:
            observed = soak(tested, models, bundle, read_texts(), settings)
            exit_code = tested.stop()
    return report_of(observed, *read_access_log(options.output), exit_code=exit_code).conclude(options.output)
