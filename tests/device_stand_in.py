"""A device in the place of a GPU: ONNX Runtime on the CPU, whose arrays the host reaches only as it would a GPU's.

Where there is a GPU, tests with the mark `gpu` put it in the place of the stand-in.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import DTypeLike, NDArray

from service.bundle import Bundle, FloatType
from service.runtime.device import BoundGraph, DeviceArray, DeviceMemory, Operation
from service.runtime.encoder import EncodingModel
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.session import cuda_fault, open_sessions, open_small_graph
from service.runtime.settings import Device, RuntimeSettings

_FAULT = cuda_fault(0)

DEVICES = (
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(_FAULT is not None, reason=str(_FAULT))]),
)
"""Parameters of a test: the stand-in, and a GPU if there is one."""


@dataclass(frozen=True, eq=False)
class _Sealed:
    """Keeps memory alive, and shows nothing of it to whoever passes by the stand-in."""

    value: onnxruntime.OrtValue


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy between host and device."""

    operation: Operation
    is_up: bool
    dtype: np.dtype[Any]
    num_bytes: int


class StandInMemory(DeviceMemory):
    """Remembers every copy and every binding of a decoder's pools, and fails as a device does whose memory is full."""

    def __init__(self, float_type: FloatType, device: Device = "cpu") -> None:
        open_graph = partial(open_small_graph, settings=RuntimeSettings(), device=device)
        super().__init__(device, 0, float_type=float_type, open_graph=open_graph)
        self.log: list[Copy] = []
        self.bound_pools: list[tuple[tuple[int, ...], int]] = []
        """Shape and address of the pool of each binding of a decoder."""
        self.num_arrays_left: int | None = None
        """Arrays of keys and values that there is still memory for; None: any number."""

    def zeros(self, shape: Any) -> DeviceArray:
        if self.num_arrays_left is not None:
            self.num_arrays_left -= 1
            if self.num_arrays_left < 0:
                raise RuntimeError("Failed to allocate memory for requested buffer")
        return _sealed(super().zeros(shape))

    def empty(self, shape: Any, dtype: DTypeLike) -> DeviceArray:
        return _sealed(super().empty(shape, dtype))

    def upload(self, values: NDArray[Any], operation: Operation, *, to: DeviceArray | None = None) -> DeviceArray:
        to = to or self.empty(values.shape, values.dtype)
        assert (to.shape, to.dtype) == (values.shape, values.dtype)
        super().upload(values, operation, to=_unsealed(to))
        self.log.append(Copy(operation=operation, is_up=True, dtype=values.dtype, num_bytes=values.nbytes))
        return to

    def download(self, array: DeviceArray, operation: Operation) -> NDArray[Any]:
        values = super().download(_unsealed(array), operation)
        assert (array.shape, array.dtype) == (values.shape, values.dtype)
        self.log.append(Copy(operation=operation, is_up=False, dtype=values.dtype, num_bytes=values.nbytes))
        return values.copy()

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
    """Return what an array of the stand-in holds, as only a test may."""
    content = ctypes.string_at(array.address, array.num_bytes)
    return np.frombuffer(content, array.dtype).reshape(array.shape)


class StandInModel(OnnxStepModel):
    """A network on the stand-in, or on a GPU whose copies are remembered, too."""

    def __init__(self, bundle: Bundle, *, precision: str = "fp32", device: Device = "cpu") -> None:
        sessions = open_sessions(bundle, RuntimeSettings(device=device, precision=precision))
        self.memory = StandInMemory(sessions.float_type, device)
        EncodingModel.__init__(self, replace(sessions, device_memory=self.memory))


def _sealed(array: DeviceArray) -> DeviceArray:
    return replace(array, owner=_Sealed(array.owner))


def _unsealed(array: DeviceArray) -> DeviceArray:
    """Return an array with its memory; AttributeError if it is a part, which nobody may copy."""
    assert isinstance(array.owner, _Sealed)
    value = array.owner.value
    assert (value.data_ptr(), tuple(value.shape())) == (array.address, array.shape)
    return replace(array, owner=value)
