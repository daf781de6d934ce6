"""Results of a segment are bit-identical alone and in a batch, regardless of the step at which it joins."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman_service.bundle.files import Bundle
from dragoman_service.datatypes import Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.step_model import EncodedSource, IntArray, StepModel
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.onnx_cuda.device import DeviceSource
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.batch_decoding import decode_all
from tests.fake_device import FakeDeviceModel, read
from tests.reference_step import library_or_skip
from tests.tiny_bundle import build_tiny_bundle

_NUM_CANDIDATES = 7
_TYPICAL_DIFFERENCE = 1e-5
"""Difference of log-probabilities if few values are rounded differently."""
_ROUNDED_APART = 0.1
"""Difference of log-probabilities after a value is rounded to another integer, because sums differ in the last bit."""
_WORDS = st.integers(4, 319)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A segment, and the tokens and parents of its rows in each of its steps."""

    source: tuple[int, ...]
    joins_at: int
    tokens: IntArray
    """[T, K]"""
    parents: IntArray
    """[T, K]"""

    @property
    def leaves_at(self) -> int:
        return self.joins_at + len(self.tokens)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    num_rows, num_steps = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Script(
        source=(*draw(st.lists(_WORDS, max_size=40)), 2),
        joins_at=draw(st.integers(0, 6)),
        tokens=rng.integers(4, 320, (num_steps, num_rows)),
        parents=rng.integers(0, num_rows, (num_steps, num_rows)),
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32", "fp16", "int8"))


@pytest.fixture(scope="module", params=["fp32", "fp16", "int8", "native", "device"])
def model(request: pytest.FixtureRequest, bundle: Bundle) -> StepModel:
    if request.param == "device":
        return FakeDeviceModel(bundle)
    return _native(bundle) if request.param == "native" else _graph(bundle, request.param)


def _graph(bundle: Bundle, precision: str) -> StepModel:
    return OnnxStepModel(bundle, RuntimeSettings(precision=precision))


def _native(bundle: Bundle) -> StepModel:
    library_or_skip()
    return open_step_model(bundle, RuntimeSettings(device="cpu", precision="int8", engine="native"))


def _widened(row: IntArray, num_rows: int) -> IntArray:
    """Add dead rows, which copy the first row."""
    return np.concatenate([row, np.repeat(row[:1], num_rows - len(row))])


def _play(model: StepModel, drawn: list[Script]) -> list[list[bytes]]:
    """Run scripts in one batch; return the bits of the results of each step of each script."""
    batch = model.new_batch()
    present: list[int] = []
    bits: list[list[bytes]] = [[] for _ in drawn]
    for now in range(max(script.leaves_at for script in drawn)):
        keep = [place for place, index in enumerate(present) if drawn[index].leaves_at > now]
        if len(keep) < len(present):
            keep = keep[::-1]  # any order will do
            batch.drop(keep)
            present = [present[place] for place in keep]
        new_indices = [index for index, script in enumerate(drawn) if script.joins_at == now]
        if new_indices:
            batch.start(model.encode([drawn[index].source for index in new_indices]))
            present += new_indices
        if not present:
            continue
        num_rows = max(drawn[index].tokens.shape[1] for index in present)
        step = [now - drawn[index].joins_at for index in present]
        tokens = [_widened(drawn[index].tokens[at], num_rows) for index, at in zip(present, step, strict=True)]
        parents = [_widened(drawn[index].parents[at], num_rows) for index, at in zip(present, step, strict=True)]
        output = batch.step(np.stack(tokens), np.stack(parents), num_candidates=_NUM_CANDIDATES)
        for place, index in enumerate(present):
            own = slice(drawn[index].tokens.shape[1])
            bits[index].append(output.log_probs[place, own].tobytes() + output.token_ids[place, own].tobytes())
    return bits


@settings(max_examples=25, deadline=None)
@given(st.lists(scripts(), min_size=2, max_size=6))
def test_scores_of_a_segment_are_equal_alone_and_in_a_batch(model: StepModel, drawn: list[Script]) -> None:
    together = _play(model, drawn)

    for script, bits in zip(drawn, together, strict=True):
        assert _play(model, [replace(script, joins_at=0)]) == [bits]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=12), st.integers(0, 99))
