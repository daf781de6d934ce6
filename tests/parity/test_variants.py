"""Architectures other than the paper's: PyTorch at once, PyTorch with a cache, float32 and int8 graphs, and beams."""

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman_export.evaluation.verification import score_at_once, score_cached, score_exported
from dragoman_export.importers.bundle import read_network
from dragoman_export.model.transformer import Transformer
from dragoman_service.bundle.architecture import Architecture
from dragoman_service.bundle.files import Bundle
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import EncodedSource, FloatArray, IntArray, ModelLimits, StepModel, StepOutput
from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.library import BackendUnsupportedError, check_architecture
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.fakes import make_segment
from tests.reference_step import native_library
from tests.tiny_bundle import build_tiny_bundle, tiny_model, tiny_vocabulary

_FLOAT_TOLERANCE = 2e-5
"""Log-probabilities from float32 sums in another order; they go down to -25, whose last place is 2e-6."""

_INT8_TOLERANCE = 0.04
"""Mean difference of log-probabilities after 8-bit rounding in some 20 products, as a share of their spread."""

_HALF_TOLERANCE = 0.01
"""The same after rounding to 16-bit floats between operators."""

_NATIVE_TOLERANCE = 0.02
"""The same between two int8 engines: where sums in another order fall to the other side of a middle, all that follows
differs by a rounding."""

_SAME_SCORE = 1e-3
"""Sums of some twenty log-probabilities."""

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
    "depth": [{}, {"num_encoder_layers": 3, "num_decoder_layers": 1}],
}

_FAMILIES: Mapping[str, Mapping[str, Any]] = {
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
        "positions": "learned",
        "max_positions": 64,
        "position_offset": 2,
        "embedding_norm": True,
        "scale_embeddings": False,
        "projection_bias": True,
        "decoder_start_id": 2,
    },
    "modern": {
        "norm_kind": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "num_kv_heads": 2,
        "norm_epsilon": 1e-3,
        "tied_embeddings": "none",
        "head_dim": 24,
        "num_encoder_layers": 3,
        "num_decoder_layers": 1,
    },
}


_NATIVE_FAMILIES = ("marian", "m2m100", "bart")


def _pairwise() -> Iterator[dict[str, Any]]:
    """Yield combinations in which any two values of different axes meet, each the best of some that are drawn."""
    draw = random.Random(1)  # noqa: S311 - no secret
    missing = {
        frozenset({(one, i), (other, j)})
        for one, other in itertools.combinations(_AXES, 2)
        for i in range(len(_AXES[one]))
        for j in range(len(_AXES[other]))
    }
    while missing:
        drawn = [{name: draw.randrange(len(values)) for name, values in _AXES.items()} for _ in range(50)]
        first = next(iter(sorted(map(sorted, missing))))
        covered = [
            {frozenset(pair) for pair in itertools.combinations({**row, **dict(first)}.items(), 2)} & missing
            for row in drawn
        ]
        row, features = max(zip(drawn, covered, strict=True), key=lambda each: len(each[1]))
        missing -= features
        chosen = {**row, **dict(first)}
        yield {field: value for name, i in chosen.items() for field, value in _AXES[name][i].items()}


_VARIANTS = [
    *(pytest.param(variant, id=name) for name, variant in _FAMILIES.items()),
    *(pytest.param(variant, id=str(i), marks=pytest.mark.slow) for i, variant in enumerate(_pairwise())),
]


@pytest.fixture(params=_VARIANTS)
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"num_heads": 4, **request.param}


@pytest.fixture
def reference(variant: dict[str, Any]) -> Transformer:
    return tiny_model(len(tiny_vocabulary()), **variant)


@pytest.fixture
def bundle(variant: dict[str, Any], tmp_path: Path) -> Bundle:
    precisions = ("fp32", "fp16", "int8")
    return build_tiny_bundle(
        tmp_path / "tiny", precisions=precisions, is_calibrated=True, calibration=_PAIRS, **variant
    )


