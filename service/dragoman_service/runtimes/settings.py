"""Runtime settings, and the choice of device and precision."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from dragoman_service.errors import ConfigError
from dragoman_service.toml import SettingsSection

LIBRARY_VARIABLE = "DRAGOMAN_NATIVE_LIBRARY"
"""Environment variable with a file to load instead of the installed native engine, such as a sanitizer build."""

Device = Literal["cpu", "cuda"]

_CUDA_PRECISIONS = ("fp16", "fp32")  # best first; the CUDA provider has no kernels for integer products


def _check_device(device: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device, re.ASCII) is None:
        raise PydanticCustomError(
            "device", "Input should be 'auto', 'cpu' or 'cuda', or 'cuda:N' for the GPU of index N"
        )
    return device


class RuntimeSettings(SettingsSection):
    """Settings of the runtimes."""

    device: Annotated[str, AfterValidator(_check_device)] = "auto"
    """Device that runs the network. `auto` uses the first GPU if the installed ONNX Runtime supports it and the bundle
    has a precision for it, otherwise the CPU; the choice and its reason are logged. `cuda` uses GPU 0 and `cuda:N` uses
    GPU N, counted from 0; the model fails to load if that GPU is not available."""

    engine: Literal["auto", "onnxruntime", "native"] = "auto"
    """Engine that runs encoder and decoder. `native` is the C++ engine of the `dragoman-native` distribution, for int8
    models on x86-64 and ARM (aarch64) CPUs; the model fails to load if the engine cannot run it. `onnxruntime` runs the
    ONNX graphs of the bundle. `auto` uses the native engine if it is installed, the CPU has one of its instruction
    sets, and the bundle describes its int8 weights; otherwise ONNX Runtime. The choice and its reason are logged."""

    instruction_set: Literal["auto", "amx", "avx512", "avxvnni", "avx512bw", "avx2", "i8mm", "dotprod", "neon"] = "auto"
    """CPU instructions of the native engine. On x86-64: AMX, AVX-512 with VNNI, AVX2 with VNNI, AVX-512 without VNNI,
    or AVX2. On ARM: NEON with products of byte matrices, NEON with dot products, or NEON. `auto` uses the fastest set
    in a self-test of 1 ms. All sets give the same translations; the model fails to load if the CPU does not have the
    set, or if the native engine is not used."""

    shortlist: bool = False
    """Restrict the target vocabulary of each segment to the tokens that the bundle's shortlist lists for its source.
    Decoding is faster, and a few translations differ. Requires the native engine and a bundle with a shortlist, which
    `dragoman export shortlist` adds; otherwise the model fails to load."""

    num_replicas: int = Field(default=1, ge=1, le=64)
    """Number of replicas of each model version. Each replica has its own worker process, queue and batches. On GPUs,
    each replica uses one GPU, with consecutive indices, and all of these GPUs must be available; on the CPU, replicas
    share the cores. Each request goes as a whole to the replica with the least outstanding decode cost."""

    precision: str | None = None
    """Precision of the graphs, such as `int8`. Unset: the bundle's default on the CPU; on a GPU, `fp16` if the bundle
    has it, otherwise `fp32`."""

    gpu_memory_limit_bytes: int | None = Field(default=None, ge=1)
    """Maximum GPU memory that each graph of a model can allocate: encoder, decoder, the attention graph if the bundle
    has one, and the graph that allocates keys and values. CUDA itself needs additional memory. Unset: no limit. CUDA
    only."""

    gpu_memory_budget_bytes: int | None = Field(default=None, ge=1)
    """GPU memory of a replica, including weights. The maximum number of segments in a batch is computed from it, see
    `scheduling.max_batch_segments`. Set it if several models share a GPU. Unset: the memory that is free when the model
    is loaded. CUDA only."""

    memory_limit_bytes: int | None = Field(default=None, ge=256 << 20)
    """Maximum memory that the worker process of a model can allocate (`RLIMIT_DATA` on Linux). A graph that needs more
    fails to load; a batch that needs more fails. Unset: no limit, because the required memory depends on model size,
    threads and batches, and requests fail below it. Recommended: 1.5 times `dragoman_worker_resident_memory_bytes`
    under load, plus 256 MiB. Only for isolation `process` on the CPU, because CUDA reserves much more memory than it
    uses."""

    use_tf32: bool = False
    """Round the inputs of fp32 products to a mantissa of 10 bits (TF32), which is faster on newer GPUs. CUDA only."""

    cuda_graphs: bool = False
    """Capture decoder steps as CUDA graphs, one for each step shape, so that a step is one launch. CUDA only. If ONNX
    Runtime cannot capture a step, or the results of a captured step differ from those of the same step run eagerly, all
    steps run eagerly and a warning is logged. Needs memory for caches of several lengths."""

    isolation: Literal["process", "none"] = "process"
    """Process that runs the networks. `process`: a worker process for each model version, so that decoding and request
    handling do not compete for Python's interpreter lock, and a crash of the runtime fails only the segments in its
    batches. `none`: the server process, which needs less memory."""

    num_intra_op_threads: int = Field(default=1, ge=1)
    """CPU threads of an encoder or decoder run. With several decoding threads, 1 gives the highest throughput; larger
    values reduce the latency of a single request."""

    num_low_latency_threads: int | None = Field(default=None, ge=1)
    """CPU threads of a decoder run while no other batch of the model runs. More threads reduce the latency of a single
    request; with ONNX Runtime, the weights of the decoder are then loaded twice. Unset: the number of cores of the
    process if the weights of the model exceed 16 MiB; smaller networks do not become faster."""

    @property
    def device_index(self) -> int:
        """Index of the GPU; with several replicas, index of the first one."""
        return int(self.device.partition(":")[2] or 0)

    def of_other_replicas(self, device: str, precision: str) -> list[Self]:
        """Return the settings of the second and later replicas, which use the following GPUs."""
        indices = range(self.device_index + 1, self.device_index + self.num_replicas)
        devices = [f"cuda:{index}" if device == "cuda" else device for index in indices]
        return [self.model_copy(update={"device": other, "precision": precision}) for other in devices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device and precision of a network."""

    device: Device
    precision: str
    reason: str  # for the log


