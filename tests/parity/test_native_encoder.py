"""The C++ encoder, compared with the encoder graph and between batches, threads and instruction sets."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_service.bundle.architecture import Architecture
from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.errors import EngineError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.library import Library, NativeNetwork
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.reference_step import INSTRUCTION_SETS, library_or_skip
from tests.tiny_bundle import build_tiny_bundle

_SETTINGS = RuntimeSettings(device="cpu", precision="int8")
_LENGTHS = (3, 15, 16, 17, 33, 64, 1)
_EOS = 2
_BLOCK = 16

Array = NDArray[np.float32]


@pytest.fixture(
    scope="module",
    params=[("pre", {}), ("post", {"is_calibrated": True}), ("pre", {"is_calibrated": True, "levels": 127})],
    ids=["pre-by-row", "post-8-bits", "pre-7-bits"],
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    directory = tmp_path_factory.mktemp("bundle") / "tiny"
    norm: Literal["pre", "post"]
    norm, scales = request.param
    build_tiny_bundle(directory, precisions=("int8",), norm=norm, **scales)
    bundle = open_bundle(directory)
    if "levels" in scales:
        weights = bundle.int8_weights("int8")
        assert weights is not None
        assert weights.encoder is not None
        assert any(scale and scale.levels == 127 for scale in weights.encoder.activations.values())
    return bundle


@pytest.fixture(params=INSTRUCTION_SETS)
def network(request: pytest.FixtureRequest, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> NativeNetwork:
    library = library_or_skip()
    if request.param not in library.instruction_sets:
        pytest.skip(f"the CPU has no {request.param}")
    monkeypatch.setattr(Library, "instruction_sets", (request.param,))
    model = open_step_model(bundle, _SETTINGS.model_copy(update={"engine": "native"}))
    assert isinstance(model, NativeStepModel)
    return model.network


def _sources(bundle: Bundle, *, seed: int = 0) -> list[tuple[int, ...]]:
    rng, size = np.random.default_rng(seed), bundle.manifest.architecture.vocabulary_size
    return [(*rng.integers(4, size, length - 1).tolist(), _EOS) for length in _LENGTHS]


def _as_graph(cross: Array, length: int, shape: Architecture) -> Array:
    """Return keys and values [L, 2, H, S, D] of the library's layout."""
    layers, heads, width = shape.num_decoder_layers, shape.num_heads, shape.d_model
    size, padded = width // heads, -(-length // _BLOCK) * _BLOCK
    rows = cross.reshape(layers, -1)
    blocks = rows[:, : padded * width].reshape(layers, padded // _BLOCK, heads, size, _BLOCK)
    keys = blocks.transpose(0, 2, 1, 4, 3).reshape(layers, heads, padded, size)[:, :, :length]
    values = rows[:, padded * width :].reshape(layers, length, heads, size).transpose(0, 2, 1, 3)
    return np.stack((keys, values), axis=1)


def test_encoder_output_is_close_to_the_graph(bundle: Bundle, network: NativeNetwork) -> None:
    sources, shape = _sources(bundle), bundle.manifest.architecture
    expected = OnnxStepModel(bundle, _SETTINGS).encode(sources)

    encoded = network.encode(sources, num_threads=1)

    for own, other, source in zip(encoded, expected, sources, strict=True):
        assert own.source_ids == source
        reference = other.cross.reshape(shape.num_decoder_layers, 2, shape.num_heads, len(source), -1)
        difference = np.abs(_as_graph(own.cross, len(source), shape) - reference)
        # Most values differ only by float rounding. An 8-bit value rounded in the other direction changes others.
        assert np.median(difference) < 1e-5
        assert difference.max() < 0.3 * np.abs(reference).max()


def test_encoder_output_does_not_depend_on_batch_or_threads(bundle: Bundle, network: NativeNetwork) -> None:
    sources = _sources(bundle)
    together = [encoded.cross.tobytes() for encoded in network.encode(sources, num_threads=1)]

    for num_threads in (1, 2, 3):
        reversed_ = network.encode(sources[::-1], num_threads=num_threads)
        assert [encoded.cross.tobytes() for encoded in reversed_[::-1]] == together
        for source, expected in zip(sources, together, strict=True):
            assert network.encode([source], num_threads=num_threads)[0].cross.tobytes() == expected


def test_several_threads_encode_at_the_same_time(bundle: Bundle, network: NativeNetwork) -> None:
    sources = _sources(bundle)
    expected = [encoded.cross.tobytes() for encoded in network.encode(sources, num_threads=1)]

    with ThreadPoolExecutor(3) as pool:
        for encoded in pool.map(lambda num_threads: network.encode(sources, num_threads=num_threads), (1, 2, 2) * 4):
            assert [each.cross.tobytes() for each in encoded] == expected


def test_encoder_output_does_not_depend_on_instruction_set(
    bundle: Bundle, network: NativeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    best = open_step_model(bundle, _SETTINGS.model_copy(update={"engine": "native"}))
    sources = _sources(bundle)

    encoded: Any = network.encode(sources, num_threads=1)

    for own, other in zip(encoded, best.encode(sources), strict=True):
        assert own.cross.tobytes() == other.cross.tobytes()


def test_sources_out_of_range_are_rejected(bundle: Bundle, network: NativeNetwork) -> None:
    limit, size = bundle.manifest.limits.max_source_tokens, bundle.manifest.architecture.vocabulary_size
    for source, message in (
        ([4] * (limit + 1), "source.* positions"),
        ([], "source.* positions"),
        ([size], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
    ):
        with pytest.raises(EngineError, match=message):
            network.encode([source], num_threads=1)
