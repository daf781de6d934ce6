"""What is lost of the speed of the decoder on the way to a caller.

`overhead`: the share of a step that is spent outside ONNX Runtime or the C++ library, on numpy and Python.
`server`: how much of the engine's throughput is left when callers come through gRPC, queue and text pipeline.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal
from unittest.mock import patch

from onnxruntime import InferenceSession

from dragoman.client import TranslationClient
from dragoman.client.request import DecodingOptions
from dragoman_export.data.vocabulary import EOS_ID
from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.runtimes.native.library import Library
from dragoman_service.runtimes.native.step_model import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from loadtests.machine import num_cores
from loadtests.peers import work
from loadtests.peers.models import BASE_VOCABULARY_SIZE, made_up_word, prepare_model
from loadtests.peers.systems import ModelFiles, SearchOptions, SystemSettings, Work, Workers
from loadtests.report import figures_line
from loadtests.target import ServerProcess

_NUM_STEPS: Final = 48
_NUM_WARM_UP_STEPS: Final = 2
_NUM_REPETITIONS: Final = 5
_BATCH_SIZE: Final = 16  # of the server and of the engine alone
_NUM_SENTENCES: Final = 400
_NUM_MADE_UP_SENTENCES: Final = 96
_TIMEOUT_S: Final = 120.0


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare both commands and their flags."""
    overhead = add_command("overhead", help="measure what a decoder step costs outside ONNX Runtime or C++")
    overhead.add_argument("--batch-size", type=int, default=16, metavar="B", help="segments of a step (16)")
    server = add_command("server", help="compare the throughput of the whole server with that of its engine")
    server.add_argument("--clients", type=int, default=8, metavar="N", help="callers at the same time (8)")
    server.add_argument("--texts", type=int, default=10, metavar="N", help="sentences of a request (10)")
    server.add_argument("--repetitions", type=int, default=5, metavar="N", help="of each measurement (5)")
    for parser, run in ((overhead, _run_overhead), (server, _run_server)):
        work.add_files(parser, "build/bench", has_models=True, has_data=parser is server)
        parser.set_defaults(run=run)


def _run_overhead(arguments: argparse.Namespace) -> int:
    for model in arguments.models:
        files = prepare_model(arguments.output / "models" / model, model)
        for engine in ("native", "onnxruntime"):
            shares = [measure_share(files, arguments.batch_size, engine) for _ in range(_NUM_REPETITIONS)]
            fields = {"batch": arguments.batch_size, "model": model, "engine": engine, "share": f"{median(shares):.3f}"}
            print(figures_line("overhead", fields), flush=True)
    return 0


def measure_share(files: ModelFiles, batch_size: int, engine: Literal["native", "onnxruntime"]) -> float:
    """Return the share, from 0 to 1, of the steps of a full batch that is not spent inside a run of the decoder."""
    runs_s = list[float]()

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began_s = time.perf_counter()
            result = run(*arguments, **options)
            runs_s.append(time.perf_counter() - began_s)
            return result

        return call

    def function(library: Library, name: str) -> Callable[..., Any]:
        found = find(library, name)
        return timed(found) if name in ("batch_step", "batch_search") else found

    def timed_run(session: InferenceSession, binding: Any) -> None:
        timed(run)(session, binding)

    find, run = Library.function, InferenceSession.run_with_iobinding
    # One thread a run, as when every core has a batch of its own.
    settings = RuntimeSettings(device="cpu", precision="int8", engine=engine, num_low_latency_threads=1)
    with patch.object(Library, "function", function):
        model = open_step_model(files.open(), settings)
        decoding = started_batch(model, batch_size, num_steps=_NUM_STEPS)
    for _ in range(_NUM_WARM_UP_STEPS):
        decoding.step()
    runs_s.clear()
    with patch.object(InferenceSession, "run_with_iobinding", timed_run):
        began_s = time.perf_counter()
        while decoding.num_segments:
            decoding.step()
        return 1 - sum(runs_s) / (time.perf_counter() - began_s)


def started_batch(model: StepModel, num_segments: int, *, num_steps: int) -> RunningBatch:
    """Return a batch of random sources that will take so many steps.

    It has decoded them before, as one that serves has: its buffers have their memory.
    """
    batch, vocabulary = RunningBatch(model), model.limits.vocabulary
    search = SearchConfig(min_target_tokens=num_steps, max_target_tokens=num_steps)
    sources = work.random_sources(num_segments, vocabulary_size=vocabulary.size, eos_id=vocabulary.eos_id)
    segments = [Segment(source_ids=source_ids, search=search) for source_ids in sources]
    batch.start(segments)
    while batch.num_segments:
        batch.step()
    batch.start(segments)
    return batch


def _run_server(arguments: argparse.Namespace) -> int:
    """Measure the server and the engine alone in turn, for each model, and print; return the exit code."""
    for model in arguments.models:
        files = prepare_model(arguments.output / "models" / model, model)
        texts, search, options = _asked(model, arguments.data)
        asked = Work(sources=work.encode(files.open(), texts), search=search)
        settings = SystemSettings(peer="dragoman", precision="int8", num_streams=num_cores(), batch_size=_BATCH_SIZE)
        requests = [texts[first : first + arguments.texts] for first in range(0, len(texts), arguments.texts)]
        served, alone = list[float](), list[float]()
        with (
            ServerProcess(arguments.output / "server.log", "--models", str(files.served_path)) as server,
            Workers(files) as workers,
            ThreadPoolExecutor(arguments.clients) as threads,
        ):
            server.wait_until_ready(timeout_s=_TIMEOUT_S)
            with TranslationClient(server.target, timeout_s=_TIMEOUT_S) as client:
                ask = partial(client.translate, source_language="en", target_language="de", options=options)
                for _ in range(1 + arguments.repetitions):  # the first one warms up
                    began_s = time.perf_counter()
                    num_served = sum(result.num_target_tokens for result in threads.map(ask, requests))
                    served.append(num_served / (time.perf_counter() - began_s))
                    done = workers.run(settings, asked)
                    alone.append(done.num_target_tokens / done.elapsed_s)
            server.stop()
        through, engine = median(served[1:]), median(alone[1:])
        speeds = {"share": f"{through / engine:.2f}", "tokens_per_s": f"{through:.0f}", "engine": f"{engine:.0f}"}
        callers = {"clients": arguments.clients, "texts_per_request": arguments.texts, "threads": num_cores()}
        tokens = f"{num_served}/{done.num_target_tokens}"
        print(figures_line("server", {"model": model, **speeds, **callers, "tokens": tokens}), flush=True)
    return 0


def _asked(model: str, data: Path | None) -> tuple[list[str], SearchOptions, DecodingOptions]:
    """Return texts of one sentence each, the search of the engine alone, and what asks the server for the same."""
    if model == "shipped":
        texts = work.whole_sentences(work.sentence_sets(data, size=_NUM_SENTENCES)[0][1])
        return texts, work.USUAL, DecodingOptions(length_penalty=work.USUAL.length_penalty)
    sources = work.random_sources(_NUM_MADE_UP_SENTENCES, vocabulary_size=BASE_VOCABULARY_SIZE, eos_id=EOS_ID)
    texts, length = [" ".join(map(made_up_word, source[:-1])) for source in sources], work.TARGET_TOKENS
    options = DecodingOptions(min_target_tokens=length - 1, max_target_tokens=length)  # whatever they say
    return texts, work.fixed_length(length), replace(options, length_penalty=0.0, repetition_guard=False)
