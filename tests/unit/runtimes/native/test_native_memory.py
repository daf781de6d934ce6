"""Memory of the native engine: ownership of encoder outputs, size of temporary values, failed allocations."""

import resource
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.errors import EngineError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.library import Library
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.reference_step import Decoder, LibraryBatch, library_or_skip
from tests.tiny_bundle import build_tiny_bundle

_EOS = 2
_PASSES = 256  # after which temporary memory can shrink
_STATUS = Path("/proc/self/status")


@pytest.fixture(scope="module")
def library() -> Library:
    return library_or_skip()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    build_tiny_bundle(directory := tmp_path_factory.mktemp("bundle") / "tiny", precisions=("int8",))
    return open_bundle(directory)


def _opened(bundle: Bundle) -> NativeStepModel:
    model = open_step_model(bundle, RuntimeSettings(device="cpu", precision="int8", engine="native"))
    assert isinstance(model, NativeStepModel)
    return model


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
        large = np.zeros(cross.size // 3 * length, np.float32)  # pages without memory, as long as nothing reads them

        with _address_space(64 << 20), pytest.raises(EngineError, match="native engine: out of memory"):
            library.call("batch_add", batch.handle, length, large.ctypes.data, large.size, True, None, 0)

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


def test_encoder_output_is_not_copied_and_lives_as_long_as_its_segment(bundle: Bundle, library: Library) -> None:
    model = _opened(bundle)
    batch = model.new_batch()
    sources = model.encode([[5, 6, _EOS], [7, _EOS]])
    address, alive = sources[0].cross.ctypes.data, weakref.ref(sources[0].cross)
    assert address % 64 == 0
    batch.start(sources)
    num_values = model.network.architecture.d_model * model.network.architecture.num_decoder_layers
    graph_layout = np.zeros((2 * num_values, 3), np.float32)

    sources[0].cross[:] = 7.0
    library.call("batch_cross", batch._handle, 0, graph_layout.ctypes.data)
    del sources

    assert (graph_layout == 7.0).all()
    assert alive() is not None
    batch.drop([1])
    assert alive() is None


def test_temporary_memory_is_counted_and_shrinks_once_after_large_steps(library: Library) -> None:
    decoder = Decoder.drawn(generator := np.random.default_rng(2), vocabulary_size=500)
    cross = decoder.cross(generator, 3)
    with LibraryBatch(decoder.packed(library)) as batch:

        def stepped(num_rows: int, num_candidates: int) -> int:
            batch.add(cross)
            batch.step(np.zeros((1, num_rows)), np.zeros((1, num_rows)), num_candidates)
            num_bytes = batch.num_bytes
            batch.keep([])
            return num_bytes

        small = {stepped(1, 4) for _ in range(2 * _PASSES)}
        large = stepped(200, 500)
        sizes = [stepped(1, 4) for _ in range(3 * _PASSES)]

        assert len(small) == 1
        assert large > 200 * 500 * 8
        assert sizes[0] > 200 * 500 * 8
        assert sum(before != after for before, after in pairwise(sizes)) == 1
        assert sizes[-1] < 2 * max(small)


def test_memory_of_the_encoder_is_counted_and_shrinks(bundle: Bundle, library: Library) -> None:
    model = _opened(bundle)
    batch = model.new_batch()
    batch.start(model.encode([[5, _EOS]]))
    batch.step(np.array([[1]]), np.array([[0]]), num_candidates=1)
    small, caches = model.network.scratch_bytes, batch.cache_bytes

    model.encode([[*range(4, 36), _EOS]] * 7)

    assert small < (large := model.network.scratch_bytes)
    assert model.cache_bytes == caches + large
    for _ in range(2 * _PASSES):
        model.encode([[5, _EOS]])
    assert model.network.scratch_bytes < large / 2
