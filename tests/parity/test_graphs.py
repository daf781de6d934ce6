"""Networks of many architectures: PyTorch without and with a cache, graphs, and the native engine."""

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from dragoman_export.evaluation.verification import score_at_once, score_cached, score_exported
from dragoman_export.importers.bundle import read_network
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.architecture import layer_names
from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.step_model import FloatArray, IntArray, StepModel
from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.library import BackendUnsupportedError, check_architecture
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.reference_step import library_or_skip
from tests.tiny_bundle import build_tiny_bundle, tiny_model, tiny_vocabulary

# log-probabilities from float32 sums in another order; they go down to -25, whose last place is 2e-6
_FLOAT_TOLERANCE, _BEAM_TOLERANCE = 2e-5, 5e-5
# largest difference after rounding to 16-bit floats between operators: a logit of 8 to 16 is off by up to 0.004
_HALF_TOLERANCE = 0.02
# largest and mean difference after 8-bit rounding in each of the 24 products of a network 32 wide
_INT8_TOLERANCE, _INT8_MEAN_TOLERANCE = 0.4, 0.06
# mean differences as a share of the spread of all log-probabilities, between int8 engines because sums in another order
# round differently
_HALF_SHARE, _INT8_SHARE, _NATIVE_SHARE = 0.01, 0.04, 0.02
# keys and values, which are at most 4, in 16-bit floats: half of their last place is 0.001
_HALF_CROSS_TOLERANCE = 0.005

_PAIRS = [([5, 6, 7, 2], [8, 9, 2]), ([9, 2], [4, 5, 6, 7, 8, 2]), (list(range(20, 40)), list(range(40, 70)))]

_AXES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "norm": [{"norm": "pre"}, {"norm": "post"}],
    "norm_kind": [{}, {"norm_kind": "rms"}],
    "norm_epsilon": [{}, {"norm_epsilon": 0.05}],
    "norms": [{}, {"embedding_norm": True}, {"final_norm": True, "embedding_norm": True}, {"final_norm": False}],
    "activation": [{"activation": name} for name in ("relu", "gelu", "swish", "swiglu")],
    "heads": [{}, {"num_kv_heads": 1}, {"num_kv_heads": 2}],
    "head_dim": [{}, {"head_dim": 24}],
    "positions": [
        {},
        {"sinusoid_layout": "halves", "position_offset": 1},
        {"sinusoid_layout": "fairseq", "position_offset": 2},
        {"positions": "learned", "max_positions": 64, "position_offset": 2},
        {"positions": "learned", "max_positions": 64},
        {"positions": "rotary"},
        {"positions": "none"},
    ],
    "embeddings": [{}, {"scale_embeddings": False}],
    "tables": [{}, {"tied_embeddings": "decoder", "source_vocabulary_size": 333}, {"tied_embeddings": "none"}],
    "bias": [{}, {"projection_bias": True}],
    "start": [{}, {"decoder_start_id": 0}],
    "decoder_type": [{}, {"decoder_type": "ssru"}],
    "depth": [{}, {"num_encoder_layers": 3, "num_decoder_layers": 1}],
}

_FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "paper": {"norm": "post"},
    "pre-norm": {},
    "marian": {
        "norm": "post",
        "activation": "swish",
        "sinusoid_layout": "halves",
        "projection_bias": True,
        "decoder_start_id": 0,
        "tied_embeddings": "decoder",
        "source_vocabulary_size": 333,
    },
    "m2m100": {"activation": "relu", "sinusoid_layout": "fairseq", "position_offset": 2, "decoder_start_id": 2},
    "bart": {
        "norm": "post",
        "activation": "gelu",
        "embedding_norm": True,
        "scale_embeddings": False,
        "positions": "learned",
        "max_positions": 64,
        "position_offset": 2,
        "projection_bias": True,
        "decoder_start_id": 2,
    },
    "ssru": {
        "decoder_type": "ssru",
        "norm": "post",
        "sinusoid_layout": "fairseq",
        "projection_bias": True,
        "decoder_start_id": 0,
    },
    "ssru, pre-norm": {"decoder_type": "ssru", "num_decoder_layers": 3},
    "modern": {
        "norm_kind": "rms",
        "norm_epsilon": 1e-3,
        "activation": "swiglu",
        "positions": "rotary",
        "num_kv_heads": 2,
        "head_dim": 24,
        "num_encoder_layers": 3,
        "num_decoder_layers": 1,
        "tied_embeddings": "none",
    },
}
_NATIVE_FAMILIES = ("paper", "pre-norm", "marian", "m2m100", "bart", "ssru", "ssru, pre-norm")


