"""Arrays in device memory and the graphs that modify them; all copies between host and device are counted."""

import ctypes
import logging
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import DTypeLike, NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.runtimes.onnx_cuda.cache_graphs import advance_graph, write_graph, zeros_graph
from dragoman_service.runtimes.onnx_cuda.cuda_graphs import DEVICE_USE
from dragoman_service.runtimes.settings import Device

log = logging.getLogger(__name__)

_NOT_PINNED: Final = "pinned memory unavailable; using pageable memory"

OpenGraph = Callable[[bytes], onnxruntime.InferenceSession]  # opens an ONNX model on a device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceArray:
    """A contiguous array in device memory, or a part of one; the memory is freed with the last part."""

    owner: onnxruntime.OrtValue
    address: int  # of the first element
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, shape: Sequence[int], *, index: Sequence[int] = ()) -> "DeviceArray":
        """Return a contiguous part of shape `shape` that starts at `index`, an index into the first axes."""
        offset = sum(place * math.prod(self.shape[axis + 1 :]) for axis, place in enumerate(index))
        if offset + math.prod(shape) > math.prod(self.shape):
            raise ValueError(f"part of shape {tuple(shape)} at {tuple(index)} exceeds the array of shape {self.shape}")
        address = self.address + offset * self.dtype.itemsize
        return DeviceArray(owner=self.owner, address=address, shape=tuple(shape), dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostArray:
    """An array on the host for uploads or downloads in every step."""

    array: NDArray[Any]
    pinned: onnxruntime.OrtValue | None
    """The same array in page-locked memory, which a device accesses without another copy; None in pageable memory."""


class PinnedMemory:
    """Allocator of page-locked host memory; thread-safe.

    Memory of deleted arrays is reused for arrays of the same size, because freeing it would wait for the device.
    """

    def __init__(self, cudart: Any, index: int) -> None:
        """Allocate with the CUDA runtime library `cudart` for the GPU of an index."""
        self._cudart, self._index = cudart, index
        self._lock = threading.Lock()
        self._unused = dict[int, list[int]]()  # addresses by size

    def array(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return a new array of zeros; raises RuntimeError if the allocation fails."""
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
            raise RuntimeError(f"allocation of {num_bytes} bytes of page-locked memory: CUDA error {fault}")
        return address.value


def pinned_memory(index: int, cuda_version: str, load: Callable[[str], Any] = ctypes.CDLL) -> PinnedMemory | None:
    """Return the allocator for the GPU of an index; log a warning and return None without the CUDA runtime library."""
    try:
        return PinnedMemory(load(f"libcudart.so.{cuda_version.partition('.')[0]}"), index)
    except OSError as error:
        log.warning(_NOT_PINNED, extra={"reason": str(error)})
    return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSource:
    """Keys and values of one source, as part of the array of all sources that were encoded in one run."""

    group: DeviceArray  # [2 * L, B, H, S, D], padded to a common length
    index: int  # index of the source in B


class DeviceMemory:
    """Device memory of one model; safe to share between threads.

    `upload` and `download` make and count all copies between host and device. Graphs on the device modify arrays.
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
        """Open the small graphs on a device. Without `pinned`, host arrays are in pageable memory."""
        self.uploaded_bytes = self.downloaded_bytes = 0
        self._lock = threading.Lock()  # guards them
        self.float_type = np.dtype(float_type)
        self._device, self._index = device, index
        self._zeros, self._write, self._advance = (
            open_graph(make(float_type)) for make in (zeros_graph, write_graph, advance_graph)
        )
        self._pinned = pinned
        if pinned is not None:
            self._check_pinned()

    def zeros(self, shape: Sequence[int]) -> DeviceArray:
        """Return a new array of zeros of the model's float type; it counts towards the memory limit of a graph."""
        binding = self._zeros.io_binding()
        binding.bind_cpu_input("shape", np.array(shape, dtype=np.int64))
        binding.bind_output("zeros", self._device, self._index)
        with DEVICE_USE:
            self._zeros.run_with_iobinding(binding)
        (value,) = binding.get_outputs()
        return _whole(value, shape, self.float_type)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> DeviceArray:
        """Return a new uninitialized array, for small inputs and outputs of graphs."""
        with DEVICE_USE:
            value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(tuple(shape), dtype, self._device, self._index)
        return _whole(value, shape, np.dtype(dtype))

    def host_array(self, shape: Sequence[int], dtype: DTypeLike) -> HostArray:
        """Return a new array of zeros on the host, in page-locked memory if available."""
        if self._pinned is None:
            return HostArray(array=np.zeros(shape, dtype), pinned=None)
        array = self._pinned.array(shape, dtype)
        return HostArray(array=array, pinned=onnxruntime.OrtValue.ortvalue_from_numpy(array))

    def _check_pinned(self) -> None:
        # Falls back to pageable memory if ONNX Runtime cannot copy to page-locked memory.
        try:
            self.download(self.upload(np.zeros(1)), to=self.host_array((1,), np.float64))
        except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
            log.warning(_NOT_PINNED, extra={"reason": str(error)})
            self._pinned = None
        self.uploaded_bytes = self.downloaded_bytes = 0

    def upload(self, values: NDArray[Any], *, to: DeviceArray | None = None) -> DeviceArray:
        """Copy values to the device, to `to` if given.

        `to` has the shape and type of the values and is a whole array, not a part.
        """
        if to is None:
            to = self.empty(values.shape, values.dtype)
        with DEVICE_USE:
            to.owner.update_inplace(np.ascontiguousarray(values))
        with self._lock:
            self.uploaded_bytes += values.nbytes
        return to

    def download(self, array: DeviceArray, *, to: HostArray | None = None) -> NDArray[Any]:
        """Copy a whole array to the host, to the `host_array` of the same shape and type if given."""
        with self._lock:
            self.downloaded_bytes += array.num_bytes
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
        """Bind arrays to the inputs and outputs of a graph."""
        bound = BoundGraph(session, self._device, self._index)
        for name, array in inputs.items():
            bound.set_input(name, array)
        for name, array in outputs.items():
            bound.set_output(name, array)
        return bound

    def write(self, target: DeviceArray, source: DeviceArray, segments: Mapping[int, int], *, axis: int) -> None:
        """Copy segments of one array [N, B, ...] to another or the same, cut or padded with zeros to its length.

        Args:
            target: array to modify.
            source: array with the shape of `target`, except for the number of segments and the length.
            segments: maps each modified segment of `target` to the segment of `source` to copy.
            axis: axis of the length.
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
            "taken": self.upload(np.array(list(segments.values()), dtype=np.int64)),
            "places": self.upload(places),
        }
        bound = self.bind(self._write, inputs, {"written": target})
        for name, sizes in {"ends": [length], "axes": [axis], "pads": pads}.items():
            bound.set_sizes(name, sizes)
        bound.run()

    def bind_advance(
        self, inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray], *, widths: Sequence[int]
    ) -> "BoundGraph":
        """Bind the graph that prepares a step, see `advance_graph`; `set_previous` sets the remaining inputs."""
        bound = self.bind(self._advance, inputs, outputs)
        bound.set_sizes("widths", widths)
        return bound


class BoundGraph:
    """A graph with bound inputs and outputs, which it keeps alive; not safe for concurrent use."""

    def __init__(self, session: onnxruntime.InferenceSession, device: Device, index: int) -> None:
        self._session, self._device, self._index = session, device, index
        self._binding = session.io_binding()
        self._arrays: dict[str, DeviceArray] = {}

    def set_input(self, name: str, array: DeviceArray) -> None:
        """Bind an array to an input and release the previous one."""
        where = self._device, self._index, array.dtype.type, array.shape, array.address
        self._binding.bind_input(name, *where)
        self._arrays[name] = array

    def set_output(self, name: str, array: DeviceArray) -> None:
        """Bind an array to an output and release the previous one."""
        where = self._device, self._index, array.dtype.type, array.shape, array.address
        self._binding.bind_output(name, *where)
        self._arrays[name] = array

    def set_sizes(self, name: str, sizes: Sequence[int]) -> None:
        """Bind integers to an input that kernels read on the host, such as sizes and axes."""
        self._binding.bind_cpu_input(name, np.array(sizes, dtype=np.int64))

    def set_previous(self, mask: DeviceArray, num_slots: int) -> None:
        """Set the mask [R, L'] of the previous step for a graph of `bind_advance`.

        `num_slots` must be the same in all calls.
        """
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
