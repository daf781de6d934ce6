"""`overhead`: the share of a step that is spent outside ONNX Runtime, on numpy and Python."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import onnxruntime

from loadtests.peers.cases import random_sources
from loadtests.peers.lines import line
from loadtests.peers.model_files import ModelFiles
from loadtests.peers.workspace import MODELS, prepare_model
from service.datatypes import SearchConfig, Segment
from service.decoding.running_batch import Engine
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.settings import RuntimeSettings

_NUM_STEPS: Final = 48
_NUM_WARM_UP_STEPS: Final = 2
_NUM_REPETITIONS: Final = 5


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser("overhead", help="measure what a decoder step costs outside ONNX Runtime")
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS, help="base, shipped (both)")
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="segments of a step (16)")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR", help="(build/bench)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    for model in arguments.models:
        files = prepare_model(arguments.output / "models" / model, model)
        shares = [measure_share(files, arguments.batch_size) for _ in range(_NUM_REPETITIONS)]
        fields = {"batch": arguments.batch_size, "model": model, "share": f"{median(shares):.3f}"}
        print(line("overhead", fields), flush=True)
    return 0


def measure_share(files: ModelFiles, batch_size: int) -> float:
    """Return the share, from 0 to 1, of the steps of a full batch that is not spent inside a run of the decoder.

    The engine has decoded such a batch before, as one that serves has: its buffers have their memory.
    """
    # One thread a run, as when every core has a batch of its own.
    settings = RuntimeSettings(device="cpu", precision="int8", num_lone_threads=1)
    model = OnnxStepModel(files.open(), settings)
    search = SearchConfig(min_target_tokens=_NUM_STEPS, max_target_tokens=_NUM_STEPS)
    vocabulary = model.limits.vocabulary
    sources = random_sources(batch_size, vocabulary_size=vocabulary.size, eos_id=vocabulary.eos_id)
    engine, segments = Engine(model), [Segment(source_ids=source_ids, search=search) for source_ids in sources]
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