def _graphs(bundle: Bundle, precision: str) -> OnnxStepModel:
    return OnnxStepModel(bundle, RuntimeSettings(precision=precision))


def test_all_ways_to_compute_a_variant_agree(reference: Transformer, bundle: Bundle) -> None:
    at_once = list(score_at_once(reference, _PAIRS))

    cached = list(score_cached(reference, _PAIRS))
    fp32, fp16, int8 = (list(score_exported(_graphs(bundle, name), _PAIRS)) for name in ("fp32", "fp16", "int8"))

    np.testing.assert_allclose(cached, at_once, atol=_FLOAT_TOLERANCE, rtol=0)
    np.testing.assert_allclose(fp32, at_once, atol=_FLOAT_TOLERANCE, rtol=0)
    for actual, tolerance in ((fp16, _HALF_TOLERANCE), (int8, _INT8_TOLERANCE)):
        assert np.abs(np.array(actual) - at_once).mean() < tolerance * np.std(at_once)


def test_beams_of_the_graph_are_those_of_pytorch(reference: Transformer, bundle: Bundle) -> None:
    graphs = _graphs(bundle, "fp32")

    actual, expected = _decoded(graphs), _decoded(_TorchModel(reference, graphs.limits))

    assert [ids for ids, _ in actual] == [ids for ids, _ in expected]
    np.testing.assert_allclose([s for _, s in actual], [s for _, s in expected], atol=_SAME_SCORE)


def test_the_native_engine_computes_a_variant_or_says_what_it_lacks(
    request: pytest.FixtureRequest, bundle: Bundle
) -> None:
    if isinstance(library := native_library(), str):
        pytest.skip(library)
    settings = RuntimeSettings(device="cpu", precision="int8", engine="native")
    if lack := _lack(bundle.manifest.architecture):
        assert request.node.callspec.id not in _NATIVE_FAMILIES
        with pytest.raises(ConfigError, match=re.escape(lack)):
            open_step_model(bundle, settings)
        return
    expected = np.array(list(score_exported(_graphs(bundle, "int8"), _PAIRS)))

    model = open_step_model(bundle, settings)
    actual = np.array(list(score_exported(model, _PAIRS)))

    assert isinstance(model, NativeStepModel)
    assert model.network.has_encoder
    assert np.abs(actual - expected).mean() < _NATIVE_TOLERANCE * np.std(expected)


def _lack(architecture: Architecture) -> str:
    """Return what the library does not compute of a network."""
    try:
        check_architecture(architecture)
    except BackendUnsupportedError as error:
        return str(error)
    return ""


def test_the_attention_graph_says_what_pytorch_computes(reference: Transformer, bundle: Bundle) -> None:
    model = _graphs(bundle, "fp32")
    batch = model.new_batch()
    batch.start(model.encode([[5, 6, 7, 2]]))

    weights = batch.cross_attention(0, [8, 9, 2])

    np.testing.assert_allclose(weights, _cross_attention(reference, [5, 6, 7, 2], [8, 9]), atol=1e-5)


def test_a_network_read_from_its_bundle_is_the_same(reference: Transformer, bundle: Bundle) -> None:
    network = read_network(bundle, "fp32")

    again = Transformer(network.config).eval()
    again.load_state_dict({name: torch.tensor(array) for name, array in network.weights.items()})

    actual, expected = (list(score_at_once(model, _PAIRS)) for model in (again, reference))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(("num_kv_heads", "share"), [(4, 1), (2, 2), (1, 4)])
def test_caches_are_smaller_by_the_heads_of_keys_that_are_shared(tmp_path: Path, num_kv_heads: int, share: int) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", precisions=("fp32",), num_heads=4, num_kv_heads=num_kv_heads)
    model = _graphs(bundle, "fp32")
    batch = model.new_batch()

    encoded = model.encode([[5, 6, 7, 2]])
    batch.start(encoded)
    batch.step(np.array([[1]]), np.array([[0]]), num_candidates=1)

    layers, keys_and_values, source_tokens, d_model, bytes_each = 2, 2, 4, 32, 4
    assert encoded[0].cross.nbytes == layers * keys_and_values * source_tokens * d_model * bytes_each // share
    segments, slots, source_room = 8, 32, 8  # rooms of a batch with a single short segment
    rooms = segments * (slots + source_room)
    assert model.cache_bytes == layers * keys_and_values * rooms * d_model * bytes_each // share


