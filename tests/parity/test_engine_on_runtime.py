"""The promise of the engine on real graphs: a hypothesis does not depend on its company, to the last bit."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.datatypes import Hypothesis, SearchConfig, Segment
from service.decoding.engine import Engine
from service.decoding.step_model import StepModel
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle

_WORDS = st.integers(4, 319)


@dataclass(frozen=True, kw_only=True)
class Arrival:
    segment: Segment
    joins_at: int
    is_cancelled_at: int | None


@pytest.fixture(scope="module", params=["fp32", "int8"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StepModel:
    bundle = build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny")
    return OnnxStepModel(bundle, RuntimeSettings(precision=request.param))


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    beam_size, longest = draw(st.integers(1, 6)), draw(st.integers(1, 30))
    search = SearchConfig(
        beam_size=beam_size,
        num_hypotheses=draw(st.integers(1, beam_size)),
        length_penalty_alpha=draw(st.sampled_from([0.0, 0.6, 1.5])),
        min_target_tokens=draw(st.integers(0, longest - 1)),
        max_target_tokens=longest,
    )
    return Arrival(
        segment=Segment(source_ids=(*draw(st.lists(_WORDS, max_size=30)), 2), search=search),
        joins_at=draw(st.integers(0, 8)),
        is_cancelled_at=draw(st.none() | st.integers(0, 12)),
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(arrivals(), min_size=2, max_size=6))
def test_a_hypothesis_is_the_same_alone_and_beside_others_with_other_options(
    model: StepModel, company: list[Arrival]
) -> None:
    together = decode(model, company)

    for index, hypotheses in together.items():
        alone = Arrival(segment=company[index].segment, joins_at=0, is_cancelled_at=None)
        assert decode(model, [alone]) == {0: hypotheses}


def decode(model: StepModel, company: list[Arrival]) -> dict[int, tuple[Hypothesis, ...]]:
    """Run one batch that segments join and leave as they say; return what ended, by index."""
    indices: dict[int, int] = {}
    ended: dict[int, tuple[Hypothesis, ...]] = {}
    engine, turn = Engine(model), 0
    while engine.num_segments or any(arrival.joins_at >= turn for arrival in company):
        joining = [index for index, arrival in enumerate(company) if arrival.joins_at == turn]
        if joining:
            indices.update(zip(engine.start([company[index].segment for index in joining]), joining, strict=True))
        engine.drop([handle for handle, index in indices.items() if company[index].is_cancelled_at == turn])
        indices = {handle: index for handle, index in indices.items() if company[index].is_cancelled_at != turn}
        if engine.num_segments:
            for segment in engine.step().ended:
                ended[indices.pop(segment.handle)] = segment.hypotheses
        turn += 1
    return ended
