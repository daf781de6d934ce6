"""ONNX Runtime sessions: opens the graphs of a bundle and checks them against its manifest."""

import ctypes
import logging
import platform
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import FloatType, GraphTensors, layer_names
from dragoman_service.bundle.files import Bundle, read_file
from dragoman_service.bundle.manifest import MAX_FILE_BYTES
from dragoman_service.decoding.step_model import FloatArray
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.runtimes.onnx.model_file import check_unopened, checked_model, damaged
from dragoman_service.runtimes.onnx_cuda.cuda_graphs import CAPTURE_FAILED, GraphCaptures
from dragoman_service.runtimes.onnx_cuda.device import DeviceArray, DeviceMemory, pinned_memory
from dragoman_service.runtimes.settings import Device, Placement, RuntimeSettings, choose_placement
from dragoman_service.threads import num_cores


class CrossAttention:
    """Computes the cross-attention weights of given targets."""

    def __init__(self, session: onnxruntime.InferenceSession, *, num_layers: int, bos_id: int) -> None:
        self._session = session
        self._outputs = layer_names(("cross_attention",), num_layers)
        self._inputs = layer_names(("cross_key", "cross_value"), num_layers)[:-1]
        self._bos_id = bos_id

    def weights(self, target_ids: Sequence[int], cross: Mapping[str, FloatArray]) -> FloatArray:
        """Return the cross-attention weights [L, H, T, S] of the T tokens of one target, excluding BOS.

        `cross` contains `cross_key.i` and `cross_value.i` [1, H, S, D] of each decoder layer, without padding.
        """
        cross_inputs = {name: cross[name] for name in self._inputs}
        inputs = {
            "token_ids": np.array([[self._bos_id, *target_ids[:-1]]], dtype=np.int64),
            "source_lengths": np.array([cross_inputs["cross_key.0"].shape[2]], dtype=np.int32),
            **cross_inputs,
        }
        return np.concatenate(self._session.run(self._outputs, inputs))

    def weights_on_device(
        self,
        memory: DeviceMemory,
        target_ids: Sequence[int],
        cross: Mapping[str, DeviceArray],
        *,
        num_heads: int,
        source_length: int,
    ) -> FloatArray:
        """Return the same as `weights` from keys and values on a device, which may have trailing padding."""
        num_positions = cross["cross_key.0"].shape[2]
        small: dict[str, NDArray[Any]] = {
            "token_ids": np.array([[self._bos_id, *target_ids[:-1]]], dtype=np.int64),
            "source_lengths": np.array([source_length], dtype=np.int32),
        }
        inputs = {name: memory.upload(values) for name, values in small.items()}
        inputs |= {name: cross[name] for name in self._inputs}
        shape = (1, num_heads, len(target_ids), num_positions)
        outputs = {name: memory.empty(shape, np.float32) for name in self._outputs}
        memory.bind(self._session, inputs, outputs).run()
        weights = [memory.download(array) for array in outputs.values()]
        return np.concatenate(weights)[..., :source_length]


log = logging.getLogger(__name__)

_ELEMENT_TYPES = {f"tensor({name})": name for name in ("int64", "int32", "float16")} | {"tensor(float)": "float32"}
"""Names of element types in ONNX Runtime and in numpy and the manifest."""

