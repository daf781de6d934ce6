"""Memory of the native engine: failed allocations."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dragoman_service.errors import EngineError
from dragoman_service.runtimes.native.library import Library
from tests.reference_step import Decoder, LibraryBatch, native_library

_STATUS = Path("/proc/self/status")


@pytest.fixture(scope="module")
def library() -> Library:
    if isinstance(found := native_library(), str):
        pytest.skip(found)
    return found


@contextmanager
def _address_space(more_bytes: int) -> Iterator[None]:
    """Limit the memory of this process to its current size plus some bytes."""
    (size,) = (int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith("VmSize:"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size * 1024 + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not _STATUS.exists(), reason="needs Linux")
def test_failed_allocation_raises_and_the_batch_continues(library: Library) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(1))
    cross, length = decoder.cross(generator, 3), 1 << 20
    with LibraryBatch(decoder.packed(library), [cross]) as batch:
        expected = batch.step([[3]], [[0]], 5)
        size = cross.size // 3 * length  # 1 GiB; the library does not read it, as it cannot allocate its copy

        with _address_space(64 << 20), pytest.raises(EngineError, match="native engine: out of memory"):
            library.call("batch_add", batch.handle, length, cross.ctypes.data, size, True, None, 0)

        batch.keep([])
        batch.add(cross)
        assert [array.tobytes() for array in batch.step([[3]], [[0]], 5)] == [array.tobytes() for array in expected]


@pytest.mark.skipif(not _STATUS.exists(), reason="needs Linux")
def test_batch_rejects_steps_after_a_failed_one(library: Library) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(1), vocabulary_size=50_000)
    packed = decoder.packed(library)
    with LibraryBatch(packed, [decoder.cross(generator, 3) for _ in range(3)]) as batch:
        rows, outputs = np.zeros((3, 1000), np.int64), np.zeros(1)  # the library allocates its own lists first
        arguments = rows.ctypes.data, rows.ctypes.data, None, 50_000, 1, outputs.ctypes.data, outputs.ctypes.data

        with _address_space(64 << 20), pytest.raises(EngineError, match="native engine: out of memory"):
            library.call("batch_step", batch.handle, 1000, *arguments)

        with pytest.raises(EngineError, match="an earlier step of the batch failed"):
            batch.step([[3]] * 3, [[0]] * 3, 1)