def choose_placement(
    settings: RuntimeSettings,
    *,
    precisions: Collection[str],
    default_precision: str,
    convert_command: str,
    cuda_fault: Callable[[int], str | None],
) -> Placement:
    """Return the device and precision for a bundle; `auto` uses a GPU if one is available that can run the bundle.

    `convert_command` is the command that makes a bundle for GPUs, for an error message. `cuda_fault` returns the reason
    why the GPU of an index is not available, or None. Raises ConfigError if the settings require a GPU that is not
    available or cannot run the precision.
    """
    cpu_precision = settings.precision or default_precision
    if settings.device == "cpu":
        return Placement(device="cpu", precision=cpu_precision, reason="configured")
    allowed = precisions if settings.precision is None else (settings.precision,)
    runnable = [precision for precision in _CUDA_PRECISIONS if precision in allowed]
    if settings.device != "auto":
        _check_cuda_precision(settings, allowed, runnable, convert_command)
        if (fault := cuda_fault(settings.device_index)) is not None:
            raise ConfigError("runtime.device", settings.device, f"an available device; available: cpu ({fault})")
        return Placement(device="cuda", precision=runnable[0], reason="configured")
    if not runnable:
        return Placement(device="cpu", precision=cpu_precision, reason=f"a GPU cannot run {', '.join(sorted(allowed))}")
    if (fault := cuda_fault(settings.device_index)) is not None:
        return Placement(device="cpu", precision=cpu_precision, reason=fault)
    return Placement(device="cuda", precision=runnable[0], reason="GPU available")


def _check_cuda_precision(
    settings: RuntimeSettings, allowed: Collection[str], runnable: Sequence[str], convert_command: str
) -> None:
    if not runnable and settings.precision is not None:
        possible = " or ".join(_CUDA_PRECISIONS)
        raise ConfigError("runtime.precision", settings.precision, f"{possible} with runtime.device cuda")
    if not runnable:
        found = ", ".join(sorted(allowed))
        expected = f"cpu, as the bundle has only {found}; add fp16 to the bundle with: {convert_command}"
        raise ConfigError("runtime.device", settings.device, expected)
