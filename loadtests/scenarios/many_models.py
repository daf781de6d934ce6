"""`many-models`: several models on one server under overload and backlog, and its processes, memory and CPU time."""

import argparse
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Outcome, PlannedCall
from loadtests.generator.client import CONNECT_TIMEOUT_S, MAX_OVERRUN_S, NUM_CHANNELS, Client
from loadtests.generator.flags import within
from loadtests.generator.metrics import process_tree
from loadtests.generator.records import Summary, summarize
from loadtests.generator.runner import poisson_times
from loadtests.generator.server import BUNDLED_MODELS, Target
from loadtests.generator.texts import SENTENCES, Profile
from loadtests.generator.workload import Workload
from loadtests.report.report import Report, environment, markdown, rounded

NAME: Final = "many-models"
DESCRIPTION: Final = """\
Starts a server with N models: the bundled models and copies of them under other names, which share their files. Then
measures the throughput of one direction in a closed loop of 32 callers; both directions together at 5 and 10 times
this throughput; one direction, both and all models with a backlog of at least 16 segments for each model; processes
and memory; and the CPU time per call of the server process without its workers.

OUTPUT contains many-models.json and the models.

exit codes: 0 measured; 1 the server failed; 2 invalid usage"""

WORKLOAD: Final = Workload(deadline_s=2.0)

_DURATIONS_S: Final = {"full": 20.0, "short": 4.0}
_WARM_UP_S: Final = 1.0
_FACTORS: Final = (5, 10)
_TEXTS_PER_CALL: Final = 16
_CALLERS: Final = (8, 32)
_CALLS_IN_FLIGHT: Final = 2  # for each model with a backlog: one is decoded, one is queued
_RETRY_S: Final = 0.1
_BYTES_PER_MB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Calls to several models in turn, after a warm-up."""

    target: Target
    duration_s: float
    seed: int

    def overload(self, workloads: Sequence[Workload], rate_per_s: float) -> Summary:
        """Offer Poisson arrivals."""
        offsets_s = poisson_times(rate_per_s, _WARM_UP_S + self.duration_s, self.seed)
        calls = list(itertools.islice(_in_turn(workloads, self.seed), len(offsets_s)))
        with self._client() as client:
            start_s = time.monotonic()
            records = client.send((call, start_s + at_s) for call, at_s in zip(calls, offsets_s, strict=True))
        measured = [record for record in records if record.planned_s >= start_s + _WARM_UP_S]
        return summarize(measured, duration_s=self.duration_s)

    def throughput_per_s(self, workloads: Sequence[Workload], *, num_callers: int) -> float:
        """Return the texts per second of a closed loop; raises RuntimeError if a call fails."""
        patient = [replace(workload, deadline_s=MAX_OVERRUN_S) for workload in workloads]
        with self._client() as client:
            start_s = time.monotonic()
            total_s = _WARM_UP_S + self.duration_s
            calls = _in_turn(patient, self.seed)
            records = client.closed_loop(num_callers, calls, began_s=start_s, total_s=total_s, retry_s=_RETRY_S)
        if failed := [one.status for one in records if one.outcome not in {Outcome.ANSWERED, Outcome.REJECTED}]:
            raise RuntimeError(f"{len(failed)} calls of the closed loop failed, the first with {failed[0]}")
        answered = [record for record in records if record.outcome is Outcome.ANSWERED]
        until_s = start_s + total_s
        measured = [record.num_texts for record in answered if start_s + _WARM_UP_S <= record.ended_s < until_s]
        return sum(measured) / self.duration_s

    def cpu_ms_per_call(self, workload: Workload, *, num_callers: int) -> float:
        """Return the CPU time per call of the server process, without its workers."""
        process = psutil.Process(_pid(self.target))
        began, began_s = process.cpu_times(), time.monotonic()
        per_s = self.throughput_per_s([workload], num_callers=num_callers)
        ended, seconds = process.cpu_times(), time.monotonic() - began_s
        used_s = ended.user + ended.system - began.user - began.system
        return 1000 * used_s / (per_s * seconds)

    def _client(self) -> Client:
        return Client(self.target, num_channels=NUM_CHANNELS, connect_timeout_s=CONNECT_TIMEOUT_S)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `many-models`."""
    add = parser.add_argument_group("measurement").add_argument
    add("--bundles", type=within(2, 1000, int), default=10, metavar="N", help="number of models (10)")


def prepare(options: argparse.Namespace, workload: Workload) -> Callable[[Target], Report]:
    """Write the models and return the measurement; raises ValueError for a running server or other models."""
    if options.target or options.model_dir:
        raise ValueError("many-models starts its own server: omit --target and --model-dir")
    options.model_dir = options.output / "models"
    return partial(_measure, options, workload, copy_models(options.model_dir, options.bundles))