def _pairwise() -> Iterator[dict[str, Any]]:
    """Yield combinations that contain every pair of values of different axes, each the best of 50 random ones."""
    draw = random.Random(1)  # noqa: S311 - no secret
    missing = {
        frozenset({(one, i), (other, j)})
        for one, other in itertools.combinations(_AXES, 2)
        for i in range(len(_AXES[one]))
        for j in range(len(_AXES[other]))
    }
    while missing:
        drawn = [{name: draw.randrange(len(values)) for name, values in _AXES.items()} for _ in range(50)]
        first = dict(min(map(sorted, missing)))
        rows = [{**row, **first} for row in drawn]
        covered = [{frozenset(pair) for pair in itertools.combinations(row.items(), 2)} & missing for row in rows]
        chosen, features = max(zip(rows, covered, strict=True), key=lambda each: len(each[1]))
        missing -= features
        yield {field: value for name, i in chosen.items() for field, value in _AXES[name][i].items()}


_VARIANTS = [
    *(pytest.param(variant, id=name) for name, variant in _FAMILIES.items()),
    *(pytest.param(variant, id=str(i), marks=pytest.mark.slow) for i, variant in enumerate(_pairwise())),
]


@pytest.fixture(scope="module", params=_VARIANTS)
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"num_heads": 4, **request.param}


@pytest.fixture(scope="module")
def reference(variant: dict[str, Any]) -> Transformer:
    return tiny_model(len(tiny_vocabulary()), **variant)


