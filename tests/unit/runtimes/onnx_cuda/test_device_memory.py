"""Device arrays and the graphs that modify them, on the fake device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.runtimes.onnx.kv_pool import HIDDEN
from dragoman_service.runtimes.onnx_cuda.cache_graphs import advance_graph, write_graph, zeros_graph
from dragoman_service.runtimes.onnx_cuda.device import (
    DeviceArray,
    HostArray,
    PinnedMemory,
    pinned_memory,
)
from tests.fake_device import FakeCudart, FakeDeviceMemory, read

FLOAT_TYPES: tuple[FloatType, ...] = ("float32", "float16")
NAMES = {"float32": "FLOAT", "float16": "FLOAT16"}


@pytest.fixture(scope="module", params=FLOAT_TYPES)
def memory(request: pytest.FixtureRequest) -> FakeDeviceMemory:
    return FakeDeviceMemory(request.param)


def filled(memory: FakeDeviceMemory, *shape: int) -> DeviceArray:
    """Return an array of different small integers."""
    values = 1 + np.arange(np.prod(shape)).reshape(shape) % 1000
    return memory.upload(values.astype(memory.float_type))


@pytest.mark.parametrize("float_type", FLOAT_TYPES)
@pytest.mark.parametrize("make", [zeros_graph, write_graph, advance_graph])
def test_cache_graphs_are_valid_onnx(make: Callable[[FloatType], bytes], float_type: FloatType) -> None:
    model = onnx.load_from_string(make(float_type))
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {opset.domain: opset.version for opset in model.opset_import}

    for node in model.graph.node:  # not the whole model, because its inputs do not have shapes
        onnx.checker.check_node(node, context)

    floats = onnx.TensorProto.DataType.Value(NAMES[float_type])
    assert {tensor.data_type for tensor in model.graph.initializer} <= {onnx.TensorProto.INT64, floats}


def test_upload_and_download_preserve_values_and_are_counted(memory: FakeDeviceMemory) -> None:
    before = memory.uploaded_bytes, memory.downloaded_bytes
    values = np.arange(6, dtype=np.int32).reshape(2, 3)

    down = memory.download(memory.upload(values))

    assert down.tolist() == values.tolist()
    assert (memory.uploaded_bytes, memory.downloaded_bytes) == (before[0] + 24, before[1] + 24)


def test_part_has_the_values_at_its_index(memory: FakeDeviceMemory) -> None:
    whole = filled(memory, 3, 4, 5)

    assert read(whole.part((2, 5), index=(1, 2))).tolist() == read(whole)[1, 2:4].tolist()
    assert read(whole.part((12, 5))).tolist() == read(whole).reshape(12, 5).tolist()


def test_part_outside_its_array_is_rejected(memory: FakeDeviceMemory) -> None:
    with pytest.raises(ValueError, match=r"\(3, 5\) at \(2, 2\) .*\(3, 4, 5\)"):
        filled(memory, 3, 4, 5).part((3, 5), index=(2, 2))


def test_new_arrays_are_zero(memory: FakeDeviceMemory) -> None:
    assert not read(memory.zeros((2, 3, 4))).any()


@given(st.data())
def test_written_segments_are_cut_or_padded(memory: FakeDeviceMemory, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from([2, 3]))
    sizes = [2, data.draw(st.integers(1, 4)), 3, 3, 2]
    old_length, new_length, capacity = (data.draw(st.integers(1, 4)) for _ in range(3))
    source = filled(memory, *sizes[:axis], old_length, *sizes[axis + 1 :])
    target = filled(memory, 2, capacity, *sizes[2:axis], new_length, *sizes[axis + 1 :])
    segments = data.draw(
        st.dictionaries(st.integers(0, capacity - 1), st.integers(0, sizes[1] - 1), min_size=1, max_size=capacity)
    )
    expected = read(target).copy()
    kept = min(old_length, new_length)
    for to, taken in segments.items():
        expected[:, to] = 0
        along = (slice(None),) * (axis - 1)
        expected[:, to][(*along, slice(kept))] = read(source)[:, taken][(*along, slice(kept))]

    memory.write(target, source, segments, axis=axis)

    assert (read(target) == expected).all()


def test_segments_can_be_swapped_in_place(memory: FakeDeviceMemory) -> None:
    array = filled(memory, 2, 3, 4, 5)
    expected = read(array)[:, [2, 0, 1]]

    memory.write(array, array, {0: 2, 1: 0, 2: 1}, axis=2)

    assert (read(array) == expected).all()


def _advanced(
    memory: FakeDeviceMemory, previous: NDArray[Any], rows: list[list[int]], own: list[list[int]], num_slots: int
) -> NDArray[Any]:
    """Return the mask after a step."""
    count, num_queries = np.shape(rows)
    widths = (1, 1, 1, num_queries, num_queries, 2)
    update = np.zeros((count, sum(widths)), dtype=np.int32)
    update[:, 3 : 3 + num_queries], update[:, 3 + num_queries : -2] = rows, own
    inputs = {"update": memory.upload(update), "slots": memory.upload(np.arange(num_slots))}
    outputs = {
        "token_ids": memory.empty((count, 1), np.int64),
        "positions": memory.empty((count, 1), np.int64),
        "row_slots": memory.empty((count, 2), np.int64),
        "source_lengths": memory.empty((count, 1), np.int32),
        "ancestor_mask": memory.empty((count, num_queries, num_slots), memory.float_type),
    }
    bound = memory.bind_advance(inputs, outputs, widths=widths)
    bound.set_previous(memory.upload(previous.astype(memory.float_type)), num_slots)
    bound.run()
    return read(outputs["ancestor_mask"])


@pytest.mark.parametrize("num_slots", [3, 4, 6])
def test_row_sees_the_slots_of_its_parent_and_its_own_slot(memory: FakeDeviceMemory, num_slots: int) -> None:
    no, so = HIDDEN, 0.0
    previous = np.array([[so, no, no, no], [no, so, no, no]])

    mask = _advanced(memory, previous, rows=[[1, 0], [-1, -1]], own=[[2, 0], [0, 1]], num_slots=num_slots)

    seen = [[np.flatnonzero(row == so).tolist() for row in segment] for segment in mask]
    assert seen == [[[1, 2], [0]], [[0], [1]]]
    assert set(np.unique(mask).tolist()) == {no, so}


def test_page_locked_memory_is_read_and_written_in_place(memory: FakeDeviceMemory) -> None:
    up, down = (memory.host_array((2, 3), np.int64) for _ in range(2))
    zeros = down.array.copy()
    up.array[:] = np.arange(6).reshape(2, 3)
    on_device = memory.upload(up.array)

    found = memory.download(on_device, to=down)

    assert not zeros.any()
    assert found is down.array
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert down.pinned is not None
    assert down.pinned.data_ptr() == found.ctypes.data


class UncopyableMemory(FakeDeviceMemory):
    def download(self, array: DeviceArray, *, to: HostArray | None = None) -> NDArray[Any]:
        if to is not None and to.pinned is not None:
            raise RuntimeError("no data transfer registered")
        return super().download(array, to=to)


def test_failed_copy_to_page_locked_memory_falls_back_to_pageable(caplog: pytest.LogCaptureFixture) -> None:
    memory = UncopyableMemory("float32")

    to = memory.host_array((2,), np.float32)

    assert to.pinned is None
    assert "no data transfer" in caplog.records[0].__dict__["reason"]
    assert (memory.uploaded_bytes, memory.downloaded_bytes) == (0, 0)


def test_released_page_locked_memory_is_reused_and_zeroed() -> None:
    pinned = PinnedMemory(FakeCudart(num_left=2), 0)
    first, other = pinned.array((2, 3), np.int64), pinned.array((6,), np.int32)
    address, part = first.ctypes.data, first[1:]
    part[:] = 7

    del first
    with pytest.raises(RuntimeError, match="CUDA error 2"):
        pinned.array((6,), np.int64)  # `part` keeps the memory in use
    del part
    again = pinned.array((6,), np.int64)

    assert again.ctypes.data == address
    assert not again.any()
    assert not other.any()


def test_allocation_for_missing_gpu_fails() -> None:
    with pytest.raises(RuntimeError, match="CUDA error 101"):
        PinnedMemory(FakeCudart(), 1).array((1,), np.int8)


def test_cuda_runtime_library_matches_the_cuda_version(caplog: pytest.LogCaptureFixture) -> None:
    loaded: list[str] = []

    def load(name: str) -> object:
        loaded.append(name)
        if name.endswith("12"):
            raise OSError("not found")
        return FakeCudart()

    assert isinstance(pinned_memory(0, "13.0", load), PinnedMemory)
    assert pinned_memory(0, "12.8", load) is None
    assert loaded == ["libcudart.so.13", "libcudart.so.12"]
    assert [record.__dict__["reason"] for record in caplog.records] == ["not found"]
