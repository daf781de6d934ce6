"""Speed of the native engine in one thread, relative to the limits of the CPU, and instruction sets of CTranslate2."""

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dragoman_service.bundle.int8_weights import decoder_products
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.library import NativeNetwork
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from loadtests.benchmarks.interface import ISA_VARIABLE, ModelFiles

_BEAM_SIZE: Final = 4
_BATCH_ROWS: Final = 16 * _BEAM_SIZE
_NUM_STEPS: Final = 32
_SOURCE_TOKENS: Final = 24
_READ_BYTES: Final = 256 << 20  # more than most caches
_LOAD_CTRANSLATE2: Final = "import sys, ctranslate2; ctranslate2.Translator(sys.argv[1])"


def engine_speed(files: ModelFiles, *, isa: str) -> dict[str, Any] | None:
    """Measure the native engine on a model; return a JSON-ready record, or None if the engine cannot be used.

    Args:
        files: the model, which CTranslate2 loads as well.
        isa: limits both systems to this instruction set, such as AVX2; empty: no limit.
    """
    settings = RuntimeSettings(device="cpu", precision="int8", instruction_set="avx2" if isa else "auto")
    model = open_step_model(files.open(), settings.model_copy(update={"num_low_latency_threads": 1}))
    if not isinstance(model, NativeStepModel):
        return None
    network = model.network
    num_macs = sum(math.prod(shape) for shape in decoder_products(network.architecture).values())  # of a row
    peak = _measured(network, "peak_macs_per_ns", network.instruction_set.encode())
    products = _BATCH_ROWS * num_macs / _measured(network, "model_products_ns", network.handle, _BATCH_ROWS)
    lone_step_s = _lone_step_s(model, eos_id=model.limits.vocabulary.eos_id)
    return {
        "instruction_set": network.instruction_set,
        "ctranslate2": _ctranslate2_sets(files, isa),
        "peak_gmacs_per_s": peak,  # of 7-bit activations, with all data in the L1 cache
        "products_gmacs_per_s": products,  # of the products of a step of 16 segments
        "share_of_peak": products / peak,
        "lone_step_us": lone_step_s * 1e6,
        "lone_gb_per_s": num_macs / lone_step_s / 1e9,  # each weight is a byte
        "read_gb_per_s": _read_gb_per_s(),  # of memory
    }


def sets_in_log(log: str) -> str | None:
    """Return the instruction set and the library of int8 products in CTranslate2's log, such as `AVX2, MKL`."""
    found = [re.search(pattern, log) for pattern in (r"Selected ISA: (\w+)", r"GEMM_S8 backend: (\w+)")]
    return ", ".join(match[1] for match in found if match) or None


def _measured(network: NativeNetwork, name: str, *arguments: Any) -> float:
    value = float(network.library.function(name)(*arguments))
    if value < 0:
        raise network.library.error()
    return value


def _lone_step_s(model: NativeStepModel, *, eos_id: int) -> float:
    batch = model.new_batch()
    batch.start(model.encode([[eos_id] * _SOURCE_TOKENS]))
    token_ids, parents = np.full((1, _BEAM_SIZE), eos_id), np.arange(_BEAM_SIZE)[None]
    return _shortest_s(_NUM_STEPS, lambda: batch.step(token_ids, parents, num_candidates=2 * _BEAM_SIZE))


def _read_gb_per_s() -> float:
    memory = np.ones(_READ_BYTES // 8, np.int64)
    return memory.nbytes / _shortest_s(5, lambda: np.bitwise_or.reduce(memory)) / 1e9


def _shortest_s(num_repetitions: int, call: Callable[[], object]) -> float:
    def elapsed_s() -> float:
        began_s = time.thread_time()  # CPU time, because other processes can interrupt a call
        call()
        return time.thread_time() - began_s

    return min(elapsed_s() for _ in range(num_repetitions))


def _ctranslate2_sets(files: ModelFiles, isa: str) -> str | None:
    environment = {**os.environ, "CT2_VERBOSE": "1", **({ISA_VARIABLE: isa} if isa else {})}
    command = [sys.executable, "-c", _LOAD_CTRANSLATE2, str(files.ctranslate2_path)]
    log = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr  # noqa: S603
    return sets_in_log(log)