@pytest.fixture(scope="module")
def bundle(variant: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    directory, precisions = tmp_path_factory.mktemp("bundle") / "tiny", ("fp32", "fp16", "int8")
    is_calibrated = variant["num_heads"] == 4
    return build_tiny_bundle(
        directory, precisions=precisions, is_calibrated=is_calibrated, calibration=_PAIRS, **variant
    )


# networks of the paper and with pre-norm, whose int8 activations have one scale per row
_PLAIN = pytest.mark.parametrize("variant", [{"num_heads": 2, "norm": norm} for norm in ("pre", "post")], indirect=True)


def _graphs(bundle: Bundle, precision: str) -> OnnxStepModel:
    return OnnxStepModel(bundle, RuntimeSettings(precision=precision))


@torch.inference_mode()
def _score_rows(reference: Transformer, source: list[int], rows: list[list[int]]) -> FloatArray:
    """Return log-probabilities of the next token of each row [K, V]; rows are equally long."""
    memory = reference.encode(torch.tensor([source]), None).expand(len(rows), -1, -1)
    logits = reference.decode(torch.tensor(rows), memory, None)[:, -1]
    return torch.log_softmax(logits, dim=-1).numpy()


def _by_token(token_ids: IntArray, log_probs: FloatArray) -> FloatArray:
    """Sort candidates, best first, by token id."""
    assert (np.diff(log_probs) <= 0).all()
    ordered = np.empty_like(log_probs)
    np.put_along_axis(ordered, token_ids, log_probs, axis=-1)
    return ordered


def _walk(reference: Transformer, graphs: StepModel, seed: int) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Step three segments over random tokens, reorders and numbers of rows.

    Yields the log-probabilities of the graph and of PyTorch [B, K, V].
    """
    rng = np.random.default_rng(seed)
    size, start = graphs.limits.vocabulary.size, reference.config.start_id
    sources = [[*rng.integers(4, size, length).tolist(), graphs.limits.vocabulary.eos_id] for length in (0, 7, 20)]
    batch = graphs.new_batch()
    rows: list[list[list[int]]] = [[[]] for _ in sources]
    batch.start(graphs.encode(sources))
    for step in range(12):
        num_rows, num_parents = int(rng.integers(1, 6)), len(rows[0])
        parents = rng.integers(0, num_parents, (len(sources), num_rows))
        tokens = rng.integers(4, size, (len(sources), num_rows)) if step else np.full((len(sources), num_rows), start)
        rows = [
            [[*old[parent], int(token)] for parent, token in zip(*new, strict=True)]
            for old, *new in zip(rows, parents, tokens, strict=True)
        ]
        output = batch.step(tokens, parents, num_candidates=size)
        expected = [_score_rows(reference, source, own) for source, own in zip(sources, rows, strict=True)]
        yield _by_token(output.token_ids, output.log_probs), np.stack(expected)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_float_graphs_equal_pytorch_over_random_beams(reference: Transformer, bundle: Bundle, seed: int) -> None:
    for actual, expected in _walk(reference, _graphs(bundle, "fp32"), seed):
        np.testing.assert_allclose(actual, expected, atol=_BEAM_TOLERANCE, rtol=0)


@_PLAIN
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_rounded_graphs_stay_close_over_random_beams(reference: Transformer, bundle: Bundle, seed: int) -> None:
    for actual, expected in _walk(reference, _graphs(bundle, "fp16"), seed):
        np.testing.assert_allclose(actual, expected, atol=_HALF_TOLERANCE, rtol=0)
    for actual, expected in _walk(reference, _graphs(bundle, "int8"), seed):
        error = np.abs(actual - expected)
        assert error.max() < _INT8_TOLERANCE
        assert error.mean() < _INT8_MEAN_TOLERANCE


def test_given_translations_have_equal_log_probs(reference: Transformer, bundle: Bundle) -> None:
    at_once = list(score_at_once(reference, _PAIRS))

    cached = list(score_cached(reference, _PAIRS))
    fp32, fp16, int8 = (list(score_exported(_graphs(bundle, name), _PAIRS)) for name in ("fp32", "fp16", "int8"))

    np.testing.assert_allclose(cached, at_once, atol=_FLOAT_TOLERANCE, rtol=0)
    np.testing.assert_allclose(fp32, at_once, atol=_FLOAT_TOLERANCE, rtol=0)
    for actual, tolerance in ((fp16, _HALF_SHARE), (int8, _INT8_SHARE)):
        assert np.abs(np.array(actual) - at_once).mean() < tolerance * np.std(at_once)


def test_native_engine_equals_the_int8_graph_or_names_the_unsupported_option(
    request: pytest.FixtureRequest, bundle: Bundle
) -> None:
    library_or_skip()
    settings = RuntimeSettings(device="cpu", precision="int8", engine="native")
    try:
        check_architecture(bundle.manifest.architecture)
    except BackendUnsupportedError as error:
        assert request.node.callspec.id not in _NATIVE_FAMILIES
        with pytest.raises(ConfigError, match=re.escape(str(error))):
            open_step_model(bundle, settings)
        return
    expected = np.array(list(score_exported(_graphs(bundle, "int8"), _PAIRS)))

    model = open_step_model(bundle, settings)

    assert isinstance(model, NativeStepModel)
    assert model.network.has_encoder
    actual = np.array(list(score_exported(model, _PAIRS)))
    assert np.abs(actual - expected).mean() < _NATIVE_SHARE * np.std(expected)


@torch.inference_mode()
def test_attention_graph_equals_pytorch(reference: Transformer, bundle: Bundle) -> None:
    source, target, config = [5, 6, 7, 2], [8, 9], reference.config
    batch = (graphs := _graphs(bundle, "fp32")).new_batch()
    batch.start(graphs.encode([source]))
    entered: list[Any] = []
    for layer in reference.decoder.layers:
        attention = layer.get_submodule("cross_attention")
        attention.register_forward_pre_hook(lambda module, given: entered.append((module, *given[:2])))

    actual = batch.cross_attention(0, [*target, 2])

    memory = reference.encode(torch.tensor([source]), None)
    reference.decode(torch.tensor([[config.start_id, *target]]), memory, None)
    assert len(actual) == len(entered) == config.num_decoder_layers
    for weights, (attention, states, (key, _)) in zip(actual, entered, strict=True):
        queries = attention.query(states)[0].unflatten(-1, (config.num_heads, -1)).transpose(0, 1)  # [H, T, D]
        keys = torch.stack([key[0, head % config.num_key_heads] for head in range(config.num_heads)])  # [H, S, D]
        expected = torch.softmax(queries @ keys.transpose(-2, -1) / config.head_size**0.5, dim=-1)
        np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_network_of_a_bundle_is_the_exported_one(reference: Transformer, bundle: Bundle) -> None:
    network = read_network(bundle, "fp32")

    again = Transformer(network.config).eval()
    again.load_state_dict({name: torch.tensor(array) for name, array in network.weights.items()})

    actual, expected = (list(score_at_once(model, _PAIRS)) for model in (again, reference))
    np.testing.assert_array_equal(actual, expected)


@torch.inference_mode()
@_PLAIN
def test_half_precision_encoder_has_the_keys_and_values_of_pytorch(reference: Transformer, bundle: Bundle) -> None:
    source = [7, 8, 9, 10, 2]
    session = onnxruntime.InferenceSession(bundle.graph_paths("fp16")[0], providers=["CPUExecutionProvider"])

    actual = session.run(
        list(layer_names(("cross_key", "cross_value"), 2)),
        {"source_ids": np.array([[*source, 0, 0]]), "source_lengths": np.array([len(source)], dtype=np.int32)},
    )

    memory = reference.encode(torch.tensor([source]), None)
    blocks = [layer.get_submodule("cross_attention") for layer in reference.decoder.layers]
    projected = [block.get_submodule(part)(memory) for block in blocks for part in ("key", "value")]
    for values, states in zip(actual, projected, strict=True):
        expected = states.unflatten(-1, (reference.config.num_heads, -1)).transpose(1, 2)  # [1, H, S, D]
        assert values.dtype == np.float16
        np.testing.assert_allclose(values[:, :, : len(source)], expected, atol=_HALF_CROSS_TOLERANCE, rtol=0)


@_PLAIN
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_every_weight_is_stored_once(bundle: Bundle, kind: str, precision: str) -> None:
    path = bundle.directory / f"{kind}.{precision}.onnx"
    stored = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    large = [array.tobytes() for array in stored if array.size > 1000]

    assert len(set(large)) == len(large)
    if precision != "fp32":
        assert not [array for array in stored if array.dtype == np.float32 and array.size > 64 * 32]


def test_int8_graphs_that_keep_all_products_in_floats_equal_pytorch(tmp_path: Path) -> None:
    kept = frozenset({ProductKind.ENCODER, ProductKind.DECODER})
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("int8",), kept=kept)

    for actual, expected in _walk(tiny_model(len(tiny_vocabulary())), _graphs(bundle, "int8"), seed=0):
        np.testing.assert_allclose(actual, expected, atol=_BEAM_TOLERANCE, rtol=0)


@pytest.mark.parametrize(("num_kv_heads", "share"), [(4, 1), (2, 2), (1, 4)])
def test_shared_key_heads_reduce_the_cache(tmp_path: Path, num_kv_heads: int, share: int) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("fp32",), num_heads=4, num_kv_heads=num_kv_heads)
    model = _graphs(bundle, "fp32")
    batch = model.new_batch()

    encoded = model.encode([[5, 6, 7, 2]])
    batch.start(encoded)
    batch.step(np.array([[1]]), np.array([[0]]), num_candidates=1)

    layers, keys_and_values, source_tokens, d_model, bytes_each = 2, 2, 4, 32, 4
    assert encoded[0].cross.nbytes == layers * keys_and_values * source_tokens * d_model * bytes_each // share
    segments, slots, source_room = 8, 32, 8  # capacity of a batch with a single short segment
    assert model.cache_bytes == (
        layers * keys_and_values * segments * (slots + source_room) * d_model * bytes_each // share
    )
