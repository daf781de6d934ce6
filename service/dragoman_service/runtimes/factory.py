"""Choice between ONNX Runtime and the native engine."""

import contextlib
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman_service.bundle.files import Bundle, read_file
from dragoman_service.bundle.int8_weights import NetworkWeights
from dragoman_service.bundle.manifest import MAX_FILE_BYTES
from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.native.library import (
    BackendUnsupportedError,
    Library,
    NativeNetwork,
    NetworkArrays,
    check_architecture,
    load_library,
)
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.onnx.session import place, read_cpu_info
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.runtimes.shortlist import open_shortlist

log = logging.getLogger(__name__)


def open_step_model(bundle: Bundle, settings: RuntimeSettings) -> OnnxStepModel | NativeStepModel:
    """Open a bundle with the configured engine, or with `auto` the fastest available one, and log the choice.

    Raises:
        BundleError: if a graph, the weights or the shortlist of the bundle are missing or invalid.
        ConfigError: if the device is not available or cannot run the precision, or if the settings require the native
            engine or a shortlist and the native engine cannot be used.
    """
    network: NativeNetwork | None = None
    reason = "configured"
    if settings.engine != "onnxruntime":
        try:
            network = _open_network(bundle, settings)
            reason = f"int8 weights and CPU with {network.instruction_set}{_refused_tiles(network.library)}"
        except BackendUnsupportedError as error:
            reason = str(error)
            if settings.engine == "native":
                raise ConfigError("runtime.engine", "native", f"auto or onnxruntime: {error}") from error
    if settings.instruction_set != "auto" and not network:
        expected = f"auto, or the native engine, which is not used: {reason}"
        raise ConfigError("runtime.instruction_set", settings.instruction_set, expected)
    if settings.shortlist and not network:
        raise ConfigError("runtime.shortlist", True, f"false, or the native engine, which is not used: {reason}")
    fields = {
        "model": f"{bundle.manifest.name}/{bundle.manifest.version}",
        "engine": "native" if network else "onnxruntime",
        "reason": reason,
        "shortlist": settings.shortlist,
    }
    log.info("decoder engine chosen", extra=fields)
    if not network:
        return OnnxStepModel(bundle, settings)
    return NativeStepModel(bundle, settings, network, shortlist=open_shortlist(bundle) if settings.shortlist else None)


def _open_network(bundle: Bundle, settings: RuntimeSettings) -> NativeNetwork:
    # Raises BackendUnsupportedError if machine, settings or bundle do not support the native engine.
    placement = place(bundle, settings)
    if placement.device != "cpu":
        raise BackendUnsupportedError("the model runs on a GPU")
    precision = placement.precision
    if (weights := bundle.int8_weights(precision)) is None:
        raise BackendUnsupportedError(f"the bundle does not describe int8 weights of its decoder for {precision}")
    library = load_library()
    if not library.instruction_sets:
        raise BackendUnsupportedError("the CPU does not have AVX2")
    instruction_set = library.instruction_sets[0] if settings.instruction_set == "auto" else settings.instruction_set
    if instruction_set not in library.instruction_sets:
        raise BackendUnsupportedError(
            f"the CPU does not have {instruction_set}, only {' '.join(library.instruction_sets)}"
        )
    architecture = bundle.manifest.architecture
    check_architecture(architecture)
    content = read_file(bundle.directory / str(bundle.manifest.precisions[precision].weights), max_bytes=MAX_FILE_BYTES)
    return NativeNetwork(
        library,
        architecture,
        _arrays(weights.decoder, content),
        encoder=_arrays(weights.encoder, content) if weights.encoder else None,
        instruction_set=instruction_set,
    )


def _refused_tiles(library: Library) -> str:
    # What the reason of the choice says if the CPU has AMX and the system does not permit it.
    with contextlib.suppress(OSError):
        if "amx" not in library.instruction_sets and "amx_int8" in read_cpu_info():
            return "; the system does not permit its AMX"
    return ""


def _arrays(weights: NetworkWeights, content: bytes) -> NetworkArrays:
    # Returns tensors as views of the content of the weight file, and activation scales.
    tensors: dict[str, NDArray[Any]] = {}
    for name, stored in weights.tensors.items():
        count = stored.num_bytes // np.dtype(stored.dtype).itemsize
        tensors[name] = np.frombuffer(content, stored.dtype, count, stored.offset).reshape(stored.shape)
    return NetworkArrays(tensors, weights.activations)
