"""Fake GPU: ONNX Runtime on the CPU, with arrays that the host can access only by counted copies, as on a GPU.

Tests with the mark `gpu` use a GPU instead if one is available.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import DTypeLike, NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.bundle.files import Bundle
from dragoman_service.runtimes.onnx.encoder import EncodingModel
from dragoman_service.runtimes.onnx.session import cuda_fault, open_sessions, open_small_graph
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.onnx_cuda.cuda_graphs import GraphCaptures
from dragoman_service.runtimes.onnx_cuda.device import (
    BoundGraph,
    DeviceArray,
    DeviceMemory,
    HostArray,
    PinnedMemory,
    pinned_memory,
)
from dragoman_service.runtimes.settings import Device, RuntimeSettings

_FAULT = cuda_fault(0)

DEVICES = (
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(_FAULT is not None, reason=str(_FAULT))]),
)
"""Parameters of a test: the fake device, and a GPU if one is available."""


@dataclass(frozen=True, eq=False)
class _Sealed:
    """Keeps memory alive without access to its content."""

    value: onnxruntime.OrtValue


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy between host and device."""

    is_up: bool
    dtype: np.dtype[Any]
    num_bytes: int


class FakeCudart:
    """Allocates pageable instead of page-locked memory; fails after `num_left` allocations."""

    def __init__(self, num_left: int = 1 << 20) -> None:
        self.num_left = num_left
        self._memory: list[Any] = []

    def cudaSetDevice(self, index: int) -> int:  # noqa: N802
        return 0 if index == 0 else 101

    def cudaMallocHost(self, address: Any, num_bytes: ctypes.c_size_t) -> int:  # noqa: N802
        self.num_left -= 1
        if self.num_left < 0:
            return 2
        self._memory.append((ctypes.c_byte * num_bytes.value)())
        address._obj.value = ctypes.addressof(self._memory[-1])
        return 0


class FakeDeviceMemory(DeviceMemory):
    """Records copies and bindings of pools; can fail like a device whose memory is exhausted."""

    def __init__(self, float_type: FloatType, device: Device = "cpu") -> None:
        self.log: list[Copy] = []
        open_graph = partial(open_small_graph, settings=RuntimeSettings(), device=device)
        pinned = pinned_memory(0, onnxruntime.cuda_version) if device == "cuda" else PinnedMemory(FakeCudart(), 0)
        super().__init__(device, 0, float_type=float_type, open_graph=open_graph, pinned=pinned)
        self.log.clear()
        self.bound_pools: list[tuple[tuple[int, ...], int]] = []
        """Shape and address of the pool of each binding of a decoder."""
        self.num_arrays_left: int | None = None
        """Number of arrays of keys and values that can still be allocated; None for no limit."""

    def zeros(self, shape: Any) -> DeviceArray:
        if self.num_arrays_left is not None:
            self.num_arrays_left -= 1
            if self.num_arrays_left < 0:
                raise RuntimeError("Failed to allocate memory for requested buffer")
        return _sealed(super().zeros(shape))

    def empty(self, shape: Any, dtype: DTypeLike) -> DeviceArray:
        return _sealed(super().empty(shape, dtype))

    def upload(self, values: NDArray[Any], *, to: DeviceArray | None = None) -> DeviceArray:
        to = to or self.empty(values.shape, values.dtype)
        assert (to.shape, to.dtype) == (values.shape, values.dtype)
        super().upload(values, to=_unsealed(to))
        self.log.append(Copy(is_up=True, dtype=values.dtype, num_bytes=values.nbytes))
        return to

    def download(self, array: DeviceArray, *, to: HostArray | None = None) -> NDArray[Any]:
        values = super().download(_unsealed(array), to=to)
        assert to is None or values is to.array
        assert (array.shape, array.dtype) == (values.shape, values.dtype)
        self.log.append(Copy(is_up=False, dtype=values.dtype, num_bytes=values.nbytes))
        return values.copy() if to is None else values

    def bind(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
    ) -> BoundGraph:
        if pool := inputs.get("self_key_pool.0"):
            self.bound_pools.append((pool.shape, pool.address))
        return super().bind(session, inputs, outputs)


def read(array: DeviceArray) -> NDArray[Any]:
    """Return the content of an array of the fake device."""
    content = ctypes.string_at(array.address, array.num_bytes)
    return np.frombuffer(content, array.dtype).reshape(array.shape)


class FakeDeviceModel(OnnxStepModel):
    """Step model on the fake device, or on a GPU; copies are recorded."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        precision: str = "fp32",
        device: Device = "cpu",
        cuda_graphs: bool = False,
        capturing: Callable[[onnxruntime.InferenceSession], Any] | None = None,
    ) -> None:
        sessions = open_sessions(bundle, RuntimeSettings(device=device, precision=precision, cuda_graphs=cuda_graphs))
        self.memory = FakeDeviceMemory(sessions.float_type, device)
        sessions = replace(sessions, device_memory=self.memory)
        if capturing:
            decoder = capturing(sessions.decoder)
            sessions = replace(sessions, decoder=decoder, graph_captures=GraphCaptures(decoder))
        EncodingModel.__init__(self, sessions)


class _Bindings:
    """A binding of ONNX Runtime that records the shape and address, or the sizes, of each name."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.bound: dict[str, tuple[Any, ...]] = {}

    def bind_input(self, name: str, *where: Any) -> None:
        self.bound[name] = where[-2:]
        self.binding.bind_input(name, *where)

    def bind_output(self, name: str, *where: Any) -> None:
        self.bound[name] = where[-2:]
        self.binding.bind_output(name, *where)

    def bind_cpu_input(self, name: str, sizes: NDArray[Any]) -> None:
        self.bound[name] = tuple(sizes.tolist())
        self.binding.bind_cpu_input(name, sizes)


class CapturingSession:
    """A decoder that captures runs by id, as ONNX Runtime does on CUDA; replays require unchanged bindings."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session = session
        self.graphs: dict[int, dict[str, tuple[Any, ...]]] = {}
        """Bindings of each capture, by id."""
        self.released: list[int] = []
        self.num_replays = 0

    def io_binding(self) -> _Bindings:
        return _Bindings(self.session.io_binding())

    def run_with_iobinding(self, bindings: _Bindings, options: onnxruntime.RunOptions) -> None:
        graph_id = int(options.get_run_config_entry("gpu_graph_id"))
        if graph_id == -1:
            self.session.run_with_iobinding(bindings.binding)
        elif graph_id in self.graphs:
            self.num_replays += 1
            assert self.graphs[graph_id] == bindings.bound
            self.replay(graph_id, bindings)
        else:
            self.capture(graph_id, bindings)

    def capture(self, graph_id: int, bindings: _Bindings) -> None:
        assert graph_id not in self.released
        for _ in range(3):
            self.session.run_with_iobinding(bindings.binding)
        self.graphs[graph_id] = dict(bindings.bound)

    def replay(self, graph_id: int, bindings: _Bindings) -> None:
        self.session.run_with_iobinding(bindings.binding)

    def release_captured_graph(self, graph_id: int) -> None:
        self.released.append(graph_id)
        del self.graphs[graph_id]


def _sealed(array: DeviceArray) -> DeviceArray:
    return replace(array, owner=_Sealed(array.owner))


def _unsealed(array: DeviceArray) -> DeviceArray:
    # Fails for a part of an array, because parts must not be copied.
    assert isinstance(array.owner, _Sealed)
    value = array.owner.value
    assert (value.data_ptr(), tuple(value.shape())) == (array.address, array.shape)
    return replace(array, owner=value)
