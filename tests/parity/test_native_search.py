"""Plain beam search ranked by the C++ library against numpy, the reference: the same hypotheses, to the last bit."""

import random

import pytest

from service.bundle.files import open_bundle
from service.datatypes import Hypothesis, SearchConfig, Segment
from service.decoding.running_batch import RunningBatch
from service.errors import ConfigError
from service.runtime.native import NativeStepModel, open_step_model
from service.runtime.settings import RuntimeSettings
from tests.tiny_bundle import build_tiny_bundle

_NUM_SEGMENTS = 60
_MOST_AT_ONCE = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeStepModel:
    build_tiny_bundle(directory := tmp_path_factory.mktemp("bundle") / "tiny", precisions=("int8",))
    try:
        opened = open_step_model(open_bundle(directory), RuntimeSettings(device="cpu", engine="native"))
    except ConfigError as error:
        pytest.skip(str(error))
    assert isinstance(opened, NativeStepModel)
    return opened


class _NumpySearch:
    """The same network without its own ranking."""

    def __init__(self, model: NativeStepModel) -> None:
        self.limits, self.encode, self._model = model.limits, model.encode, model

    def new_batch(self) -> "_StepsAlone":
        return _StepsAlone(self._model)


class _StepsAlone:
    def __init__(self, model: NativeStepModel) -> None:
        batch = model.new_batch()
        self.start, self.step, self.drop = batch.start, batch.step, batch.drop
        self.cross_attention, self._batch = batch.cross_attention, batch

    @property
    def num_segments(self) -> int:
        return self._batch.num_segments


def _segments(seed: int, *, vocabulary_size: int, is_plain: bool) -> list[Segment]:
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    segments = []
    for _ in range(_NUM_SEGMENTS):
        beam_size = draw.choice([1, 2, 4, 4, 4, 5, 8])
        search = SearchConfig(
            beam_size=beam_size,
            num_hypotheses=draw.randint(1, beam_size),
            max_target_tokens=draw.randint(5, 20),
            min_target_tokens=draw.choice([0, 0, 5]),
            length_penalty=draw.choice([0.0, 0.6, 1.0]),
            coverage_penalty=draw.choice([0.0, 0.0, 0.2]),
            early_stopping=draw.random() < 0.3,
            no_repeat_ngram_size=0 if is_plain else draw.choice([0, 0, 2]),
        )
        source_ids = [draw.randrange(4, vocabulary_size) for _ in range(draw.randint(1, 15))]
        segments.append(Segment(source_ids=(*source_ids, 3), search=search))
    return segments


def _decode(batch: RunningBatch, segments: list[Segment], *, seed: int) -> dict[int, tuple[Hypothesis, ...]]:
    """Decode segments that join and leave as the seed has it."""
    draw, waiting = random.Random(seed), list(segments)  # noqa: S311 - not for secrets
    hypotheses: dict[int, tuple[Hypothesis, ...]] = {}
    while waiting or batch.num_segments:
        joining = (
            waiting[: draw.randint(0 if batch.num_segments else 1, 5)] if batch.num_segments < _MOST_AT_ONCE else []
        )
        if joining:
            batch.start(joining)
            del waiting[: len(joining)]
        hypotheses.update({ended.segment_id: ended.hypotheses for ended in batch.step().ended})
    return hypotheses


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_library_ranks_as_numpy_does(seed: int, is_plain: bool, model: NativeStepModel) -> None:
    segments = _segments(seed, vocabulary_size=model.limits.vocabulary.size, is_plain=is_plain)

    ranked = _decode(RunningBatch(model), segments, seed=seed)
    reference = _decode(RunningBatch(_NumpySearch(model)), segments, seed=seed)

    assert len(ranked) == _NUM_SEGMENTS
    assert ranked == reference
