"""ONNX Runtime sessions: which provider, how many threads, and whether a graph is what the manifest says."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnxruntime
from numpy.typing import NDArray

from service.bundle import Bundle, GraphTensors
from service.errors import BundleError, ConfigError
from service.runtime.settings import RuntimeSettings

Provider = Literal["cpu", "cuda"]

_PROVIDER_NAMES: dict[Provider, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

_CPU_PRECISIONS = frozenset({"int8"})
"""ONNX Runtime multiplies integers so only on the CPU."""

_ELEMENT_TYPES = {
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
}
"""How ONNX Runtime spells the element types that numpy and the manifest spell otherwise."""

_LOG_ERRORS = 3
"""ONNX Runtime's severity from which on it writes to standard error."""

_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The two loaded graphs of a model; may be run from several threads at once."""

    encoder: onnxruntime.InferenceSession
    decoder: onnxruntime.InferenceSession

    to_device: Callable[[NDArray[Any]], onnxruntime.OrtValue]
    """Makes an array something a session can be bound to."""

    shares_memory: bool
    """What `to_device` returns is the array's own memory, not a copy on another device."""


def open_sessions(bundle: Bundle, settings: RuntimeSettings) -> Sessions:
    """Load both graphs of a bundle at the precision and on the provider that the settings ask for.

    Raises:
        BundleError: if the bundle lacks the precision, or a graph is damaged or has other tensors than its manifest.
        ConfigError: if the provider is not available, or cannot run the precision.
    """
    precision = settings.precision or bundle.manifest.default_precision
    provider = choose_provider(settings, precision, available=onnxruntime.get_available_providers())
    if provider == "cuda":
        onnxruntime.preload_dlls()  # of the CUDA packages installed beside it
    encoder_path, decoder_path = bundle.graph_paths(precision)
    tensors = bundle.manifest.tensors
    return Sessions(
        encoder=_open_session(encoder_path, tensors.encoder, provider, settings),
        decoder=_open_session(decoder_path, tensors.decoder, provider, settings),
        to_device=partial(
            onnxruntime.OrtValue.ortvalue_from_numpy,
            device_type=provider,
            device_id=settings.device_index if provider == "cuda" else 0,
        ),
        shares_memory=provider == "cpu",
    )


def choose_provider(settings: RuntimeSettings, precision: str, *, available: Sequence[str]) -> Provider:
    """Return what runs the network.

    Args:
        settings: what is asked for; `auto` takes a GPU only if it can run the precision.
        precision: of the graphs.
        available: ONNX Runtime's names of what it was built with.

    Raises:
        ConfigError: if `cuda` is asked for and is not available or cannot run the precision.
    """
    has_cuda = _PROVIDER_NAMES["cuda"] in available
    if settings.provider == "auto":
        return "cuda" if has_cuda and precision not in _CPU_PRECISIONS else "cpu"
    if settings.provider == "cuda" and not has_cuda:
        raise ConfigError("provider", "cuda", f"one that this ONNX Runtime has: {', '.join(available)}")
    if settings.provider == "cuda" and precision in _CPU_PRECISIONS:
        raise ConfigError("precision", precision, "fp32 with provider cuda")
    return settings.provider


def session_options(settings: RuntimeSettings) -> onnxruntime.SessionOptions:
    """Return the options every session is opened with."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.num_intra_op_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_ERRORS
    # Shapes change from step to step: a memory plan for each combination met would never stop growing.
    options.enable_mem_pattern = False
    # Idle threads of one session would take the cores of the other decoding threads.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not _multiplies_u8s8_exactly():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def _open_session(
    path: Path, tensors: GraphTensors, provider: Provider, settings: RuntimeSettings
) -> onnxruntime.InferenceSession:
    cuda = (_PROVIDER_NAMES["cuda"], {"device_id": settings.device_index})
    providers = [_PROVIDER_NAMES["cpu"]] if provider == "cpu" else [cuda, _PROVIDER_NAMES["cpu"]]
    try:
        session = onnxruntime.InferenceSession(path, session_options(settings), providers=providers)
    except Exception as error:  # its exception classes share no base of their own
        raise BundleError(
            str(path), found=str(error), expected="a graph this service can load", what="graph"
        ) from error
    session.disable_fallback()  # a failing run must fail, not go on elsewhere
    if session.get_providers()[0] != _PROVIDER_NAMES[provider]:
        raise ConfigError(
            "provider", provider, f"a working device; ONNX Runtime fell back to {session.get_providers()}"
        )
    _check_tensors(path, "inputs", session.get_inputs(), tensors.inputs)
    _check_tensors(path, "outputs", session.get_outputs(), tensors.outputs)
    return session


def _check_tensors(path: Path, what: str, found: Sequence[onnxruntime.NodeArg], expected: dict[str, str]) -> None:
    named = {tensor.name: _ELEMENT_TYPES.get(tensor.type, tensor.type) for tensor in found}
    differing = sorted(name for name in named.keys() | expected if named.get(name) != expected.get(name))
    if differing:
        raise BundleError(
            str(path),
            found={name: named.get(name) for name in differing},
            expected={name: expected.get(name) for name in differing},
            what=what,
        )


def _multiplies_u8s8_exactly() -> bool:
    """Say whether products of unsigned and signed bytes cannot overflow here.

    x86 without VNNI adds pairs of them in 16 bits, which saturates: translations would be silently wrong.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    try:
        return "vnni" in _CPU_INFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