def test_encoded_source_is_equal_alone_and_in_a_batch(model: StepModel, lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sources = [(*rng.integers(4, 320, length).tolist(), 2) for length in lengths]

    together = model.encode(sources)

    for encoded, source in zip(together, sources, strict=True):
        (alone,) = model.encode([source])
        assert encoded.source_ids == source
        cross, lone_cross = _cross(encoded), _cross(alone)
        assert cross.ndim == 1 or cross.shape[2] == len(source)
        assert cross.flags.c_contiguous
        assert cross.tobytes() == lone_cross.tobytes()


def _cross(encoded: EncodedSource) -> NDArray[Any]:
    """Return the encoder output of a source; on a device, without padding."""
    if not isinstance(encoded.cross, DeviceSource):
        return np.asarray(encoded.cross)
    own = read(encoded.cross.group)[:, encoded.cross.index]
    return np.ascontiguousarray(own[:, :, : len(encoded.source_ids)])


def _decode(model: StepModel, segments: list[Segment], *, batch_size: int) -> list[Hypothesis]:
    return [ended.hypotheses[0] for ended in decode_all(model, segments, batch_size=batch_size)]


def _segments(count: int, seed: int) -> list[Segment]:
    rng = np.random.default_rng(seed)
    search = SearchConfig(beam_size=4, max_target_tokens=40)
    lengths = rng.integers(0, 40, count)
    return [Segment(source_ids=(*rng.integers(4, 320, length).tolist(), 2), search=search) for length in lengths]


def test_threads_can_share_a_model(model: StepModel) -> None:
    shares = [_segments(8, seed) for seed in range(4)]

    with ThreadPoolExecutor(4) as threads:
        actual = list(threads.map(lambda share: _decode(model, share, batch_size=4), shares))

    assert actual == [_decode(model, share, batch_size=4) for share in shares]


def test_intra_op_threads_do_not_change_translations(bundle: Bundle) -> None:
    segments = _segments(6, seed=3)
    one, two = (OnnxStepModel(bundle, RuntimeSettings(num_intra_op_threads=count)) for count in (1, 2))

    assert _decode(two, segments, batch_size=6) == _decode(one, segments, batch_size=6)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_low_latency_threads_do_not_change_translations(bundle: Bundle, precision: str) -> None:
    plain = OnnxStepModel(bundle, RuntimeSettings(precision=precision, num_low_latency_threads=1))
    model = OnnxStepModel(bundle, RuntimeSettings(precision=precision, num_low_latency_threads=2))
    segments = _segments(6, seed=5)
    expected = _decode(plain, segments, batch_size=3)

    alone = _decode(model, segments, batch_size=3)
    other = model.new_batch()
    other.start(model.encode([(5, 6, 2)]))
    with_another = _decode(model, segments, batch_size=3)

    assert model._sessions.low_latency_decoder is not None
    assert alone == expected
    assert with_another == expected


def test_model_has_the_limits_of_its_manifest(bundle: Bundle) -> None:
    model = OnnxStepModel(bundle, RuntimeSettings())

    assert (model.limits.vocabulary.size, model.limits.vocabulary.eos_id, model.limits.vocabulary.unk_id) == (320, 2, 3)
    assert (model.limits.max_source_tokens, model.limits.max_target_tokens) == (64, 64)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("is_calibrated", [True, False], ids=["fixed", "by-row"])
def test_scores_of_the_native_step_are_close_to_the_int8_graph(
    tmp_path: Path, norm: Literal["pre", "post"], is_calibrated: bool
) -> None:
    bundle = build_tiny_bundle(tmp_path / "tiny", norm=norm, is_calibrated=is_calibrated)
    rng = np.random.default_rng(1)
    sources = [(*rng.integers(4, 320, length).tolist(), 2) for length in (0, 9, 30)]
    batches = [model.new_batch() for model in (_graph(bundle, "int8"), _native(bundle))]
    for batch in batches:
        batch.start(_graph(bundle, "int8").encode(sources))
    worst = []

    for _ in range(20):
        tokens, parents = rng.integers(4, 320, (3, 4)), rng.integers(0, 4, (3, 4))
        scores = []
        for batch in batches:
            output = batch.step(tokens, parents, num_candidates=320)
            scores.append(np.take_along_axis(output.log_probs, np.argsort(output.token_ids), axis=-1))
        worst.append(np.abs(scores[0] - scores[1]).max(axis=-1))

    assert np.median(worst) <= _TYPICAL_DIFFERENCE
    assert np.max(worst) <= _ROUNDED_APART


def test_source_and_target_of_maximum_length_can_be_decoded(model: StepModel) -> None:
    batch = model.new_batch()
    batch.start(model.encode([[5] * (model.limits.max_source_tokens - 1) + [2]]))

    for _ in range(model.limits.max_target_tokens):
        output = batch.step(np.array([[5]]), np.array([[0]]), num_candidates=1)

    assert np.isfinite(output.log_probs).all()
