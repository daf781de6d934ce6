"""Arrays in the memory of a device, changed by graphs that run there; every copy between it and the host is counted."""

import ctypes
import logging
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import onnxruntime
from numpy.typing import DTypeLike, NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.runtimes.onnx_cuda.cache_graphs import advance_graph, write_graph, zeros_graph
from dragoman_service.runtimes.onnx_cuda.cuda_graphs import DEVICE_USE
from dragoman_service.runtimes.settings import Device

log = logging.getLogger(__name__)

_NOT_PINNED: Final = "what goes to the device and back is not page-locked"

Operation = Literal["encode", "join", "move", "resize", "step", "attention"]
"""What bytes are copied for."""

Direction = Literal["host_to_device", "device_to_host"]

OpenGraph = Callable[[bytes], onnxruntime.InferenceSession]
"""Opens an ONNX model on a device."""


class CopyCounter:
    """Bytes copied between host and device; any thread may use it."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._bytes: Counter[tuple[Operation, Direction]] = Counter()

    def add(self, operation: Operation, direction: Direction, num_bytes: int) -> None:
        """Count a copy."""
        with self._lock:
            self._bytes[operation, direction] += num_bytes

    def by_operation(self) -> dict[tuple[Operation, Direction], int]:
        """Return the bytes copied so far for each operation and in each direction."""
        with self._lock:
            return dict(self._bytes)

    def total(self, direction: Direction) -> int:
        """Return the bytes copied so far in a direction."""
        return sum(count for (_, other), count in self.by_operation().items() if other == direction)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceArray:
    """A contiguous array in the memory of a device, or a part of one; its memory lives as long as any part."""

    owner: onnxruntime.OrtValue
    address: int
    """Of the first element."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, shape: Sequence[int], *, index: Sequence[int] = ()) -> "DeviceArray":
        """Return as many elements as `shape` has, from those at an index of the first axes on."""
        offset = sum(place * math.prod(self.shape[axis + 1 :]) for axis, place in enumerate(index))
        if offset + math.prod(shape) > math.prod(self.shape):
            raise ValueError(f"{tuple(shape)} from {tuple(index)} on is not within {self.shape}")
        address = self.address + offset * self.dtype.itemsize
        return DeviceArray(owner=self.owner, address=address, shape=tuple(shape), dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostArray:
    """An array of the host, for what goes up or comes down at every step."""

    array: NDArray[Any]
    pinned: onnxruntime.OrtValue | None
    """The same, if it lies in page-locked memory, which a device reads and writes without another copy."""


class PinnedMemory:
    """Page-locked memory of the host, as CUDA allocates it; any thread may use it.

    What is let go is kept for the next array of its size: to free it would wait for the device.
    """

    def __init__(self, cudart: Any, index: int) -> None:
        """Use the CUDA runtime library for the GPU of an index."""
        self._cudart, self._index = cudart, index
        self._lock = threading.Lock()
        self._unused = dict[int, list[int]]()  # addresses by size

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return a new array of zeros; RuntimeError if there is no memory."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        with self._lock:
            unused = self._unused.setdefault(num_bytes, [])
            address = unused.pop() if unused else self._allocated(num_bytes)
        memory = (ctypes.c_byte * num_bytes).from_address(address)
        weakref.finalize(memory, unused.append, address)
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=memoryview(memory))
        array[...] = 0
        return array

    def _allocated(self, num_bytes: int) -> int:
        address = ctypes.c_void_p()
        with DEVICE_USE:
            fault = self._cudart.cudaSetDevice(self._index) or self._cudart.cudaMallocHost(
                ctypes.byref(address), ctypes.c_size_t(num_bytes)
            )
        if fault or address.value is None:
            raise RuntimeError(f"CUDA error {fault}")
        return address.value


