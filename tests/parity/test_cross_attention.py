"""The attention graph against PyTorch: equal weights, independent of other segments and of padding."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from dragoman_export.model.transformer import Transformer
from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.step_model import FloatArray, StepModel
from dragoman_service.errors import BundleError
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle, tiny_model, tiny_vocabulary

_FLOAT_TOLERANCE = 2e-6
"""Weights are at most 1, whose unit in the last place is 1.2e-7; the order of summation differs."""

_HALF_TOLERANCE = 0.002
"""Weights after operations on 16-bit floats, which have 11 significant bits."""

_INT8_TOLERANCE = 0.05
"""Weights after products of 8-bit integers."""

_SOURCES = [[5, 6, 7, 2], [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 2], [2]]
_TARGETS = [[30, 31, 2], [40, 41, 42, 43, 44, 45, 46, 2], [2]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A network and its bundle."""

    reference: Transformer
    bundle: Bundle

    def model(self, precision: str) -> StepModel:
        return OnnxStepModel(self.bundle, RuntimeSettings(device="cpu", precision=precision))


@pytest.fixture(scope="module", params=["pre", "post"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    norm: Literal["pre", "post"] = request.param
    reference = tiny_model(len(tiny_vocabulary()), norm=norm)
    directory = tmp_path_factory.mktemp(norm) / "tiny"
    return Pair(
        reference=reference, bundle=build_tiny_bundle(directory, norm=norm, precisions=("fp32", "fp16", "int8"))
    )


@torch.inference_mode()
def _expected(reference: Transformer, source: list[int], target: list[int]) -> FloatArray:
    """Return the weights [L, H, T, S] of PyTorch, computed from the inputs of its cross-attention blocks."""
    entered: list[tuple[Tensor, Tensor]] = []
    blocks = [layer.get_submodule("cross_attention") for layer in reference.decoder.layers]

    def remember(_: nn.Module, arguments: tuple[Tensor, tuple[Tensor, Tensor], Tensor | None]) -> None:
        entered.append((arguments[0], arguments[1][0]))

    hooks = [block.register_forward_pre_hook(remember) for block in blocks]
    reference.decode(torch.tensor([[1, *target[:-1]]]), reference.encode(torch.tensor([source]), None), None)
    for hook in hooks:
        hook.remove()
    num_heads = reference.config.num_heads
    weights = []
    for block, (states, key) in zip(blocks, entered, strict=True):
        query = block.get_submodule("query")(states)[0].unflatten(-1, (num_heads, -1)).transpose(0, 1)  # [H, T, D]
        scores = query @ key[0].transpose(-2, -1) / reference.config.head_size**0.5
        weights.append(torch.softmax(scores, dim=-1))
    return torch.stack(weights).numpy()


def _found(model: StepModel) -> list[FloatArray]:
    """Return the weights of all targets, with their sources in one batch."""
    batch = model.new_batch()
    batch.start(model.encode(_SOURCES))
    return [batch.cross_attention(segment, target) for segment, target in enumerate(_TARGETS)]


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", _FLOAT_TOLERANCE), ("fp16", _HALF_TOLERANCE), ("int8", _INT8_TOLERANCE)]
)
def test_weights_equal_those_of_pytorch(pair: Pair, precision: str, tolerance: float) -> None:
    for weights, source, target in zip(_found(pair.model(precision)), _SOURCES, _TARGETS, strict=True):
        np.testing.assert_allclose(weights, _expected(pair.reference, source, target), atol=tolerance, rtol=0)
        assert weights.dtype == np.float32
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_weights_do_not_depend_on_the_other_segments(pair: Pair, precision: str) -> None:
    model = pair.model(precision)

    for weights, source, target in zip(_found(model), _SOURCES, _TARGETS, strict=True):
        batch = model.new_batch()
        batch.start(model.encode([source]))
        assert np.array_equal(batch.cross_attention(0, target), weights)


def test_attention_does_not_change_steps(pair: Pair) -> None:
    model, outputs = pair.model("int8"), []
    for has_attention in (False, True):
        batch = model.new_batch()
        batch.start(model.encode(_SOURCES[:2]))
        for token_ids in ([[1], [1]], [[30], [40]]):
            outputs.append(batch.step(np.array(token_ids), np.zeros((2, 1), dtype=np.int64), num_candidates=5))
            if has_attention:
                batch.cross_attention(1, _TARGETS[1])
                batch.cross_attention(0, _TARGETS[0])

    for before, after in zip(outputs[:2], outputs[2:], strict=True):
        assert np.array_equal(before.log_probs, after.log_probs)


def test_attention_uses_the_new_index_of_a_segment_after_others_are_dropped(pair: Pair) -> None:
    model = pair.model("fp32")
    batch = model.new_batch()
    batch.start(model.encode(_SOURCES))
    expected = batch.cross_attention(1, _TARGETS[1])

    batch.drop([2, 1])

    assert np.array_equal(batch.cross_attention(1, _TARGETS[1]), expected)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graph_ignores_padding(pair: Pair, precision: str) -> None:
    session = onnxruntime.InferenceSession(pair.bundle.attention_path(precision), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    shapes = {"key": (2, 2, 9, 16), "value": (2, 2, 9, 16)}
    cross = {
        tensor.name: rng.standard_normal(shapes[tensor.name.split("_")[1].split(".")[0]]).astype(np.float32)
        for tensor in session.get_inputs()
        if tensor.name.startswith("cross")
    }
    targets = np.array([[1, 30, 31, 32, 33], [1, 40, 0, 0, 0]])
    together = session.run(None, {"token_ids": targets, "source_lengths": np.array([9, 4], dtype=np.int32), **cross})

    own = {name: array[1:, :, :4] for name, array in cross.items()}
    alone = session.run(None, {"token_ids": targets[1:, :2], "source_lengths": np.array([4], dtype=np.int32), **own})

    for padded, exact in zip(together, alone, strict=True):
        np.testing.assert_allclose(padded[1:, :, :2, :4], exact, atol=_FLOAT_TOLERANCE, rtol=0)
        assert (padded[1, :, :, 4:] == 0).all()


def test_attention_of_bundle_without_the_graph_is_rejected(pair: Pair) -> None:
    model = OnnxStepModel(_without_attention(pair.bundle), RuntimeSettings(device="cpu"))
    batch = model.new_batch()
    batch.start(model.encode(_SOURCES))

    batch.step(np.full((3, 1), 1), np.zeros((3, 1), dtype=np.int64), num_candidates=3)
    with pytest.raises(BundleError, match=r"precisions\.int8\.attention is None, expected a graph"):
        batch.cross_attention(0, _TARGETS[0])


def test_attention_works_after_the_files_are_removed(pair: Pair, tmp_path: Path) -> None:
    directory = tmp_path / "bundle"
    shutil.copytree(pair.bundle.directory, directory)
    model = OnnxStepModel(Bundle(directory=directory, manifest=pair.bundle.manifest), RuntimeSettings(device="cpu"))
    shutil.rmtree(directory)
    batch = model.new_batch()
    batch.start(model.encode(_SOURCES))

    assert batch.cross_attention(0, _TARGETS[0]).shape == (2, 2, 3, 4)


def test_missing_graph_file_is_rejected_while_loading(pair: Pair, tmp_path: Path) -> None:
    directory = tmp_path / "bundle"
    shutil.copytree(pair.bundle.directory, directory, ignore=shutil.ignore_patterns("attention.*"))

    with pytest.raises(BundleError, match=r"attention\.int8\.onnx: graph is .*No such file"):
        OnnxStepModel(Bundle(directory=directory, manifest=pair.bundle.manifest), RuntimeSettings(device="cpu"))


def test_threads_can_share_the_graph(pair: Pair) -> None:
    model = pair.model("int8")

    with ThreadPoolExecutor(4) as threads:
        actual = list(threads.map(lambda _: _found(model), range(8)))

    for weights in actual[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(weights, actual[0], strict=True))


def _without_attention(bundle: Bundle) -> Bundle:
    """Return a bundle of an older exporter."""
    files = {name: files.model_copy(update={"attention": None}) for name, files in bundle.manifest.precisions.items()}
    return Bundle(directory=bundle.directory, manifest=bundle.manifest.model_copy(update={"precisions": files}))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graph_shares_its_weights_with_the_decoder(pair: Pair, precision: str) -> None:
    decoder = pair.bundle.graph_paths(precision)[1]
    shared, own = (_external_arrays(path) for path in (decoder, pair.bundle.attention_path(precision)))

    assert own
    assert own < shared  # the last feed-forward block and the projection are only in the decoder


def _external_arrays(graph: Path) -> set[tuple[str, ...]]:
    """Return file, offset and length of the external arrays of a graph."""
    arrays = onnx.load(graph, load_external_data=False).graph.initializer
    return {tuple(entry.value for entry in array.external_data) for array in arrays if array.external_data}
