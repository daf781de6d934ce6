"""Measure the figures of the documentation and write them to docs/figures.json.

    python -m docs.measure             all sections, about two hours; the machine should do nothing else
    python -m docs.measure SECTION ... some sections; the others keep their figures

Sections: {sections}. `python -m docs.generate` then inserts the tables into the pages. The sections whose name ends in
`avx2` need a CPU with AVX-512 to be different from the others. {of_models} describe the bundled models: measure them
again when a model changes. They need the test sets (LOADTESTS_DATA or ../shared/data), and so does `datasets`, which
also needs the extra `ray`.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from dragoman_export.data.reader import Pair, read_pairs
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.robustness import changed, measure_changes
from dragoman_export.evaluation.spans import KEPT, count_spans, with_own_spans
from dragoman_export.model.layers import FeedForward, MultiHeadAttention
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.config import Settings
from dragoman_service.dataset_translation.translators import EngineSpec
from dragoman_service.runtimes.settings import RuntimeSettings
from loadtests.benchmarks.report import BENCH_NAME, LOAD_NAME, PICTURE_NAME
from loadtests.generator.metrics import CPU_SECONDS, footprint
from loadtests.generator.runner import Generator, Load, offer
from loadtests.generator.server import BUNDLED_MODELS, CHECKOUT, Target
from loadtests.generator.slo import parse_slo
from loadtests.generator.workload import Workload
from loadtests.report.report import describe_machine, new_figure, write_picture
from loadtests.scenarios.capacity import DEFAULT_SLO, find_capacity
from loadtests.scenarios.capacity import PLANS as SEARCHES

FIGURES = CHECKOUT / "docs" / "figures.json"
OUTPUT = CHECKOUT / "build" / "figures"
CURVES = CHECKOUT / "docs" / "benchmarks" / "curves"
DATA = Path(os.environ.get("LOADTESTS_DATA", CHECKOUT.parent / "shared" / "data"))
MODELS = ("en-de", "de-en")
TEST_SETS = {
    "tatoeba": "tatoeba-en-de/test.tsv.gz",
    "documentation": "software-docs-en-de/test.tsv.gz",
    "development": "tatoeba-en-de/dev.tsv.gz",
    "news": "newstest2013-en-de/test.tsv.gz",
}
SEED = 1  # of samples of test sets
NUM_EXAMPLES = 10
NUM_MIXED = 2000  # pairs of each test set
NUM_CHANGED = 500  # sentences of each change
SPAN_KEYS = ("preserved", "redecoded", "inserted", "lost")  # of the counts of spans
SIGNALS = {  # of the autoscaler: metric, and whether it is a counter, whose increase per second counts
    "queue_decode_cost": ("dragoman_queue_decode_cost", False),
    "queue_wait_s_per_s": ("dragoman_queue_wait_seconds_sum", True),
    "live_segments": ("dragoman_batch_live_segments", False),
    "rejected_per_s": ("dragoman_rejected_requests_total", True),
}
SIGNAL_LOADS = (0.3, 0.6, 0.9, 10.0)  # shares of the capacity
SIGNAL_TEXTS = 8  # per call
SIGNAL_S = 20.0
CODE = ("service", "export", "proto", "loadtests")
PLOTS = ("servers", "servers-base")
CALLERS = (1, 8, 32)  # of a closed loop
CALLS_S = 6.0
WORKER_CPU_SECONDS = "dragoman_worker_cpu_seconds_total"
WIDTH = 512  # of the layers of `complexity`
LENGTHS = tuple(2**power for power in range(4, 12))
DATASET_S, ENGINE_S = 300.0, 120.0  # of each run of `datasets`, without its start and end, and of the engine alone
DATASET_WORKERS = (1, 2)
DATASET_BLOCK = 500  # rows
STARTS = 3  # of each set-up; medians count


def engine(directory: Path) -> dict[str, Any]:
    """Read a comparison of engines; return a record by model, case, threads and other system."""
    record = read(directory / BENCH_NAME)
    found: dict[str, Any] = {model: {"limits": speed} for model, speed in record["engine"].items()}
    for case in record["cases"]:
        name = "one" if case["sources_per_call"] == 1 else f"many{case['num_sources']}"
        for pair in case["pairs"]:
            sides = {side: pair[side]["p50_s"] * 1000 for side in ("ours", "theirs")}
            if case["sources_per_call"] > 1:
                sides = {side: pair[side]["tokens_per_s"] for side in ("ours", "theirs")}
            system = pair["theirs"]["name"].partition("-")[0]
            found[case["model"]][f"{name}-{pair['threads']}-{system}"] = {"ratio": pair["ratio"], **sides}
    return found


def servers(directory: Path) -> dict[str, Any]:
    """Read a comparison with a server around CTranslate2; return capacities, and latency and CPU time by load."""
    (comparison,) = read(directory / LOAD_NAME)["comparisons"]
    if directory.name in PLOTS:
        shutil.copyfile(directory / PICTURE_NAME, CURVES / f"{directory.name}.png")
    capacity = {
        side: comparison[f"{whose}_capacity"]["per_s"] for side, whose in (("ours", "our"), ("theirs", "their"))
    }
    found = {"slo": comparison["objective"], "settings": comparison["settings"]}
    found["capacity"] = {"ratio": comparison["capacity_ratio"], **capacity}
    for point in comparison["points"]:
        for kind in ("p50", "p95", "cpu"):
            sides = {side: point[f"{side}_{kind}_ms"] for side in ("ours", "theirs")}
            found[f"{kind}-{point['load'] * 100:.0f}"] = {"ratio": sides["ours"] / sides["theirs"], **sides}
    return found


def overload(directory: Path) -> dict[str, Any]:
    """Read the result of ten times the capacity."""
    record = read(directory / "overload.json")
    summary = record["summary"]
    names = ("offered", "offered_per_s", "rejected", "late", "errors")
    return {
        **{name: summary[name] for name in names},
        "rejected_ms": summary["rejected_latency"],
        "goodput": record["goodput"],
        "rss_growth_mb": record["rss_growth_mb"],
    }


def scenario(directory: Path) -> dict[str, Any]:
    """Read a stress scenario; return the figures of its result line and its verdict."""
    record = read(directory / f"{directory.name.replace('-', '_')}.json")
    return {**record["figures"], "verdict": record["verdict"]}


def read(path: Path) -> Any:
    """Read JSON."""
    return json.loads(path.read_text("utf-8"))


def memory() -> dict[str, Any]:
    """Start the server with one and with both bundled models, alternating; return medians in MiB and seconds."""
    one = OUTPUT / "one-model"
    shutil.copytree(BUNDLED_MODELS / "en-de", one / "en-de", dirs_exist_ok=True)
    starts: dict[str, list[dict[str, float]]] = {"both": [], "one": []}
    for _ in range(STARTS):
        for name, models in (("both", BUNDLED_MODELS), ("one", one)):
            began_s = time.monotonic()
            with ServerProcess("--models", str(models)) as process:
                process.wait_until_ready()
                seconds = time.monotonic() - began_s
                idle = footprint(process.pid).rss_mb
                generator = Generator(target=Target(address=process.target), workload=Workload(texts_per_call=20))
                generator.throughput_per_s(duration_s=8.0)
                busy = footprint(process.pid).rss_mb
                process.stop()
            starts[name].append({"ready_s": seconds, "idle_mib": idle, "busy_mib": busy})
    return {name: {key: median(one[key] for one in runs) for key in runs[0]} for name, runs in starts.items()}


def calls() -> dict[str, Any]:
    """Return CPU time of the server without its workers per call of one sentence, and calls per second, by callers."""
    found: dict[str, Any] = {}
    with ServerProcess() as process:
        process.wait_until_ready()
        target = Target(address=process.target, metrics_url=process.metrics_url)
        for callers in CALLERS:
            load = Load(workload=Workload(), num_users=callers, duration_s=CALLS_S, warm_up_s=1.0)
            run = offer(target, load)
            first, last = run.samples[0], run.samples[-1]
            used_s = {name: last.total(name) - first.total(name) for name in (CPU_SECONDS, WORKER_CPU_SECONDS)}
            answered = len(run.records) + len(run.warm_up_records)
            found[str(callers)] = {
                "cpu_ms": 1000 * (used_s[CPU_SECONDS] - used_s[WORKER_CPU_SECONDS]) / answered,
                "calls_per_s": run.summary.goodput_per_s,
            }
        process.stop()
    return found


def signals() -> dict[str, Any]:
    """Offer shares of the capacity to one replica; return the mean of each signal of the autoscaler by share."""
    workload = Workload(texts_per_call=SIGNAL_TEXTS, deadline_s=2.0)
    with ServerProcess() as process:
        process.wait_until_ready()
        target = Target(address=process.target, metrics_url=process.metrics_url, process=process)
        generator = Generator(target=target, workload=workload)
        capacity = find_capacity(generator, parse_slo(DEFAULT_SLO), SEARCHES["short"]).per_s
        found: dict[str, Any] = {"capacity": capacity}
        for share in SIGNAL_LOADS:
            run = offer(
                target, Load(workload=workload, rate_per_s=share * capacity, duration_s=SIGNAL_S, warm_up_s=3.0)
            )
            samples = [sample for sample in run.samples if sample.at_s >= run.began_s and sample.values]
            found[f"{100 * share:.0f}"] = {}
            for name, (metric, is_counter) in SIGNALS.items():
                totals = [sample.total(metric) for sample in samples]
                elapsed_s = samples[-1].at_s - samples[0].at_s
                mean = (totals[-1] - totals[0]) / elapsed_s if is_counter else fmean(totals)
                found[f"{100 * share:.0f}"][name] = mean
        process.stop()
    return found


def quality() -> dict[str, Any]:
    """Score the bundled models on the test sets; return pairs, BLEU, chrF and signature by model and set."""
    found: dict[str, Any] = {}
    for model in MODELS:
        found[model] = {}
        for name in TEST_SETS:
            pairs, scores = pairs_of(model, name), OUTPUT / "scores.json"
            export(model, "evaluate", write_pairs(name, pairs), "--scores", str(scores))
            measured = {one["metric"]: one for one in read(scores)}
            values = {metric: one["value"] for metric, one in measured.items()}
            found[model][name] = {**values, "pairs": len(pairs), "signature": measured["BLEU"]["signature"]}
    return found


def datasets() -> dict[str, Any]:
    """Return rows/s of the engine alone and of `translate-dataset`, by the number of processes with one thread each."""
    sources = [pair.source for pair in read_pairs([DATA / TEST_SETS["tatoeba"]], None)]
    found: dict[str, Any] = {}
    for workers in DATASET_WORKERS:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            alone = sum(pool.map(engine_rows_per_s, [sources] * workers))
        text = OUTPUT / "dataset.txt"
        num_rows = int(2 * DATASET_S * alone) + 10 * DATASET_BLOCK  # more than are translated
        text.write_text("".join(f"{line}\n" for line in itertools.islice(itertools.cycle(sources), num_rows)), "utf-8")
        rate, seconds = dataset_rows_per_s(text, workers)
        found[str(workers)] = {"ratio": rate / alone, "engine_rows_per_s": alone, "rows_per_s": rate, "s": seconds}
    return found


def engine_rows_per_s(sources: Sequence[str]) -> float:
    """Translate blocks of rows in this process, as a worker of `translate-dataset` does; return rows per second."""
    engine = EngineSpec.of(Settings(), "", "en", "de", beam_size=4, batch_size=32).open()
    rows = itertools.cycle(sources)
    num_rows, began_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < ENGINE_S:
        num_rows += len(engine.translate(list(itertools.islice(rows, DATASET_BLOCK))))
    return num_rows / elapsed_s


def dataset_rows_per_s(text: Path, workers: int) -> tuple[float, float]:
    """Run `translate-dataset` for some minutes; return rows per second between two of its manifests, and the seconds.

    The first manifest is the one after two blocks per worker.
    """
    output = OUTPUT / "dataset"
    shutil.rmtree(output, ignore_errors=True)
    sizes = {"beam-size": 4, "batch-size": 32, "block-rows": DATASET_BLOCK, "workers": workers}
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    command = [sys.executable, "-m", "dragoman", "translate-dataset", str(text), str(output), *flags]
    first: tuple[float, int] | None = None  # time of the manifest, translated rows
    with subprocess.Popen(command) as process:  # noqa: S603
        while process.poll() is None:
            time.sleep(0.2)
            if not (output / "manifest.json").exists():
                continue
            with (output / "manifest.json").open("rb") as file:
                manifest, written_s = json.load(file), os.fstat(file.fileno()).st_mtime
            num_rows = manifest["rows"]["translated"]
            if len(manifest["blocks"]) < 2 * workers:
                continue
            first = first or (written_s, num_rows)
            if written_s - first[0] >= DATASET_S:
                process.terminate()
                process.wait()
                return (num_rows - first[1]) / (written_s - first[0]), written_s - first[0]
    raise RuntimeError(f"{command} exited with {process.returncode} before {DATASET_S:.0f} s")


def examples() -> dict[str, Any]:
    """Translate random pairs of tatoeba-test; return source, reference and translation by model."""
    found: dict[str, Any] = {}
    for model in MODELS:
        pairs, output = pairs_of(model, "tatoeba", limit=NUM_EXAMPLES), OUTPUT / "translations.txt"
        export(model, "evaluate", write_pairs("examples", pairs), "--output", str(output))
        texts = output.read_text("utf-8").splitlines()
        found[model] = [
            {"source": pair.source, "reference": pair.target, "translation": text}
            for pair, text in zip(pairs, texts, strict=True)
        ]
    return found


def robustness() -> dict[str, Any]:
    """Change sentences of two test sets; return the measures by model and change."""
    found: dict[str, Any] = {}
    for name in MODELS:
        cases = changed(mixed_pairs(name), limit=NUM_CHANGED, seed=SEED)
        with open_text_model([BUNDLED_MODELS / name / "1"], RuntimeSettings()) as (model, _):
            outcomes = measure_changes(model, cases, beam_size=4, batch_size=16)
        found[name] = {change: asdict(outcome) for change, outcome in outcomes.items()}
    return found


def integrity() -> dict[str, Any]:
    """Translate generated texts; return the counts by model and kind of text."""
    found: dict[str, Any] = {}
    number = r"([\d,]+)"
    for model in MODELS:
        printed = export(model, "evaluate", write_pairs("one", pairs_of(model, "tatoeba", limit=1)), "--integrity")
        line = rf"^(\w.*?) +{model} +{number} +{number} +[\d.]+% +{number} +{number} +{number}$"
        names = ("cases", "intact", "silent", "warnings", "searches")
        found[model] = {
            kind: dict(zip(names, (int(count.replace(",", "")) for count in counts), strict=True))
            for kind, *counts in re.findall(line, printed, re.MULTILINE)
        }
    return found


def spans() -> dict[str, Any]:
    """Translate the documentation; return the share of its protected spans by the means that preserved them."""
    found: dict[str, Any] = {}
    for name in MODELS:
        sentences = list(with_own_spans(pair.source for pair in pairs_of(name, "documentation")))
        with open_text_model([BUNDLED_MODELS / name / "1"], RuntimeSettings()) as (model, _):
            counts = count_spans(model, sentences, beam_size=4, batch_size=16)
        shares = [round(100 * counts[means] / counts["spans"], 2) for means in KEPT]
        found[name] = {"sentences": str(counts["sentences"]), "spans": str(counts["spans"])}
        found[name] |= zip(SPAN_KEYS, shares, strict=True)
    return found


def pairs_of(model: str, name: str, *, limit: int | None = None) -> list[Pair]:
    """Return the pairs of a test set in the direction of a model; with a limit a random sample of them."""
    pairs = list(read_pairs([DATA / TEST_SETS[name]], None))
    if limit is not None:
        pairs = Random(SEED).sample(pairs, limit)  # noqa: S311
    if model == "de-en":
        return [replace(pair, source=pair.target, target=pair.source) for pair in pairs]
    return pairs


def mixed_pairs(model: str) -> list[Pair]:
    """Return random everyday sentences and sentences of documentation, half of each, in random order."""
    pairs = [pair for name in ("tatoeba", "documentation") for pair in pairs_of(model, name, limit=NUM_MIXED)]
    return Random(SEED).sample(pairs, len(pairs))  # noqa: S311


def write_pairs(name: str, pairs: Sequence[Pair]) -> Path:
    """Write pairs as a file for the commands of the exporter."""
    path = OUTPUT / f"{name}.tsv"
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), "utf-8")
    return path


def export(model: str, command: str, data: Path, *flags: str) -> str:
    """Run a command of the exporter with a bundled model; return its output."""
    arguments = ("--bundle", str(BUNDLED_MODELS / model / "1"), "--data", str(data), *flags)
    run = [sys.executable, "-m", "dragoman_export", command, *arguments]
    return subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def complexity() -> dict[str, Any]:
    """Time layers of width 512 on one thread by length."""
    torch.set_num_threads(1)
    attention, size = MultiHeadAttention(WIDTH, 8).eval(), WIDTH
    recurrent, convolution = nn.LSTM(size, size, batch_first=True), nn.Conv1d(size, size, 3, padding=1)
    layers: Mapping[str, Callable[[torch.Tensor], object]] = {
        "self_attention": lambda states: attention(states, attention.project(states)),
        "recurrent": recurrent,
        "convolution": lambda states: convolution(states.transpose(1, 2)),
        "feed_forward": FeedForward(size, 4 * size),
    }
    found: dict[str, Any] = {}
    with torch.no_grad():
        for length in LENGTHS:
            states = torch.randn(1, length, size)
            found[str(length)] = {f"{name}_ms": 1000 * shortest_s(layer, states) for name, layer in layers.items()}
    plot_complexity(found)
    return found


def shortest_s(layer: Callable[[torch.Tensor], object], states: torch.Tensor) -> float:
    """Return the shortest of some runs of a layer, in seconds."""
    layer(states)
    return min(timeit.repeat(lambda: layer(states), number=1, repeat=7))


def plot_complexity(found: Mapping[str, Any]) -> None:
    """Draw the times of the layers by length."""
    figure, (axes,) = new_figure(size=(7, 4))
    for name in found[str(LENGTHS[0])]:
        label = name.removesuffix("_ms").replace("_", "-")
        axes.plot(LENGTHS, [found[str(length)][name] for length in LENGTHS], marker="o", label=label)
    axes.axvline(WIDTH, color="black", linestyle=":", linewidth=1, label="length = width")
    axes.set(xscale="log", yscale="log", xlabel="length, tokens", ylabel="ms on one thread")
    axes.legend()
    write_picture(CHECKOUT / "docs" / "guides" / "pictures" / "complexity.png", figure)


BENCH = "loadtests benchmarks bench --mode short"
LOAD = "loadtests benchmarks load --mode short"
COMMANDS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {  # arguments of `python -m`, and the reader of the output
    "engine": (BENCH, engine),
    "engine-avx2": (f"{BENCH} --instruction-set avx2", engine),
    "servers": (f"{LOAD} --loads 30,60,90 --repetitions 3", servers),
    "servers-avx2": (f"{LOAD} --loads 30,60,90 --instruction-set avx2", servers),
    "servers-neighbour": (f"{LOAD} --loads 30 --neighbour 0.5", servers),
    "servers-base": (f"{LOAD} --loads 30,60,90 --model base", servers),
    "overload": ("loadtests overload --mode short", overload),
    "soak": ("loadtests stress soak --mode short", scenario),
    "chaos": ("loadtests stress chaos --mode short", scenario),
    "bad-inputs": ("loadtests stress bad-inputs --mode short", scenario),
}
FUNCTIONS: Mapping[str, Callable[[], Any]] = {
    "memory": memory,
    "calls": calls,
    "signals": signals,
    "quality": quality,
    "datasets": datasets,
    "examples": examples,
    "robustness": robustness,
    "integrity": integrity,
    "spans": spans,
    "complexity": complexity,
}
OF_MODELS = ("quality", "examples", "robustness", "integrity", "spans")
SECTIONS = (*COMMANDS, *FUNCTIONS)


def measure(name: str) -> Any:
    """Measure a section; a failed check of a load test is a result, another failure raises RuntimeError."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]()
    (command, reader), directory = COMMANDS[name], OUTPUT / name
    arguments = [sys.executable, "-m", *command.split(), "--output", str(directory)]
    status = subprocess.run(arguments, cwd=CHECKOUT, check=False).returncode  # noqa: S603
    if status not in {0, 1}:
        raise RuntimeError(f"python -m {command} exited with {status}")
    return reader(directory)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the sections; write the file after each, in case a later one fails."""
    description = (__doc__ or "").format(sections=", ".join(SECTIONS), of_models=", ".join(OF_MODELS))
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="such as engine (all)")
    chosen = parser.parse_args(arguments).sections or [*SECTIONS]
    if unknown := [name for name in chosen if name not in SECTIONS]:
        parser.error(f"unknown section {unknown[0]!r}: expected one of {', '.join(SECTIONS)}")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(chosen, start=1):
        command = f"python -m {COMMANDS[name][0] if name in COMMANDS else f'docs.measure {name}'}"
        print(f"[{number}/{len(chosen)}] {command}", flush=True)
        described = {"command": command, "commit": commit(), **describe_machine()}
        known = read(FIGURES) if FIGURES.exists() else {}
        known[name] = {**described, "values": rounded(measure(name))}
        FIGURES.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


def commit() -> str:
    """Return the abbreviated commit of the checkout, with `+` if the code was changed since."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    name = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=True, text=True).stdout.strip()  # noqa: S603
    status = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *CODE], cwd=CHECKOUT, check=False).returncode  # noqa: S603, S607
    return f"{name}{'+' * status}"


def rounded(values: Any) -> Any:
    """Return nested figures with four significant digits."""
    if isinstance(values, Mapping):
        return {name: rounded(value) for name, value in values.items()}
    return float(f"{values:.4g}") if isinstance(values, float) else values


if __name__ == "__main__":
    sys.exit(main())