def copy_models(directory: Path, num_models: int) -> list[tuple[str, str, str]]:
    """Write models that share the files of the bundled ones; return name, source and target language of each."""
    shutil.rmtree(directory, ignore_errors=True)
    models = []
    for number in range(num_models):
        original = BUNDLED_MODELS / ("en-de", "de-en")[number % 2] / "1"
        manifest = json.loads((original / "manifest.json").read_text(encoding="utf-8"))
        if number > 1:
            manifest["name"] += f"-{number // 2}"
        copy = directory / manifest["name"] / "1"
        shutil.copytree(original, copy, copy_function=_link)
        (copy / "manifest.json").unlink()
        (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        models.append((manifest["name"], manifest["source_language"], manifest["target_language"]))
    return models


def _link(source: str, copy: str) -> None:
    try:
        os.link(source, copy)
    except OSError:  # another file system
        shutil.copy2(source, copy)


def _measure(
    options: argparse.Namespace, workload: Workload, models: Sequence[tuple[str, str, str]], target: Target
) -> Report:
    load = _Load(target=target, duration_s=_DURATIONS_S[options.mode], seed=options.seed)
    german = options.output / "german.txt"
    german.write_text("\n".join(_translations(target)) + "\n", encoding="utf-8")
    inputs = {"en": workload, "de": replace(workload, profile=Profile.LINES, lines=german)}
    workloads = [
        replace(inputs[source], model=name, source_language=source, target_language=to) for name, source, to in models
    ]
    large = [replace(each, texts_per_call=_TEXTS_PER_CALL) for each in workloads]
    memory_mb = [psutil.Process(pid).memory_full_info().pss / _BYTES_PER_MB for pid in process_tree(_pid(target))]
    figures: dict[str, float | None] = {"processes": len(memory_mb), "memory (PSS), MB": sum(memory_mb)}
    capacity = load.throughput_per_s(workloads[:1], num_callers=max(_CALLERS))
    figures[f"one direction, {max(_CALLERS)} callers, texts/s"] = capacity
    for factor in _FACTORS:
        summary, row = load.overload(large[:2], factor * capacity / _TEXTS_PER_CALL), f"both directions, {factor} x"
        rejected, num_accepted = summary.rejected_latency, summary.answered + summary.late
        figures |= {
            f"{row}: rejected p50, ms": rejected.p50_ms if rejected else None,
            f"{row}: rejected p99, ms": rejected.p99_ms if rejected else None,
            f"{row}: accepted but late, %": 100 * summary.late / num_accepted if num_accepted else None,
            f"{row}: answered, texts/s": summary.goodput_per_s * _TEXTS_PER_CALL,
            f"{row}: other errors": summary.errors,
            f"{row}: generator lag p99, ms": summary.generator_lag.p99_ms,
        }
    groups = {"en-de": large[:1], "de-en": large[1:2], "both directions": large[:2], f"{len(models)} models": large}
    for row, group in groups.items():
        num_callers = _CALLS_IN_FLIGHT * len(group)
        figures[f"backlog, {row}, texts/s"] = load.throughput_per_s(group, num_callers=num_callers)
    for num_callers in _CALLERS:
        used_ms = load.cpu_ms_per_call(workloads[0], num_callers=num_callers)
        figures[f"CPU of the server process per call, {num_callers} callers, ms"] = used_ms
    return Report(
        name=NAME,
        figures={"models": len(models)},
        values={**environment(NAME), "models": len(models), "figures": figures},
        violations=target.stop(),
        table=markdown(("measured", "value"), [[row, rounded(value, 2)] for row, value in figures.items()]),
    )


def _pid(target: Target) -> int:
    if target.process is None:
        raise ValueError("the server was not started for the test")
    return target.process.pid


def _translations(target: Target) -> list[str]:
    """Return the built-in sentences in German, each on one line."""
    request = pb.TranslateRequest(texts=SENTENCES, source_language="en", target_language="de", model="en-de")
    with Client(target, num_channels=1, connect_timeout_s=CONNECT_TIMEOUT_S) as client:
        reply = client.call(Method.TRANSLATE, request.SerializeToString())
    if not reply.messages:
        raise RuntimeError(f"no translation of the built-in sentences: {reply.status}")
    response = pb.TranslateResponse.FromString(reply.messages[0])
    return [translation.hypotheses[0].text.replace("\n", " ") for translation in response.translations]


def _in_turn(workloads: Sequence[Workload], seed: int) -> Iterator[PlannedCall]:
    """Yield calls, one of each workload in turn."""
    sources = [workload.calls(seed) for workload in workloads]
    return (sources[number % len(sources)].call(number) for number in itertools.count())
