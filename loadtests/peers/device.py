"""What the engine gives on a device: `parity` with 32-bit floats on the CPU, and `floor`, the least time of a step."""

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Final

import torch

from dragoman_service.bundle.architecture import Architecture
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.runtimes.native.step_model import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from loadtests.flags import within
from loadtests.machine import num_cores
from loadtests.peers import work
from loadtests.peers.models import prepare_model
from loadtests.peers.shares import started_batch
from loadtests.peers.systems import (
    GPU_PRECISIONS,
    Device,
    ModelFiles,
    Output,
    Precision,
    SystemSettings,
    add_gpu,
    open_system,
)
from loadtests.report import figures_line

_BATCH_SIZE: Final = 64
_NUM_ALONE: Final = 50  # sentences that are decoded alone, too
_NUM_STEPS: Final = 32
_NUM_WARM_UP_STEPS: Final = 2
_NUM_COPIES: Final = 12
_COPIED_BYTES: Final[dict[Device, int]] = {"cuda": 1 << 30, "cpu": 1 << 28}  # far more than caches hold
_ITEM_BYTES: Final = {"fp16": 2, "fp32": 4}


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare both commands and their flags."""
    parity = add_command("parity", help="compare what is said in fp16 on a device with fp32 on the CPU")
    parity.add_argument("--sentences", type=within(1, 100_000, int), default=1000, metavar="N", help="at most (1000)")
    floor = add_command("floor", help="compare the time of a step with that of reading its weights and caches once")
    sizes = "segments of a step (1,8,32,64,128)"
    read = lambda text: [within(1, 1024, int)(size) for size in text.split(",")]  # noqa: E731
    floor.add_argument("--batch-sizes", type=read, default=[1, 8, 32, 64, 128], metavar="B,B", help=sizes)
    for parser, model, run in ((parity, "shipped", _run_parity), (floor, "base", _run_floor)):
        work.add_files(parser, f"build/{parser.prog.split()[-1]}", has_data=parser is parity)
        add_gpu(parser)
        parser.set_defaults(run=partial(run, model), gpu="cuda")


def _files(model: str, arguments: argparse.Namespace) -> ModelFiles:
    files: ModelFiles | None = arguments.files
    return files or prepare_model(arguments.output / "models" / model, model, gpu=arguments.gpu)


def _run_parity(model: str, arguments: argparse.Namespace) -> int:
    """Translate the first test set on both, some sentences also alone, and print; return the exit code."""
    files, gpu = _files(model, arguments), arguments.gpu
    name, texts, references = work.sentence_sets(arguments.data, size=arguments.sentences)[0]
    bundle = files.open()
    sources, decode, search = work.encode(bundle, texts), open_tokenizer(bundle).decode, work.USUAL
    exact = open_system(files, SystemSettings(peer="dragoman", precision="fp32", num_threads=num_cores()))
    expected = exact.translate(sources, search, batch_size=_BATCH_SIZE)
    few = work.sample(range(len(sources)), _NUM_ALONE)

    def bleu(outputs: Sequence[Output]) -> float | None:
        return work.bleu([decode(output.token_ids) for output in outputs], references) if references else None

    precisions: Sequence[Precision] = ("fp16", "fp32") if gpu == "cuda" else ("fp16",)
    for precision in precisions:  # TF32 stays off, as it is unless a server is told
        own = SystemSettings(peer="dragoman", precision=precision, device=gpu, num_threads=num_cores())
        tested = open_system(files, own)
        found = tested.translate(sources, search, batch_size=_BATCH_SIZE)
        alone = [tested.translate([sources[index]], search, batch_size=1)[0] for index in few]
        scores = {"bleu": bleu(found), "bleu_fp32": bleu(expected)}
        equal = work.share_of_equal(*([output.token_ids for output in outputs] for outputs in (found, expected)))
        same_bits = sum(one == found[index] for one, index in zip(alone, few, strict=True))
        told = {"device": gpu, "set": name, "sentences": len(sources), "equal_hypotheses": f"{equal:.4f}"}
        told |= {key: f"{value:.2f}" for key, value in scores.items() if value is not None}
        told |= {"same_bits_alone_and_in_company": f"{same_bits}/{len(few)}", "precision": precision}
        print(figures_line("parity", told), flush=True)
    return 0


def _run_floor(model: str, arguments: argparse.Namespace) -> int:
    """Measure the bandwidth of the device and the time of a step, and print; return the exit code."""
    gpu: Device = arguments.gpu
    precision, bundle = GPU_PRECISIONS[gpu], _files(model, arguments).open()
    settings = RuntimeSettings(device=gpu, precision=precision)
    bytes_per_s = copy_bandwidth(gpu, _COPIED_BYTES[gpu])
    told = {"device": gpu, "precision": precision, "copied_gb": f"{_COPIED_BYTES[gpu] / 1e9:.2f}"}
    print(figures_line("bandwidth", {**told, "gb_per_s": f"{bytes_per_s / 1e9:.1f}"}), flush=True)
    for captures in (False, True) if gpu == "cuda" else (False,):
        decoder = open_step_model(bundle, settings.model_copy(update={"cuda_graphs": str(captures)}))
        for size in arguments.batch_sizes:
            step_s, of_two_s = step_time_s(decoder, size), step_time_of_two_s(decoder, size)
            weights, caches = step_bytes(bundle.manifest.architecture, size, item_bytes=_ITEM_BYTES[precision])
            floor_s = (weights + caches) / bytes_per_s
            times = {
                "step_ms": f"{1000 * step_s:.3f}",
                "floor_ms": f"{1000 * floor_s:.3f}",
                "share": f"{floor_s / step_s:.3f}",
                "step_of_two_batches_ms": f"{1000 * of_two_s:.3f}",
            }
            sizes = {"weights_mb": f"{weights / 1e6:.1f}", "caches_mb": f"{caches / 1e6:.1f}"}
            told = {"device": gpu, "batch": size, **times, **sizes, "cuda_graphs": str(captures)}
            print(figures_line("floor", told), flush=True)
    return 0


def copy_bandwidth(device: Device, num_bytes: int) -> float:
    """Return the bytes that a device reads and writes in a second, in the fastest of some copies of so many bytes."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target, elapsed_s = torch.empty_like(source), list[float]()
    for _ in range(_NUM_COPIES):
        began_s = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed_s.append(time.perf_counter() - began_s)
    return 2 * num_bytes / min(elapsed_s)


