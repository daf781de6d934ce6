"""PyTorch, uncached and cached, against the graphs at every precision, step by step over random reorders of rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from dragoman_export.evaluation.verification import score_at_once, score_cached, score_exported
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.architecture import layer_names
from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.step_model import FloatArray, IntArray, StepModel
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle, tiny_model, tiny_vocabulary

_FLOAT_TOLERANCE = 5e-5
"""Log-probabilities from float32 sums in another order; they go down to -15, whose last place is 1e-6."""

_HALF_TOLERANCE = 0.02
"""Log-probabilities after rounding to 16-bit floats between operators. A logit of 8 to 16 alone is off by up to 0.004,
and ONNX Runtime's CPU provider rounds less often than its CUDA provider, as it computes in float32 between casts."""

_HALF_CROSS_TOLERANCE = 0.005
"""Keys and values of the same, which are at most 4 here: half of their last place is 0.001."""

_INT8_TOLERANCE = 0.4
"""Log-probabilities of a network 32 wide after 8-bit rounding in each of its 24 products; the worst of all tokens."""

_INT8_MEAN_TOLERANCE = 0.06
"""The same on average over all tokens."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A network and its bundle."""

    reference: Transformer
    bundle: Bundle

    def graphs(self, precision: str) -> StepModel:
        return OnnxStepModel(self.bundle, RuntimeSettings(precision=precision))


