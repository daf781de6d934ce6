"""`server`: how much of the engine's throughput is left when callers come through gRPC, queue and text pipeline."""

import argparse
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from dragoman.client import TranslationClient
from dragoman.requests import DecodingOptions

from export.corpus.vocabulary import EOS_ID
from loadtests.peers.cases import fixed_length, random_sources
from loadtests.peers.lines import line
from loadtests.peers.model_files import ModelFiles
from loadtests.peers.sentences import DATA_VARIABLE, sentence_sets, whole_sentences
from loadtests.peers.systems import SearchOptions, SystemSettings
from loadtests.peers.text import TextPipeline
from loadtests.peers.workers import Task, Worker
from loadtests.peers.workspace import MODELS, made_up_word, prepare_model, served_models
from service.cli.server_process import ServerProcess
from service.text.pipeline import EXTRA_TARGET_TOKENS
from service.threads import num_cores

_ALPHA: Final = 0.6
_BATCH_SIZE: Final = 16
"""Of the server and of the engine alone."""
_NUM_SENTENCES: Final = 400
_NUM_MADE_UP_SENTENCES: Final = 96
_SOURCE_WORDS: Final = 23
_TARGET_TOKENS: Final = 32
_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the server and the engine alone translate."""

    model: str
    files: ModelFiles
    texts: Sequence[str]
    """One sentence each, so that both have the same sources."""

    search: SearchOptions
    options: DecodingOptions
    """What asks the server for the same search."""

    def offline_task(self) -> Task:
        """Return the work of the engine alone."""
        return Task(
            settings=SystemSettings(peer="dragoman", precision="int8", num_streams=num_cores(), batch_size=_BATCH_SIZE),
            sources=TextPipeline(self.files.open()).encode(self.texts),
            search=self.search,
        )

    def requests(self, size: int) -> list[Sequence[str]]:
        """Return the texts, so many a request."""
        return [self.texts[first : first + size] for first in range(0, len(self.texts), size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens, and how long they took."""

    num_target_tokens: int
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        """Target tokens a second."""
        return self.num_target_tokens / self.elapsed_s


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser("server", help="compare the throughput of the whole server with that of its engine")
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS, help="base, shipped (both)")
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="callers at the same time (8)")
    parser.add_argument("--texts", type=int, default=10, metavar="N", help="sentences of a request (10)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="of each measurement (5)")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"holds test sets ({DATA_VARIABLE})")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR", help="(build/bench)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure both in turn for each model and print; return the exit code."""
    for model in arguments.models:
        files = prepare_model(arguments.output / "models" / model, model)
        workload = _made_up(files) if model == "base" else _real(files, arguments.data)
        served, offline = _measure(workload, arguments)
        print(_line(model, served, offline, arguments), flush=True)
    return 0


def _made_up(files: ModelFiles) -> Workload:
    """Return sentences of made-up words; every target has the same length, whatever it says."""
    sources = random_sources(
        _NUM_MADE_UP_SENTENCES, vocabulary_size=files.open().manifest.architecture.vocabulary_size, eos_id=EOS_ID
    )
    return Workload(
        model="base",
        files=files,
        texts=[" ".join(map(made_up_word, source[:_SOURCE_WORDS])) for source in sources],
        search=fixed_length(_TARGET_TOKENS),
        options=DecodingOptions(
            min_target_tokens=_TARGET_TOKENS - 1,
            max_target_tokens=_TARGET_TOKENS,
            length_penalty=0.0,
            repetition_guard=False,
        ),
    )


def _real(files: ModelFiles, data: Path | None) -> Workload:
    """Return the sentences of a test set that the service decodes as they are."""
    return Workload(
        model="shipped",
        files=files,
        texts=whole_sentences(sentence_sets(data, size=_NUM_SENTENCES)[0].texts),
        search=SearchOptions(length_penalty=_ALPHA, extra_target_tokens=EXTRA_TARGET_TOKENS),
        options=DecodingOptions(length_penalty=_ALPHA),
    )


def _measure(workload: Workload, arguments: argparse.Namespace) -> tuple[list[Throughput], list[Throughput]]:
    """Return the throughput through the server and of the engine alone, measured in turn."""
    worker, served, offline = Worker(workload.files), list[Throughput](), list[Throughput]()
    task, requests = workload.offline_task(), workload.requests(arguments.texts)
    with ServerProcess("--models", str(served_models(workload.files))) as server:
        port = server.wait_until_ready(timeout_s=_TIMEOUT_S).grpc_port
        for _ in range(1 + arguments.repetitions):  # the first one warms up
            served.append(_ask(port, requests, workload.options, arguments.clients))
            result = worker.run(task)
            offline.append(Throughput(num_target_tokens=result.num_target_tokens, elapsed_s=result.elapsed_s))
        server.send(signal.SIGTERM)
        server.wait(timeout_s=_TIMEOUT_S)
    worker.close()
    return served[1:], offline[1:]


def _line(
    model: str, served: Sequence[Throughput], offline: Sequence[Throughput], arguments: argparse.Namespace
) -> str:
    through_server = median(throughput.tokens_per_s for throughput in served)
    alone = median(throughput.tokens_per_s for throughput in offline)
    fields = {
        "model": model,
        "share": f"{through_server / alone:.2f}",
        "tokens_per_s": f"{through_server:.0f}",
        "engine": f"{alone:.0f}",
        "clients": arguments.clients,
        "texts_per_request": arguments.texts,
        "threads": num_cores(),
        "tokens": f"{served[-1].num_target_tokens}/{offline[-1].num_target_tokens}",
    }
    return line("server", fields)


def _ask(port: int, requests: Sequence[Sequence[str]], options: DecodingOptions, num_clients: int) -> Throughput:
    """Send all requests, so many at a time, and wait for the last answer."""
    with (
        TranslationClient(f"127.0.0.1:{port}", timeout_s=_TIMEOUT_S) as client,
        ThreadPoolExecutor(num_clients) as pool,
    ):
        began_s = time.perf_counter()
        counts = list(pool.map(partial(_count_tokens, client, options), requests))
        return Throughput(num_target_tokens=sum(counts), elapsed_s=time.perf_counter() - began_s)


def _count_tokens(client: TranslationClient, options: DecodingOptions, texts: Sequence[str]) -> int:
    return client.translate(texts, source_language="en", target_language="de", options=options).num_target_tokens