def step_bytes(
    network: Architecture,
    num_segments: int,
    *,
    item_bytes: int,
    beam_size: int = 4,
    source_tokens: int = work.SOURCE_TOKENS,
    target_tokens: float = _NUM_STEPS / 2,
) -> tuple[int, int]:
    """Return the bytes of weights and of caches that a decoder step must read at least.

    Of each layer these are the projections of self-attention (4 d^2), query and output of cross-attention (2 d^2; its
    keys and values were made at the start) and both products of the feed-forward block (2 d f); then the projection to
    the vocabulary (V d). Each hypothesis reads keys and values of its own target tokens, a segment's hypotheses those
    of the source together.
    """
    width, layers = network.d_model, network.num_decoder_layers
    weights = layers * (6 * width**2 + 2 * width * network.ffn_size) + network.vocabulary_size * width
    cached_tokens = num_segments * (source_tokens + beam_size * target_tokens)
    return item_bytes * weights, int(item_bytes * 2 * layers * width * cached_tokens)


def step_time_s(model: StepModel, num_segments: int) -> float:
    """Return the median time of a step of so many segments, without the first ones."""
    batch, times_s = started_batch(model, num_segments, num_steps=_NUM_STEPS), list[float]()
    while batch.num_segments:
        began_s = time.perf_counter()
        batch.step()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s[_NUM_WARM_UP_STEPS:])


def step_time_of_two_s(model: StepModel, num_segments: int) -> float:
    """Return the time in which one step of two batches ends, each of so many segments and in a thread of its own."""
    began = threading.Barrier(2)

    def decode(_: int) -> tuple[float, float, int]:
        batch, num_steps = started_batch(model, num_segments, num_steps=_NUM_STEPS), 0
        began.wait()
        began_s = time.perf_counter()
        while batch.num_segments:
            batch.step()
            num_steps += 1
        return began_s, time.perf_counter(), num_steps

    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(decode, range(2)))
    elapsed_s = max(ended_s for _, ended_s, _ in done) - min(began_s for began_s, _, _ in done)
    return elapsed_s / sum(num_steps for _, _, num_steps in done)