def pinned_memory(index: int, cuda_version: str, load: Callable[[str], Any] = ctypes.CDLL) -> PinnedMemory | None:
    """Return the page-locked memory for the GPU of an index; None, and the log says so, without CUDA's runtime."""
    try:
        return PinnedMemory(load(f"libcudart.so.{cuda_version.partition('.')[0]}"), index)
    except OSError as error:
        log.warning(_NOT_PINNED, extra={"reason": str(error)})
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSource:
    """The keys and values of one source in those of all that were encoded with it."""

    group: DeviceArray
    """[2 * L, B, H, S, D], the sources padded to one length."""
    index: int
    """Of the source."""


class DeviceMemory:
    """The memory of one device, as the graphs of one model use it; safe to share between threads.

    Whatever is copied between host and device goes through `upload` and `download`, which count it. Between these,
    arrays are changed by graphs that run on the device.
    """

    def __init__(
        self,
        device: Device,
        index: int,
        *,
        float_type: FloatType,
        open_graph: OpenGraph,
        pinned: PinnedMemory | None = None,
    ) -> None:
        """Open the small graphs on a device; raises as `open_graph`. Without `pinned`, ordinary memory is used."""
        self.copies = CopyCounter()
        """Bytes that went up and down."""
        self.float_type = np.dtype(float_type)
        self._device, self._index = device, index
        self._zeros, self._write, self._advance = (
            open_graph(make(float_type)) for make in (zeros_graph, write_graph, advance_graph)
        )
        self._pinned = pinned
        if pinned is not None:
            self._check_pinned()

    def zeros(self, shape: Sequence[int]) -> DeviceArray:
        """Return a new array of the model's float type; the memory is that of a graph, whose limit holds for it."""
        binding = self._zeros.io_binding()
        binding.bind_cpu_input("shape", np.array(shape, dtype=np.int64))
        binding.bind_output("zeros", self._device, self._index)
        with DEVICE_USE:
            self._zeros.run_with_iobinding(binding)
        (value,) = binding.get_outputs()
        return _whole(value, shape, self.float_type)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """Return a new array of arbitrary values, for the small inputs and outputs of graphs."""
        with DEVICE_USE:
            value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(tuple(shape), dtype, self._device, self._index)
        return _whole(value, shape, np.dtype(dtype))

    def host_array(self, shape: Sequence[int], dtype: DTypeLike) -> HostArray:
        """Return a new array of zeros on the host, in page-locked memory if there is any."""
        if self._pinned is None:
            return HostArray(array=np.zeros(shape, dtype), pinned=None)
        array = self._pinned.array(shape, dtype)
        return HostArray(array=array, pinned=onnxruntime.OrtValue.ortvalue_from_numpy(array))

    def _check_pinned(self) -> None:
        """Use ordinary memory if ONNX Runtime cannot copy to page-locked one."""
        try:
            self.download(self.upload(np.zeros(1), "step"), "step", to=self.host_array((1,), np.float64))
        except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
            log.warning(_NOT_PINNED, extra={"reason": str(error)})
            self._pinned = None
        self.copies = CopyCounter()

    def upload(self, values: NDArray[Any], operation: Operation, *, to: DeviceArray | None = None) -> DeviceArray:
        """Copy values to a new array, or to one of their shape and type that is there, no part of another."""
        if to is None:
            to = self.empty(values.shape, values.dtype)
        with DEVICE_USE:
            to.owner.update_inplace(np.ascontiguousarray(values))
        self.copies.add(operation, "host_to_device", values.nbytes)
        return to

    def download(self, array: DeviceArray, operation: Operation, *, to: HostArray | None = None) -> NDArray[Any]:
        """Copy an array that is no part of another to the host, by a `host_array` of its shape and type if given."""
        self.copies.add(operation, "device_to_host", array.num_bytes)
        with DEVICE_USE:
            if to is None or to.pinned is None:
                values: NDArray[Any] = array.owner.numpy()
                return values
            to.pinned.update_inplace(array.owner)
            return to.array

    def bind(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
    ) -> "BoundGraph":
        """Return a graph with arrays for its inputs and outputs."""
        bound = BoundGraph(session, self._device, self._index)
        for name, array in inputs.items():
            bound.set_input(name, array)
        for name, array in outputs.items():
            bound.set_output(name, array)
        return bound

    def write(
        self,
        target: DeviceArray,
        source: DeviceArray,
        segments: Mapping[int, int],
        *,
        axis: int,
        operation: Operation,
    ) -> None:
        """Write parts of segments of one array [N, B, ...], cut off or padded with zeros, into another or the same.

        Args:
            target: is changed.
            source: has the sizes of `target` but for the number of segments and the length.
            segments: each of `target` that is written, and that of `source` that it becomes a copy of.
            axis: that of the length.
            operation: what for.
        """
        names, count, rank = target.shape[0], len(segments), len(target.shape)
        places = np.empty((names, count, 2), dtype=np.int64)
        places[:, :, 0] = np.arange(names)[:, None]
        places[:, :, 1] = list(segments)
        length = min(source.shape[axis], target.shape[axis])
        pads = [0] * (2 * rank)
        pads[rank + axis] = target.shape[axis] - length
        inputs = {
            "source": source,
            "target": target,
            "taken": self.upload(np.array(list(segments.values()), dtype=np.int64), operation),
            "places": self.upload(places, operation),
        }
        bound = self.bind(self._write, inputs, {"written": target})
        for name, sizes in {"ends": [length], "axes": [axis], "pads": pads}.items():
            bound.set_sizes(name, sizes)
        bound.run()

    def bind_advance(
        self, inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray], *, widths: Sequence[int]
    ) -> "BoundGraph":
        """Return the graph that prepares a step, see `advance_graph`; `set_previous` sets what is missing."""
        bound = self.bind(self._advance, inputs, outputs)
        bound.set_sizes("widths", widths)
        return bound


