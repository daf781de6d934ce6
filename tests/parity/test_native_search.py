"""Beam search ranked by the C++ library, compared with NumPy: hypotheses are bit-identical."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dragoman_export.bundle_extension import add_shortlist
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.beam_search import Interrupt, RankedRun
from dragoman_service.decoding.beam_state import BeamState
from dragoman_service.decoding.constraints import CandidateRules
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import ModelLimits, Placeholder
from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.parity.test_shortlist import shortlist
from tests.tiny_bundle import build_tiny_bundle

_PLACEHOLDERS = (4, 5, 6, 40, 41, *range(100, 200))
"""Token ids of sources and targets: many, so that they are often among the best candidates."""

_NUM_SEGMENTS = 60
_MAX_BATCH_SEGMENTS = 12


@pytest.fixture(scope="module", params=["whole vocabulary", "shortlist", "ssru"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeStepModel:
    directory = tmp_path_factory.mktemp("bundle") / "tiny"
    decoder_type = "ssru" if request.param == "ssru" else "self_attention"
    build_tiny_bundle(directory, precisions=("int8",), decoder_type=decoder_type)
    settings = RuntimeSettings(device="cpu", engine="native", shortlist=request.param == "shortlist")
    if settings.shortlist:
        add_shortlist(directory, listed := directory.with_name("listed"), shortlist(320, max_size=128))
        directory = listed
    try:
        opened = open_step_model(open_bundle(directory), settings)
    except ConfigError as error:
        pytest.skip(str(error))
    assert isinstance(opened, NativeStepModel)
    return opened


class _NumpySearch:
    """The same network without its own ranking."""

    def __init__(self, model: NativeStepModel) -> None:
        self.limits, self.encode, self._model = model.limits, model.encode, model

    def new_batch(self) -> "_StepBatch":
        return _StepBatch(self._model)


class _StepBatch:
    def __init__(self, model: NativeStepModel) -> None:
        batch = model.new_batch()
        self.start, self.step, self.drop = batch.start, batch.step, batch.drop
        self.cross_attention, self._batch = batch.cross_attention, batch

    @property
    def num_segments(self) -> int:
        return self._batch.num_segments


def _segments(seed: int, *, vocabulary_size: int, is_plain: bool, guarded_share: float = 0.5) -> list[Segment]:
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    segments = []
    for _ in range(_NUM_SEGMENTS):
        beam_size = draw.choice([1, 2, 4, 4, 4, 5, 8])
        search = SearchConfig(
            beam_size=beam_size,
            num_hypotheses=draw.randint(1, beam_size),
            max_target_tokens=draw.choice([draw.randint(5, 20), 40]),
            min_target_tokens=draw.choice([0, 0, 5]),
            length_penalty=draw.choice([0.0, 0.6, 1.0]),
            coverage_penalty=draw.choice([0.0, 0.0, 0.2]),
            early_stopping=draw.random() < 0.3,
            no_repeat_ngram_size=0 if is_plain else draw.choice([0, 0, 2]),
            repetition_guard=draw.random() < guarded_share,
        )
        source_ids = [draw.randrange(4, vocabulary_size) for _ in range(draw.randint(1, 15))]
        segments.append(Segment(source_ids=(*source_ids, 3), search=search))
    return segments


def _decode(
    batch: RunningBatch, segments: list[Segment], *, seed: int, max_seconds: float = 0.0
) -> dict[int, EndedSegment]:
    """Decode segments; a random number of them joins before each run of steps."""
    draw, waiting = random.Random(seed), list(segments)  # noqa: S311 - not for secrets
    results: dict[int, EndedSegment] = {}
    while waiting or batch.num_segments:
        most = draw.randint(0 if batch.num_segments else 1, 5) if batch.num_segments < _MAX_BATCH_SEGMENTS else 0
        joining = waiting[:most]
        if joining:
            batch.start(joining)
            del waiting[: len(joining)]
        results.update({ended.segment_id: ended for ended in batch.step(max_seconds=max_seconds).ended})
    return results


@pytest.mark.parametrize("placeholders", [(), _PLACEHOLDERS], ids=["plain", "placeholders"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_library_ranks_and_masks_like_numpy(
    is_plain: bool, placeholders: Sequence[int], model: NativeStepModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "limits", _with_placeholders(model.limits, placeholders))
    segments = _segments(0, vocabulary_size=model.limits.vocabulary.size, is_plain=is_plain)

    ranked = _decode(RunningBatch(model), segments, seed=0)
    ranked_in_runs = _decode(RunningBatch(model), segments, seed=0, max_seconds=60.0)
    reference = _decode(RunningBatch(_NumpySearch(model)), segments, seed=0)

    assert len(ranked) == _NUM_SEGMENTS
    assert ranked == ranked_in_runs == reference
    assert any(ended.degeneration is not None for ended in ranked.values())
    actual = [set(placeholders).intersection(_tokens(ranked[index].hypotheses)) for index in range(_NUM_SEGMENTS)]
    assert any(actual) is bool(placeholders)
    assert all(tokens <= set(segment.source_ids) for tokens, segment in zip(actual, segments, strict=True))


def test_run_ends_with_a_segment_in_time_or_when_interrupted(model: NativeStepModel) -> None:
    interrupt = Interrupt()
    batch = RunningBatch(model, interrupt=interrupt)
    batch.start([Segment(source_ids=(5, 6, 3), search=SearchConfig(max_target_tokens=9, min_target_tokens=9))])

    numbers = [len(batch.step().earlier_steps_s)]
    interrupt.value = 1
    numbers.append(len(batch.step(max_seconds=60.0).earlier_steps_s))
    interrupt.value = 0
    assert batch.num_segments == 1
    numbers.append(len(batch.step(max_seconds=60.0).earlier_steps_s))

    assert batch.num_segments == 0
    assert numbers == [0, 0, 6]


@pytest.mark.parametrize("seed", range(2))
def test_placeholders_that_enter_no_beam_do_not_change_results(seed: int, model: NativeStepModel) -> None:
    segments = _segments(seed, vocabulary_size=model.limits.vocabulary.size, is_plain=True, guarded_share=0.0)
    observed = _ObservedSearch(model)
    expected = _decode(RunningBatch(observed), segments, seed=seed)
    unused = set(range(4, model.limits.vocabulary.size)) - observed.taken
    assert unused

    observed.limits = _with_placeholders(model.limits, sorted(unused))

    assert _decode(RunningBatch(observed), segments, seed=seed) == expected


class _ObservedSearch(_NumpySearch):
    """The same network with its own ranking; records the tokens that enter a beam."""

    def __init__(self, model: NativeStepModel) -> None:
        super().__init__(model)
        self.taken: set[int] = set()

    def new_batch(self) -> "_ObservedBatch":
        return _ObservedBatch(self._model, self.taken)


class _ObservedBatch(_StepBatch):
    def __init__(self, model: NativeStepModel, taken: set[int]) -> None:
        super().__init__(model)
        self._taken = taken

    def search(
        self, state: BeamState, *, rules: CandidateRules, max_seconds: float, interrupt: Interrupt | None
    ) -> RankedRun:
        ranked = self._batch.search(state, rules=rules, max_seconds=max_seconds, interrupt=interrupt)
        for rows in ranked.rows:
            self._taken.update(rows.tokens.ravel().tolist())
        return ranked


def _with_placeholders(limits: ModelLimits, tokens: Sequence[int]) -> ModelLimits:
    """Return limits with placeholders that have equal ids in sources and targets."""
    placeholders = tuple(Placeholder(token, token) for token in tokens)
    return replace(limits, vocabulary=replace(limits.vocabulary, placeholders=placeholders))


def _tokens(hypotheses: tuple[Hypothesis, ...]) -> set[int]:
    return {token for hypothesis in hypotheses for token in hypothesis.token_ids}
