"""The settings of the ONNX Runtime edge, and the device and precision that they, machine and bundle amount to."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dragoman_service.errors import ConfigError

Device = Literal["cpu", "cuda"]

_CUDA_PRECISIONS = ("fp16", "fp32")
"""Precisions that a GPU can run, best first; ONNX Runtime multiplies integers on the CPU only."""


def _check_device(device: str) -> str:
    """Refuse what is no device, in the words in which pydantic refuses a literal."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device, re.ASCII) is None:
        raise PydanticCustomError(
            "device", "Input should be 'auto', 'cpu' or 'cuda', or 'cuda:N' for the GPU of index N"
        )
    return device


class RuntimeSettings(BaseModel):
    """How networks are run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    device: Annotated[str, AfterValidator(_check_device)] = "auto"
    """Device that runs the network. `auto`: the first GPU if this ONNX Runtime can use it and the bundle has a
    precision for it, else the CPU; the log says which and why. `cuda`, or `cuda:N` for the GPU of index N, counted from
    0, never falls back."""

    engine: Literal["auto", "onnxruntime", "native"] = "auto"
    """What encodes and takes the decoder steps. `native`: the C++ library of `dragoman-native`, for
    int8 models on x86-64 CPUs; the start fails with the reason if that is not possible. `onnxruntime`: the
    graphs. `auto`: the library where it is installed, the CPU has the instructions (AVX-512 VNNI or AVX-VNNI) and the
    bundle describes its int8 weights, else the graphs; the log says which and why."""

    shortlist: bool = False
    """Choose each segment's target tokens among those that the bundle's shortlist calls likely for its source, not
    among all: faster, and a few translations differ. Only with the native engine, and with bundles that have a
    shortlist (`export shortlist` adds one); the load of others fails with the reason."""

    num_replicas: int = Field(default=1, ge=1, le=64)
    """Number of replicas of each model version. Each replica has a worker process, a queue and batches of its own. On
    GPUs, replicas use one GPU each, with consecutive indices, and all of these must work; on the CPU, they share the
    cores. Each request goes as a whole to the replica with the least outstanding decode cost."""

    precision: str | None = None
    """Precision of the graphs, such as int8. Unset: on the CPU the bundle's default, on a GPU fp16 or else fp32."""

    gpu_memory_limit_bytes: int | None = Field(default=None, ge=1)
    """GPU memory that each graph of a model may allocate at most: encoder, decoder, the attention graph if the bundle
    has one, and the graph that allocates keys and values; memory of CUDA itself comes on top. Unset: all there is; cuda
    only."""

    gpu_memory_budget_bytes: int | None = Field(default=None, ge=1)
    """GPU memory of a replica, including weights, from which the maximum number of segments in a batch is computed, see
    `scheduling.max_batch_segments`. Unset: all that is free when the model is loaded; to be set where several models
    share a GPU; cuda only."""

    memory_limit_bytes: int | None = Field(default=None, ge=256 << 20)
    """Maximum memory that the worker process of a model can allocate (RLIMIT_DATA of Linux): a graph that asks for
    more fails to load, and a batch that does gets an error. Unset: all there is, as what a model needs depends on its
    size, threads and batches, and a limit below that fails requests. A good one is half as much again as
    `dragoman_worker_resident_memory_bytes` under load, and 256 MiB. Isolation `process` on the CPU only: CUDA
    reserves much more than it uses."""

    use_tf32: bool = False
    """Round the inputs of fp32 products to 10 bits of mantissa, which newer GPUs multiply faster; cuda only."""

    cuda_graphs: bool = False
    """Capture decoder steps as CUDA graphs, one for each size of step, so that a step is one launch; cuda only. Off, as
    no GPU has measured it yet. Where ONNX Runtime cannot capture a step, or a captured one gives something else than
    the same step run as usual, all are run as usual, with a warning in the log. Takes memory for caches of several
    lengths."""

    isolation: Literal["process", "none"] = "process"
    """Where networks run. `process`: in a worker process for each version of a model, so that decoding and calls do
    not compete for Python's interpreter lock, and a crash of the runtime costs the segments in its batches but not the
    server. `none`: in the server's own process, which takes less memory."""

    num_intra_op_threads: int = Field(default=1, ge=1)
    """CPU threads of an encoder or decoder run. With several decoding threads, 1 gives the most tokens a second; more
    reduce the latency of a single request."""

    num_low_latency_threads: int | None = Field(default=None, ge=1)
    """CPU threads of a decoder run while no other batch of the model runs: reduces the latency of a single request, and
    takes memory for the decoder's weights a second time. Unset: one for each core of the process if the weights of the
    model exceed 16 MiB; smaller networks do not gain from it."""

    @property
    def device_index(self) -> int:
        """Index of the GPU, the first one of several, if a GPU is used."""
        return int(self.device.partition(":")[2] or 0)

    def of_other_replicas(self, device: str, precision: str) -> list[Self]:
        """Return the settings of the replicas after the first: the same, each on the next GPU."""
        indices = range(self.device_index + 1, self.device_index + self.num_replicas)
        devices = [f"cuda:{index}" if device == "cuda" else device for index in indices]
        return [self.model_copy(update={"device": other, "precision": precision}) for other in devices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device and precision of a network."""

    device: Device
    precision: str
    reason: str
    """Why, for the log."""


def choose_placement(
    settings: RuntimeSettings,
    *,
    precisions: Collection[str],
    default_precision: str,
    cuda_fault: Callable[[int], str | None],
) -> Placement:
    """Return device and precision of a bundle; `auto` takes a GPU if there is one that can run the bundle.

    The default precision is taken on the CPU if no other is asked for. `cuda_fault` returns why the GPU of an index
    cannot be used, None if it can.

    Raises:
        ConfigError: if `cuda` is asked for and does not work here or cannot run the precision.
    """
    on_cpu = settings.precision or default_precision
    if settings.device == "cpu":
        return Placement(device="cpu", precision=on_cpu, reason="asked for")
    wanted = precisions if settings.precision is None else (settings.precision,)
    runnable = [precision for precision in _CUDA_PRECISIONS if precision in wanted]
    if settings.device != "auto":
        _check_cuda(settings, wanted, runnable, cuda_fault(settings.device_index))
        return Placement(device="cuda", precision=runnable[0], reason="asked for")
    if not runnable:
        return Placement(device="cpu", precision=on_cpu, reason=f"a GPU cannot run {', '.join(sorted(wanted))}")
    if (fault := cuda_fault(settings.device_index)) is not None:
        return Placement(device="cpu", precision=on_cpu, reason=fault)
    return Placement(device="cuda", precision=runnable[0], reason="a GPU that works")


def _check_cuda(settings: RuntimeSettings, wanted: Collection[str], runnable: Sequence[str], fault: str | None) -> None:
    """Raise ConfigError unless a GPU was found that can run one of the precisions wanted."""
    if fault is not None:
        raise ConfigError("runtime.device", settings.device, f"a device that works here; available: cpu ({fault})")
    if not runnable and settings.precision is not None:
        possible = " or ".join(_CUDA_PRECISIONS)
        raise ConfigError("runtime.precision", settings.precision, f"{possible} with runtime.device cuda")
    if not runnable:
        raise ConfigError("runtime.device", settings.device, f"cpu, as the bundle has only {', '.join(sorted(wanted))}")
