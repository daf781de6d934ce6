"""`overhead`: the share of a step that is spent outside ONNX Runtime, on numpy and Python.

`server`: how much of the engine's throughput is left when callers come through gRPC, queue and text pipeline.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import onnxruntime
from dragoman.client import TranslationClient
from dragoman.requests import DecodingOptions

from export.corpus.vocabulary import EOS_ID
from loadtests.machine import num_cores
from loadtests.peers.cases import fixed_length, random_sources
from loadtests.peers.models import MODELS, made_up_word, prepare_model, served_models
from loadtests.peers.sentences import encode, sentence_sets, whole_sentences
from loadtests.peers.systems import ModelFiles, SearchOptions, SystemSettings
from loadtests.peers.workers import Task, Worker
from loadtests.report import figures_line
from loadtests.target import ServerProcess
from loadtests.texts import DATA_VARIABLE
from service.datatypes import SearchConfig, Segment
from service.decoding.running_batch import RunningBatch
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.settings import RuntimeSettings
from service.text.pipeline import EXTRA_TARGET_TOKENS

_NUM_STEPS: Final = 48
_NUM_WARM_UP_STEPS: Final = 2
_NUM_REPETITIONS: Final = 5
_ALPHA: Final = 0.6
_BATCH_SIZE: Final = 16
"""Of the server and of the engine alone."""
_NUM_SENTENCES: Final = 400
_NUM_MADE_UP_SENTENCES: Final = 96
_SOURCE_WORDS: Final = 23
_TARGET_TOKENS: Final = 32
_TIMEOUT_S: Final = 120.0


def add_parser(commands: Any) -> None:
    """Declare both commands and their flags."""
    parser = commands.add_parser("overhead", help="measure what a decoder step costs outside ONNX Runtime")
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="segments of a step (16)")
    parser.set_defaults(run=_run_overhead)
    _add_models(parser)
    parser = commands.add_parser("server", help="compare the throughput of the whole server with that of its engine")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="callers at the same time (8)")
    parser.add_argument("--texts", type=int, default=10, metavar="N", help="sentences of a request (10)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="of each measurement (5)")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"holds test sets ({DATA_VARIABLE})")
    parser.set_defaults(run=_run_server)
    _add_models(parser)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS, help="base, shipped (both)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR", help="(build/bench)")


def _run_overhead(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    for model in arguments.models:
        files = prepare_model(arguments.output / "models" / model, model)
        shares = [measure_share(files, arguments.batch_size) for _ in range(_NUM_REPETITIONS)]
        fields = {"batch": arguments.batch_size, "model": model, "share": f"{median(shares):.3f}"}
        print(figures_line("overhead", fields), flush=True)
    return 0


def measure_share(files: ModelFiles, batch_size: int) -> float:
    """Return the share, from 0 to 1, of the steps of a full batch that is not spent inside a run of the decoder.

    The engine has decoded such a batch before, as one that serves has: its buffers have their memory.
    """
    # One thread a run, as when every core has a batch of its own.
    settings = RuntimeSettings(device="cpu", precision="int8", num_low_latency_threads=1)
    model = OnnxStepModel(files.open(), settings)
    search = SearchConfig(min_target_tokens=_NUM_STEPS, max_target_tokens=_NUM_STEPS)
    vocabulary = model.limits.vocabulary
    sources = random_sources(batch_size, vocabulary_size=vocabulary.size, eos_id=vocabulary.eos_id)
    engine, segments = RunningBatch(model), [Segment(source_ids=source_ids, search=search) for source_ids in sources]
    engine.start(segments)
    while engine.num_segments:
        engine.step()
    engine.start(segments)
    for _ in range(_NUM_WARM_UP_STEPS):
        engine.step()
    with _timed_runs() as runs_s:
        began_s = time.perf_counter()
        while engine.num_segments:
            engine.step()
        steps_s = time.perf_counter() - began_s
    return 1 - sum(runs_s) / steps_s


@contextmanager
def _timed_runs() -> Iterator[list[float]]:
    """Yield the durations of the runs of every session meanwhile, in seconds."""
    runs_s: list[float] = []
    original = onnxruntime.InferenceSession.run_with_iobinding

    def timed(*arguments: Any, **options: Any) -> None:
        began_s = time.perf_counter()
        original(*arguments, **options)
        runs_s.append(time.perf_counter() - began_s)

    onnxruntime.InferenceSession.run_with_iobinding = timed
    try:
        yield runs_s
    finally:
        onnxruntime.InferenceSession.run_with_iobinding = original


def _run_server(arguments: argparse.Namespace) -> int:
    """Measure the server and the engine alone in turn, for each model, and print; return the exit code."""
    for model in arguments.models:
        files = prepare_model(arguments.output / "models" / model, model)
        served, alone, tokens = _measure(files, *_work(model, files, arguments.data), arguments)
        fields = {
            "model": model,
            "share": f"{median(served) / median(alone):.2f}",
            "tokens_per_s": f"{median(served):.0f}",
            "engine": f"{median(alone):.0f}",
            "clients": arguments.clients,
            "texts_per_request": arguments.texts,
            "threads": num_cores(),
            "tokens": tokens,
        }
        print(figures_line("server", fields), flush=True)
    return 0


def _work(model: str, files: ModelFiles, data: Path | None) -> tuple[list[str], SearchOptions, DecodingOptions]:
    """Return texts of one sentence each, the search of the engine alone, and what asks the server for the same."""
    if model == "shipped":
        texts = whole_sentences(sentence_sets(data, size=_NUM_SENTENCES)[0].texts)
        search = SearchOptions(length_penalty=_ALPHA, extra_target_tokens=EXTRA_TARGET_TOKENS)
        return texts, search, DecodingOptions(length_penalty=_ALPHA)
    size = files.open().manifest.architecture.vocabulary_size
    sources = random_sources(_NUM_MADE_UP_SENTENCES, vocabulary_size=size, eos_id=EOS_ID)
    options = DecodingOptions(  # so that every target has the same length, whatever it says
        min_target_tokens=_TARGET_TOKENS - 1,
        max_target_tokens=_TARGET_TOKENS,
        length_penalty=0.0,
        repetition_guard=False,
    )
    texts = [" ".join(map(made_up_word, source[:_SOURCE_WORDS])) for source in sources]
    return texts, fixed_length(_TARGET_TOKENS), options


def _measure(
    files: ModelFiles,
    texts: Sequence[str],
    search: SearchOptions,
    options: DecodingOptions,
    arguments: argparse.Namespace,
) -> tuple[list[float], list[float], str]:
    """Return tokens a second through the server and of the engine alone, and how many tokens both gave."""
    settings = SystemSettings(peer="dragoman", precision="int8", num_streams=num_cores(), batch_size=_BATCH_SIZE)
    task = Task(settings=settings, sources=encode(files.open(), texts), search=search)
    requests = [texts[first : first + arguments.texts] for first in range(0, len(texts), arguments.texts)]
    worker, served, alone, num_tokens = Worker(files), list[float](), list[float](), ""
    with ServerProcess(arguments.output / "server.log", "--models", str(served_models(files).resolve())) as server:
        server.wait_until_ready(timeout_s=_TIMEOUT_S)
        for _ in range(1 + arguments.repetitions):  # the first one warms up
            began_s = time.perf_counter()
            num_served = _ask(server.target, requests, options, arguments.clients)
            served.append(num_served / (time.perf_counter() - began_s))
            result = worker.run(task)
            alone.append(result.num_target_tokens / result.elapsed_s)
            num_tokens = f"{num_served}/{result.num_target_tokens}"
        server.stop()
    worker.close()
    return served[1:], alone[1:], num_tokens


def _ask(target: str, requests: Sequence[Sequence[str]], options: DecodingOptions, num_clients: int) -> int:
    """Send all requests, so many at a time; return the target tokens of the answers."""
    with TranslationClient(target, timeout_s=_TIMEOUT_S) as client, ThreadPoolExecutor(num_clients) as pool:
        ask = partial(client.translate, source_language="en", target_language="de", options=options)
        return sum(result.num_target_tokens for result in pool.map(ask, requests))