class _TorchModel:
    """A step model that computes every row again at every step."""

    def __init__(self, model: Transformer, limits: ModelLimits) -> None:
        self.model, self.limits = model, limits

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        return [
            EncodedSource(source_ids=tuple(ids), cross=self.model.encode(torch.tensor([ids]), None).numpy())
            for ids in source_ids
        ]

    def new_batch(self) -> "_TorchBatch":
        return _TorchBatch(self.model)


class _TorchBatch:
    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._sources: list[EncodedSource] = []
        self._rows: list[list[list[int]]] = []
        self.cache_bytes = 0

    @property
    def num_segments(self) -> int:
        return len(self._sources)

    def start(self, sources: Sequence[EncodedSource]) -> None:
        self._sources += sources
        self._rows += [[] for _ in sources]

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        log_probs, tokens = [], []
        for segment, source in enumerate(self._sources):
            old = self._rows[segment] or [[]] * token_ids.shape[1]
            self._rows[segment] = [
                [*old[parent], token]
                for parent, token in zip(parents[segment], token_ids[segment].tolist(), strict=True)
            ]
            rows = torch.tensor(self._rows[segment])
            memory = torch.from_numpy(source.cross).expand(len(rows), -1, -1)
            scores = torch.log_softmax(self._model.decode(rows, memory, None)[:, -1], dim=-1)
            best = scores.topk(int(np.max(num_candidates)), dim=-1)
            log_probs.append(best.values.numpy())
            tokens.append(best.indices.numpy())
        return StepOutput(log_probs=np.stack(log_probs), token_ids=np.stack(tokens))

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        raise NotImplementedError

    def drop(self, keep: Sequence[int]) -> None:
        self._sources = [self._sources[index] for index in keep]
        self._rows = [self._rows[index] for index in keep]


@torch.inference_mode()
def _decoded(model: StepModel) -> list[tuple[tuple[int, ...], float]]:
    """Return the tokens and scores of the best four translations of each source."""
    engine = RunningBatch(model)
    sources = [source for source, _ in _PAIRS]
    segments = [make_segment(*ids[:-1], beam_size=4, num_hypotheses=4, max_target_tokens=20) for ids in sources]
    order, hypotheses = engine.start(segments), {}
    while engine.num_segments:
        hypotheses.update({ended.segment_id: ended.hypotheses for ended in engine.step().ended})
    return [(each.token_ids, each.score) for segment in order for each in hypotheses[segment]]


@torch.inference_mode()
def _cross_attention(reference: Transformer, source: list[int], target: list[int]) -> np.ndarray[Any, Any]:
    """Return the weights [L, H, T, S] of all layers."""
    config, entered = reference.config, []
    hooks = [
        layer.get_submodule("cross_attention").register_forward_pre_hook(lambda _, given: entered.append(given[:2]))
        for layer in reference.decoder.layers
    ]
    inputs = torch.tensor([[config.start_id, *target]])
    reference.decode(inputs, reference.encode(torch.tensor([source]), None), None)
    for hook in hooks:
        hook.remove()
    weights = []
    for layer, (states, (key, _)) in zip(reference.decoder.layers, entered, strict=True):
        query = layer.get_submodule("cross_attention.query")(states)[0]
        heads = query.unflatten(-1, (config.num_heads, -1)).transpose(0, 1)
        keys = [key[0, head % config.num_key_heads] for head in range(config.num_heads)]
        scores = heads @ torch.stack(keys).transpose(-2, -1) / config.head_size**0.5
        weights.append(torch.softmax(scores, dim=-1).numpy())
    return np.stack(weights)