@pytest.fixture(scope="module", params=["pre", "post"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    norm: Literal["pre", "post"] = request.param
    reference = tiny_model(len(tiny_vocabulary()), norm=norm)
    directory = tmp_path_factory.mktemp(norm) / "tiny"
    return Pair(
        reference=reference, bundle=build_tiny_bundle(directory, norm=norm, precisions=("fp32", "fp16", "int8"))
    )


@torch.inference_mode()
def _score_rows(reference: Transformer, source: list[int], rows: list[list[int]]) -> FloatArray:
    """Return what may follow each row [K, V]; rows begin with BOS and are equally long."""
    memory = reference.encode(torch.tensor([source]), None).expand(len(rows), -1, -1)
    logits = reference.decode(torch.tensor(rows), memory, None)[:, -1]
    return torch.log_softmax(logits, dim=-1).numpy()


def _by_token(token_ids: IntArray, log_probs: FloatArray) -> FloatArray:
    """Put candidates in the order of the vocabulary."""
    ordered = np.empty_like(log_probs)
    np.put_along_axis(ordered, token_ids, log_probs, axis=-1)
    return ordered


def _walk(pair: Pair, graphs: StepModel, seed: int) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Step three segments at random, changing the number of rows; yield graph's and reference's scores [B, K, V]."""
    rng = np.random.default_rng(seed)
    size = graphs.limits.vocabulary.size
    sources = [[*rng.integers(4, size, length).tolist(), graphs.limits.vocabulary.eos_id] for length in (0, 7, 20)]
    batch = graphs.new_batch()
    rows: list[list[list[int]]] = [[[]] for _ in sources]
    batch.start(graphs.encode(sources))
    for step in range(12):
        num_rows, num_parents = int(rng.integers(1, 6)), len(rows[0])
        parents = rng.integers(0, num_parents, (len(sources), num_rows))
        tokens = rng.integers(4, size, (len(sources), num_rows)) if step else np.full((len(sources), num_rows), 1)
        rows = [
            [[*old[parent], int(token)] for parent, token in zip(*new, strict=True)]
            for old, *new in zip(rows, parents, tokens, strict=True)
        ]
        output = batch.step(tokens, parents, num_candidates=size)
        expected = [_score_rows(pair.reference, source, own) for source, own in zip(sources, rows, strict=True)]
        yield _by_token(output.token_ids, output.log_probs), np.stack(expected)


@pytest.mark.parametrize("seed", range(3))
def test_float_graphs_score_random_beams_as_pytorch_does(pair: Pair, seed: int) -> None:
    for actual, expected in _walk(pair, pair.graphs("fp32"), seed):
        np.testing.assert_allclose(actual, expected, atol=_FLOAT_TOLERANCE, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_half_precision_graphs_stay_close(pair: Pair, seed: int) -> None:
    for actual, expected in _walk(pair, pair.graphs("fp16"), seed):
        np.testing.assert_allclose(actual, expected, atol=_HALF_TOLERANCE, rtol=0)


def test_the_encoder_in_half_precision_gives_the_keys_and_values_of_pytorch(pair: Pair) -> None:
    source = [7, 8, 9, 10, 2]
    session = onnxruntime.InferenceSession(pair.bundle.graph_paths("fp16")[0], providers=["CPUExecutionProvider"])

    actual = session.run(
        list(layer_names(("cross_key", "cross_value"), 2)),
        {"source_ids": np.array([[*source, 0, 0]]), "source_lengths": np.array([len(source)], dtype=np.int32)},
    )

    for values, expected in zip(actual, _cross_attention_inputs(pair.reference, source), strict=True):
        assert values.dtype == np.float16
        np.testing.assert_allclose(values[:, :, : len(source)], expected, atol=_HALF_CROSS_TOLERANCE, rtol=0)


@torch.inference_mode()
def _cross_attention_inputs(reference: Transformer, source: list[int]) -> list[FloatArray]:
    """Return key and value [1, H, S, D] of every decoder layer."""
    memory = reference.encode(torch.tensor([source]), None)
    blocks = [layer.get_submodule("cross_attention") for layer in reference.decoder.layers]
    projected = [block.get_submodule(part)(memory) for block in blocks for part in ("key", "value")]
    return [states.unflatten(-1, (reference.config.num_heads, -1)).transpose(1, 2).numpy() for states in projected]


@pytest.mark.parametrize("seed", range(3))
def test_integer_graphs_stay_close(pair: Pair, seed: int) -> None:
    for actual, expected in _walk(pair, pair.graphs("int8"), seed):
        error = np.abs(actual - expected)

        assert error.max() < _INT8_TOLERANCE
        assert error.mean() < _INT8_MEAN_TOLERANCE


def test_integer_graphs_that_keep_every_product_in_floats_score_as_pytorch_does(tmp_path: Path) -> None:
    kept = frozenset({ProductKind.ENCODER, ProductKind.DECODER})
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), kept=kept)
    pair = Pair(reference=tiny_model(len(tiny_vocabulary())), bundle=bundle)

    for actual, expected in _walk(pair, pair.graphs("int8"), seed=0):
        np.testing.assert_allclose(actual, expected, atol=_FLOAT_TOLERANCE, rtol=0)


def test_all_ways_to_score_a_given_translation_agree(pair: Pair) -> None:
    pairs = [([5, 6, 7, 2], [8, 9, 2]), ([9, 2], [4, 5, 6, 7, 8, 2])]
    uncached = list(score_at_once(pair.reference, pairs))

    for others in (score_cached(pair.reference, pairs), score_exported(pair.graphs("fp32"), pairs)):
        np.testing.assert_allclose(list(others), uncached, atol=_FLOAT_TOLERANCE, rtol=0)


def test_candidates_come_best_first_and_are_the_best(pair: Pair) -> None:
    graphs = pair.graphs("fp32")
    outputs = []
    for num_candidates in (5, graphs.limits.vocabulary.size):
        batch = graphs.new_batch()
        batch.start(graphs.encode([[7, 8, 2]]))
        outputs.append(batch.step(np.array([[1, 1]]), np.array([[0, 0]]), num_candidates=num_candidates))

    assert outputs[0].token_ids.shape == (1, 2, 5)
    assert (np.diff(outputs[1].log_probs) <= 0).all()
    assert np.array_equal(outputs[0].token_ids, outputs[1].token_ids[:, :, :5])
    assert np.exp(outputs[1].log_probs).sum(axis=-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_every_weight_is_stored_once(pair: Pair, kind: str, precision: str) -> None:
    path: Path = pair.bundle.directory / f"{kind}.{precision}.onnx"
    stored = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    large = [array.tobytes() for array in stored if array.size > 1000]

    assert len(set(large)) == len(large)
    if precision != "fp32":
        assert not [array for array in stored if array.dtype == np.float32 and array.size > 64 * 32]