_PROVIDERS: dict[Device, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

_DRIVER = "libcuda.so.1"

_LOG_ERRORS = 3  # minimum severity that ONNX Runtime writes to standard error
onnxruntime.set_default_logger_severity(_LOG_ERRORS)  # outside of sessions: the CUDA provider logs warnings there

_SMALL_WEIGHTS_BYTES = 16 << 20
"""Maximum size of a network for which additional threads do not reduce latency. Measured: with two threads, a step
takes 75 % of the time of one thread with 60 MB of weights, and 100 % with 9 MB."""

read_cpu_info = partial(Path("/proc/cpuinfo").read_text, encoding="ascii", errors="replace")


def cuda_fault(
    device_index: int, library: Any = onnxruntime, load_driver: Callable[[str], object] = ctypes.CDLL
) -> str | None:
    """Try to use the GPU of an index; return the cause and the remedy if it is not available, otherwise None."""
    if not _has_cuda(library):
        return "ONNX Runtime has no CUDA provider; install dragoman[gpu] instead of dragoman[serve]"
    try:
        load_driver(_DRIVER)
    except OSError as error:
        return f"NVIDIA driver not found ({error}); in a container, start it with docker run --gpus all"
    library.preload_dlls()  # from the installed CUDA packages
    try:
        library.OrtValue.ortvalue_from_numpy(np.zeros(1, dtype=np.float32), "cuda", device_index)
    except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
        reason = " ".join(str(error).split())
        return f"GPU {device_index} is not usable: {reason}; check that nvidia-smi lists it (in the container, if any)"
    return None


def _has_cuda(library: Any) -> bool:
    return _PROVIDERS["cuda"] in library.get_available_providers()


def providers(device: Device, settings: RuntimeSettings, *, captures: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Return the execution providers and their options, in order of preference; `captures` enables CUDA graphs."""
    cpu: tuple[str, dict[str, Any]] = (_PROVIDERS["cpu"], {})
    if device == "cpu":
        return [cpu]
    options = {"device_id": settings.device_index, "use_tf32": int(settings.use_tf32)}
    if settings.gpu_memory_limit_bytes is not None:
        options["gpu_mem_limit"] = settings.gpu_memory_limit_bytes
    if captures:
        options["enable_cuda_graph"] = 1
    return [(_PROVIDERS["cuda"], options), cpu]


def check_device(device: Device, found: Sequence[str]) -> None:
    """Raise ConfigError if the providers of a session show that ONNX Runtime fell back to another device."""
    if not found or found[0] != _PROVIDERS[device]:
        raise ConfigError("runtime.device", device, f"a usable device; ONNX Runtime fell back to {', '.join(found)}")


GraphName = Literal["encoder", "decoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Loaded graphs of a model; safe to run from several threads."""

    bundle: Bundle
    encoder: onnxruntime.InferenceSession | None
    decoder: onnxruntime.InferenceSession | None
    """`encoder` and `decoder` are None if `open_sessions` did not open them."""

    low_latency_decoder: onnxruntime.InferenceSession | None
    """Decoder with more threads, for a batch that runs alone; None if more threads would not reduce latency."""

    attention: CrossAttention | None  # None if the bundle has no attention graph
    graph_captures: GraphCaptures | None  # CUDA graph captures of decoder steps; None if steps are not captured
    device_memory: DeviceMemory | None  # GPU memory for keys and values; None on the CPU
    placement: Placement

    float_type: FloatType  # element type of keys, values and the ancestor mask
    weights_bytes: int  # size of the graph and weight files of the precision

    def opened(self, graph: GraphName) -> onnxruntime.InferenceSession:
        """Return the session of a graph; raises RuntimeError if `open_sessions` did not open it."""
        session = self.encoder if graph == "encoder" else self.decoder
        if session is None:
            raise RuntimeError(f"the {graph} graph was not opened")
        return session

    def opened_attention(self) -> CrossAttention:
        """Return the attention graph; raises BundleError if the bundle has none."""
        if self.attention is None:
            raise self.bundle.missing_attention(self.placement.precision)
        return self.attention


def place(
    bundle: Bundle, settings: RuntimeSettings, *, find_cuda_fault: Callable[[int], str | None] = cuda_fault
) -> Placement:
    """Return the device and precision for a bundle; raises the errors of `choose_placement`."""
    manifest = bundle.manifest
    if manifest.architecture.decoder_type == "ssru":
        find_cuda_fault = _recurrent_fault
    new = f"fp16/{manifest.name}/{manifest.version}"  # in the layout of `models.directory`
    return choose_placement(
        settings,
        precisions=manifest.precisions,
        default_precision=manifest.default_precision,
        convert_command=shlex.join(
            ("dragoman", "export", "convert", "--bundle", str(bundle.directory), "--output", new)
        ),
        cuda_fault=find_cuda_fault,
    )


def _recurrent_fault(_: int) -> str:
    return "decoders of type ssru run on the CPU only"


def open_sessions(
    bundle: Bundle,
    settings: RuntimeSettings,
    *,
    graphs: Collection[GraphName] = ("encoder", "decoder"),
    find_cuda_fault: Callable[[int], str | None] = cuda_fault,
) -> Sessions:
    """Open graphs of a bundle, with the precision and on the device that `place` chooses.

    The attention graph is opened if the bundle has one.

    Raises:
        BundleError: if the bundle lacks the precision, or a graph is damaged or does not match the manifest.
        ConfigError: if the device is not available or cannot run the precision.
    """
    manifest = bundle.manifest
    placement = place(bundle, settings, find_cuda_fault=find_cuda_fault)
    chosen = {"device": placement.device, "precision": placement.precision, "reason": placement.reason}
    is_fallback = settings.device == "auto" and placement.device == "cpu" and _has_cuda(onnxruntime)
    log.log(
        logging.WARNING if is_fallback else logging.INFO,
        "device chosen",
        extra={"model": f"{manifest.name}/{manifest.version}", **chosen},
    )
    encoder_path, decoder_path = bundle.graph_paths(placement.precision)
    files, tensors = manifest.precisions[placement.precision], manifest.tensors[placement.precision]
    if "encoder" not in graphs:
        check_unopened(encoder_path, tensors.encoder, weights=files.weights)
    if "decoder" not in graphs:
        check_unopened(decoder_path, tensors.decoder, weights=files.weights)
    open_graph = partial(_open, settings=settings, device=placement.device, weights=files.weights)
    open_decoder = partial(open_graph, decoder_path, tensors.decoder)
    encoder = open_graph(encoder_path, tensors.encoder) if "encoder" in graphs else None
    decoder = low_latency_decoder = graph_captures = attention = None
    weights_bytes = bundle.weights_bytes(placement.precision)
    if "decoder" in graphs:
        captures = settings.cuda_graphs and placement.device == "cuda"
        decoder, graph_captures = open_capturing(open_decoder) if captures else (open_decoder(), None)
        num_threads = num_low_latency_threads(settings, placement, weights_bytes=weights_bytes, num_cores=num_cores())
        if num_threads > settings.num_intra_op_threads:
            low_latency_decoder = open_decoder(num_low_latency_threads=num_threads)
    if files.attention and tensors.attention:
        session = open_graph(bundle.attention_path(placement.precision), tensors.attention)
        num_layers = manifest.architecture.num_decoder_layers
        attention = CrossAttention(session, num_layers=num_layers, bos_id=manifest.special_ids.bos)
    return Sessions(
        bundle=bundle,
        encoder=encoder,
        decoder=decoder,
        low_latency_decoder=low_latency_decoder,
        attention=attention,
        graph_captures=graph_captures,
        device_memory=_device_memory(settings, tensors.float_type) if placement.device == "cuda" else None,
        placement=placement,
        float_type=tensors.float_type,
        weights_bytes=weights_bytes,
    )


def _device_memory(settings: RuntimeSettings, float_type: FloatType) -> DeviceMemory:
    return DeviceMemory(
        "cuda",
        settings.device_index,
        float_type=float_type,
        open_graph=partial(open_small_graph, settings=settings, device="cuda"),
        pinned=pinned_memory(settings.device_index, onnxruntime.cuda_version),
    )


def open_capturing(
    open_graph: Callable[..., onnxruntime.InferenceSession],
) -> tuple[onnxruntime.InferenceSession, GraphCaptures | None]:
    """Open a session that captures its runs as CUDA graphs; if that fails, log the reason and open one that does not.

    Raises BundleError if the graph cannot be opened without captures.
    """
    try:
        session = open_graph(captures=True)
    except BundleError as error:  # also raised if ONNX Runtime does not support captures of a valid graph
        log.warning(CAPTURE_FAILED, extra={"reason": str(error)})
        return open_graph(), None
    return session, GraphCaptures(session)


def open_small_graph(content: bytes, *, settings: RuntimeSettings, device: Device) -> onnxruntime.InferenceSession:
    """Open a session of a graph that is not part of a bundle; raises ConfigError if the device is not available."""
    session = onnxruntime.InferenceSession(content, session_options(settings), providers(device, settings))
    _keep_on(device, session)
    return session


def num_low_latency_threads(
    settings: RuntimeSettings, placement: Placement, *, weights_bytes: int, num_cores: int
) -> int:
    """Return the number of threads of a decoder run while no other batch runs.

    The number equals `num_intra_op_threads` if more threads would not reduce latency.
    """
    if placement.device != "cpu":
        return settings.num_intra_op_threads
    wanted = settings.num_low_latency_threads or (num_cores if weights_bytes > _SMALL_WEIGHTS_BYTES else 1)
    return max(wanted, settings.num_intra_op_threads)


def session_options(
    settings: RuntimeSettings,
    *,
    num_low_latency_threads: int | None = None,
    multiplies_exactly: Callable[[], bool] | None = None,
) -> onnxruntime.SessionOptions:
    """Return the options of a session; threads of the low-latency decoder spin during a run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_low_latency_threads or settings.num_intra_op_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_ERRORS
    options.add_session_config_entry("session.load_model_format", "ONNX")  # the ORT format would bypass our checks
    # Shapes change from step to step. ONNX Runtime would store a memory plan for each shape, without a limit.
    options.enable_mem_pattern = False
    # Spinning threads of one session would take the cores of the other decoding threads.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if num_low_latency_threads else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")  # when a run ends
    if not (multiplies_exactly or multiplies_u8s8_exactly)():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def multiplies_u8s8_exactly(architecture: str | None = None, read_info: Callable[[], str] = read_cpu_info) -> bool:
    """Return whether int8 products of unsigned and signed bytes are exact on a CPU, by default the CPU of this machine.

    x86 CPUs without VNNI add pairs of products in 16 bits with saturation, which would silently change translations.
    """
    if (architecture or platform.machine()).lower() not in ("x86_64", "amd64"):
        return True
    try:
        return "vnni" in read_info()
    except OSError:
        return False


def _open(
    path: Path,
    tensors: GraphTensors,
    *,
    settings: RuntimeSettings,
    device: Device,
    weights: str | None,
    num_low_latency_threads: int | None = None,
    captures: bool = False,
) -> onnxruntime.InferenceSession:
    checked_model(path, weights)
    options = session_options(settings, num_low_latency_threads=num_low_latency_threads)
    session = _load(path, options, providers(device, settings, captures=captures), weights=weights)
    _keep_on(device, session)
    _check_tensors(path, "inputs", session.get_inputs(), tensors.inputs)
    _check_tensors(path, "outputs", session.get_outputs(), tensors.outputs)
    return session


def _keep_on(device: Device, session: onnxruntime.InferenceSession) -> None:
    session.disable_fallback()  # a run that fails on the device must not continue on another one
    check_device(device, session.get_providers())


def _load(
    path: Path, options: onnxruntime.SessionOptions, providers: Sequence[Any], *, weights: str | None
) -> onnxruntime.InferenceSession:
    # By default, ONNX Runtime maps the weight file into memory. If the file is truncated or overwritten in place, a run
    # reads other weights or the process ends with SIGBUS. ONNX Runtime copies weights that are passed in memory.
    try:
        # must live until the session is open
        content = read_file(path.parent / weights, max_bytes=MAX_FILE_BYTES) if weights else b""
        if weights:
            options.add_external_initializers_from_files_in_memory([weights], [content], [len(content)])
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # its exception classes have no common base
        raise damaged(path, error) from error


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
