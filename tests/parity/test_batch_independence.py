"""A hypothesis on real graphs is bit-identical in any batch."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.datatypes import Hypothesis, SamplingConfig, SearchConfig, Segment
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.reference_step import library_or_skip
from tests.tiny_bundle import build_tiny_bundle

_WORDS = st.integers(4, 319)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    segment: Segment
    joins_at: int
    is_cancelled_at: int | None


_GRAPHS = ("fp32", "fp32, ssru", "int8", "int8, measured scales", "int8, ssru", "native, ssru", *ProductKind)


@pytest.fixture(scope="module", params=_GRAPHS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StepModel:
    """Return graphs of a precision, or int8 ones with measured scales that keep a kind of products in floats."""
    kept = frozenset([request.param]) & frozenset(ProductKind)
    precision, _, option = "int8, measured scales".partition(", ") if kept else request.param.partition(", ")
    engine: Literal["native", "onnxruntime"] = "native" if precision == "native" else "onnxruntime"
    if engine == "native":
        library_or_skip()
        precision = "int8"
    directory = tmp_path_factory.mktemp("bundle") / "tiny"
    bundle = build_tiny_bundle(
        directory,
        precisions=(precision,),
        is_calibrated=bool(option),
        kept=kept,
        decoder_type="ssru" if option == "ssru" else "self_attention",
    )
    return open_step_model(bundle, RuntimeSettings(precision=precision, device="cpu", engine=engine))


@st.composite
def searches(draw: st.DrawFn) -> SearchConfig:
    """Return options of a search of up to 30 tokens; one in four is drawn at random."""
    beam_size, longest = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    is_drawn = draw(st.sampled_from([True, False, False, False]))
    sampling = SamplingConfig(
        temperature=draw(st.sampled_from([0.5, 1.0, 2.0])),
        top_k=draw(st.sampled_from([None, 3, 20])),
        top_p=draw(st.sampled_from([0.7, 1.0])),
        seed=draw(st.integers(0, 99)),
    )
    return SearchConfig(
        beam_size=beam_size,
        num_hypotheses=beam_size if is_drawn else draw(st.integers(1, beam_size)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.5])),
        min_target_tokens=draw(st.integers(0, longest - 1)),
        max_target_tokens=longest,
        target_prefix=tuple(draw(st.lists(_WORDS, max_size=min(4, longest - 1)))),
        suppressed_tokens=frozenset(draw(st.sets(_WORDS, max_size=3))),
        no_repeat_ngram_size=draw(st.sampled_from([0, 0, 2, 3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        coverage_penalty=draw(st.sampled_from([0.0, 0.0, 0.4])),
        sampling=sampling if is_drawn else None,
        early_stopping=draw(st.booleans()),
        repetition_guard=not is_drawn and draw(st.booleans()),
    )


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    return Arrival(
        segment=Segment(
            source_ids=(*draw(st.lists(_WORDS, max_size=30)), 2),
            search=draw(searches()),
            wants_attention=draw(st.sampled_from([False, False, True])),
        ),
        joins_at=draw(st.integers(0, 8)),
        is_cancelled_at=draw(st.none() | st.integers(0, 40)),
    )


@settings(max_examples=12, deadline=None)
@given(st.lists(arrivals(), min_size=2, max_size=6))
def test_result_is_bit_identical_alone_and_with_segments_of_other_options(
    model: StepModel, drawn: list[Arrival]
) -> None:
    together = decode(model, drawn)

    for index, ended in together.items():
        alone = decode(model, [Arrival(segment=drawn[index].segment, joins_at=0, is_cancelled_at=None)])[0]
        assert replace(alone, segment_id=0) == replace(ended, segment_id=0)
        assert [_bits(hypothesis) for hypothesis in alone.hypotheses] == [
            _bits(hypothesis) for hypothesis in ended.hypotheses
        ]


def _bits(hypothesis: Hypothesis) -> bytes | None:
    """Return the attention, which the comparison of hypotheses ignores."""
    return None if hypothesis.attention is None else hypothesis.attention.tobytes()


def decode(model: StepModel, drawn: list[Arrival]) -> dict[int, EndedSegment]:
    """Run a batch that segments join and leave at their steps; return the ended segments by index."""
    indices: dict[int, int] = {}
    ended: dict[int, EndedSegment] = {}
    batch, turn = RunningBatch(model), 0
    while batch.num_segments or any(arrival.joins_at >= turn for arrival in drawn):
        joining = [index for index, arrival in enumerate(drawn) if arrival.joins_at == turn]
        if joining:
            indices.update(zip(batch.start([drawn[index].segment for index in joining]), joining, strict=True))
        batch.drop([handle for handle, index in indices.items() if drawn[index].is_cancelled_at == turn])
        indices = {handle: index for handle, index in indices.items() if drawn[index].is_cancelled_at != turn}
        if batch.num_segments:
            for segment in batch.step().ended:
                ended[indices.pop(segment.segment_id)] = segment
        turn += 1
    return ended
