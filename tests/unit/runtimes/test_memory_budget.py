"""The estimated memory of a segment equals the size of its caches, and the available memory is that of the device."""

from typing import Any

import numpy as np
import pytest

from dragoman_service.bundle.files import Bundle
from dragoman_service.config import Settings
from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.model_loader import scheduling_on
from dragoman_service.runtimes.memory_budget import cache_memory
from dragoman_service.runtimes.onnx_cuda.device_batch import KEPT_LENGTHS
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.worker.messages import Loaded
from tests.fake_device import FakeDeviceModel
from tests.tiny_bundle import build_tiny_bundle

_GIB = 1 << 30


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32",))


def _memory(
    bundle: Bundle, *, weights_bytes: int = 0, free_bytes: int | None = 8 * _GIB, **settings: Any
) -> CacheMemory:
    manifest = bundle.manifest
    found = cache_memory(
        manifest.architecture,
        manifest.limits,
        "float32",
        RuntimeSettings(**settings),
        weights_bytes=weights_bytes,
        free_bytes=free_bytes,
    )
    assert found is not None
    return found


@pytest.mark.parametrize("num_rows", [1, 3])
def test_estimate_equals_the_caches_of_the_longest_segment(bundle: Bundle, num_rows: int) -> None:
    limits = bundle.manifest.limits
    model = FakeDeviceModel(bundle)
    batch = model.new_batch()
    batch.start(model.encode([[5] * (limits.max_source_tokens - 1) + [2]]))
    parents = np.arange(num_rows)[None]
    for _ in range(limits.max_target_tokens):  # hypotheses that share only BOS
        batch.step(np.full((1, num_rows), 5), parents, num_candidates=4)
    memory = _memory(bundle)
    logits = 3 * 4 * bundle.manifest.architecture.vocabulary_size
    source_bytes, row_bytes = (
        memory.source_bytes / 3,
        (memory.row_bytes - logits) / 2,
    )  # two layouts, and the encoder output

    num_parts = 2  # the segment and the zero part
    assert batch.cache_bytes == pytest.approx(num_parts * (source_bytes + num_rows * row_bytes), rel=0.01)
    assert batch.cache_bytes <= num_parts * (source_bytes + num_rows * row_bytes)


def test_available_bytes_is_bounded_by_free_memory_and_budget(bundle: Bundle) -> None:
    def available(**known: Any) -> int:
        return _memory(bundle, weights_bytes=1000, **known).available_bytes

    assert available(free_bytes=5 * _GIB) == 4 * _GIB
    assert available(free_bytes=None, gpu_memory_budget_bytes=3 * _GIB) == 2 * _GIB - 2000
    assert available(free_bytes=5 * _GIB, gpu_memory_budget_bytes=3 * _GIB) == 2 * _GIB - 2000
    assert available(free_bytes=2 * _GIB, gpu_memory_budget_bytes=3 * _GIB) == _GIB
    assert available(free_bytes=None, gpu_memory_budget_bytes=1) < 0


def test_cuda_graphs_need_memory_for_each_kept_length(bundle: Bundle) -> None:
    usual, captured = _memory(bundle), _memory(bundle, cuda_graphs=True)

    assert captured.source_bytes * 3 == usual.source_bytes * (KEPT_LENGTHS + 2)
    assert captured.row_bytes > usual.row_bytes


def test_unknown_free_memory_without_budget_returns_none(bundle: Bundle) -> None:
    manifest = bundle.manifest

    found = cache_memory(
        manifest.architecture, manifest.limits, "float32", RuntimeSettings(), weights_bytes=1, free_bytes=None
    )

    assert found is None


@pytest.mark.parametrize(
    ("memory", "segments", "num_records"),
    [(None, 32, 0), (CacheMemory(available_bytes=10**6, source_bytes=100, row_bytes=100), 128, 1)],
)
def test_batch_size_is_computed_from_cache_memory_and_logged(
    memory: CacheMemory | None, segments: int, num_records: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    loaded = Loaded(device="cuda", precision="fp16", weights_bytes=1, cache_memory=memory)

    assert scheduling_on(loaded, Settings(), num_replicas=1).max_batch_segments == segments
    assert len(caplog.records) == num_records
    for record in caplog.records:
        assert record.__dict__ | {"segment_bytes": 500, "batches": 2, "batch_segments": 128} == record.__dict__