class BoundGraph:
    """A graph with arrays for its inputs and outputs, whose memory it keeps; one thread at a time may use it."""

    def __init__(self, session: onnxruntime.InferenceSession, device: Device, index: int) -> None:
        """Bind nothing yet."""
        self._session, self._device, self._index = session, device, index
        self._binding = session.io_binding()
        self._arrays: dict[str, DeviceArray] = {}

    def set_input(self, name: str, array: DeviceArray) -> None:
        """Use an array for an input, in place of the one before."""
        where = self._device, self._index, array.dtype.type, array.shape, array.address
        self._binding.bind_input(name, *where)
        self._arrays[name] = array

    def set_output(self, name: str, array: DeviceArray) -> None:
        """Use an array for an output, in place of the one before."""
        where = self._device, self._index, array.dtype.type, array.shape, array.address
        self._binding.bind_output(name, *where)
        self._arrays[name] = array

    def set_sizes(self, name: str, sizes: Sequence[int]) -> None:
        """Use integers for an input that kernels read on the host: sizes, axes and the like."""
        self._binding.bind_cpu_input(name, np.array(sizes, dtype=np.int64))

    def set_previous(self, mask: DeviceArray, num_slots: int) -> None:
        """Let the step of `bind_advance` follow one with a mask [R, L'], whose rows get always the same `num_slots`."""
        if self._arrays.get("previous") is mask:
            return
        kept = min(mask.shape[1], num_slots)
        self.set_input("previous", mask)
        self.set_sizes("ends", [kept])
        self.set_sizes("pads", [0, 0, 1, num_slots - kept])

    def run(self, options: onnxruntime.RunOptions | None = None) -> None:
        """Run the graph."""
        with DEVICE_USE:
            self._session.run_with_iobinding(self._binding, options)


def _whole(value: onnxruntime.OrtValue, shape: Sequence[int], dtype: np.dtype[Any]) -> DeviceArray:
    return DeviceArray(owner=value, address=value.data_ptr(), shape=tuple(shape), dtype=dtype)
