import gc

import numpy as np
import pytest

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.bundle.files import Bundle
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET, SEGMENT_BUCKET
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import Placement, RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32", "fp16"))


def _model(bundle: Bundle, precision: str) -> OnnxStepModel:
    return OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision=precision))


def test_model_has_placement_and_weights_bytes(bundle: Bundle) -> None:
    model = _model(bundle, "fp16")

    assert model.placement == Placement(device="cpu", precision="fp16", reason="configured")
    assert model.weights_bytes == bundle.weights_bytes("fp16")
    assert model.weights_bytes < bundle.weights_bytes("fp32")


@pytest.mark.parametrize(("precision", "float_type"), [("fp32", "float32"), ("fp16", "float16")])
def test_cache_bytes_includes_all_batches_and_spare_capacity(
    bundle: Bundle, precision: str, float_type: FloatType
) -> None:
    model = _model(bundle, precision)
    batches = [model.new_batch() for _ in range(2)]

    for batch in batches:
        batch.start(model.encode([[5, 2]]))
        batch.step(np.array([[1]]), np.array([[0]]), num_candidates=1)

    architecture = bundle.manifest.architecture
    one_position = 2 * architecture.num_decoder_layers * architecture.d_model * np.dtype(float_type).itemsize
    one_segment = one_position * (LENGTH_BUCKET + 8)  # slots and rounded source positions
    assert model.cache_bytes == 2 * SEGMENT_BUCKET * one_segment
    assert model.copied_bytes == (0, 0)


def test_deleted_batch_is_not_counted(bundle: Bundle) -> None:
    model = _model(bundle, "fp32")
    model.new_batch().start(model.encode([[5, 2]]))
    gc.collect()

    assert model.cache_bytes == 0
