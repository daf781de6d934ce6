"""Searches with a shortlist, compared with a NumPy reference and with searches over the whole vocabulary."""

from dataclasses import replace

import numpy as np
import pytest

from dragoman_export.bundle_extension import add_shortlist
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import Hypothesis, SamplingConfig, Segment
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.errors import ConfigError
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.runtimes.shortlist import Shortlist
from tests.batch_decoding import decode_all
from tests.fakes import FIRST_WORD, ToyModel, make_segment
from tests.shortlisted import ShortlistedModel
from tests.tiny_bundle import build_tiny_bundle

NUM_WORDS = 252
V = FIRST_WORD + NUM_WORDS

_LOG_PROB_TOLERANCE = 1e-5
"""Sums of exponentials in float32 and in float64 differ by less."""

SEGMENTS = [
    make_segment(5, 6, beam_size=4, max_target_tokens=12),
    make_segment(7, beam_size=1, max_target_tokens=9, no_repeat_ngram_size=1),
    make_segment(9, 8, 7, beam_size=2, num_hypotheses=2, max_target_tokens=12, sampling=SamplingConfig(seed=3)),
    make_segment(200, 5, 6, beam_size=6, num_hypotheses=3, max_target_tokens=12),
]


def shortlist(size: int = V, *, max_size: int) -> Shortlist:
    """Return a shortlist in which the translations of each source token are its 80 successors."""
    offsets = np.arange(size)[:, None] + np.arange(80)
    shares = np.zeros(size, np.float32)
    shares[ToyModel().limits.vocabulary.eos_id] = 1
    return Shortlist(
        threshold=0.01,
        max_size=max_size,
        begins=np.arange(0, 80 * size + 1, 80, dtype=np.int32),
        token_ids=(offsets % size).astype(np.int32).ravel(),
        shares=shares,
        probabilities=np.full(80 * size, 0.5, np.float16),
    )


def decode(model: StepModel, *segments: Segment) -> list[tuple[Hypothesis, ...]]:
    return [ended.hypotheses for ended in decode_all(model, segments)]


@pytest.fixture(scope="module")
def natives(tmp_path_factory: pytest.TempPathFactory) -> tuple[NativeStepModel, NativeStepModel, Shortlist]:
    """Return a random model on the native engine without and with a shortlist, and the shortlist."""
    directory = tmp_path_factory.mktemp("bundles")
    build_tiny_bundle(directory / "plain", precisions=("int8",))
    add_shortlist(directory / "plain", directory / "listed", lists := shortlist(320, max_size=128))
    bundle, settings = open_bundle(directory / "listed"), RuntimeSettings(device="cpu", engine="native")
    try:
        plain, listed = (
            open_step_model(bundle, settings.model_copy(update={"shortlist": has_lists})) for has_lists in (False, True)
        )
    except ConfigError as error:
        pytest.skip(str(error))
    assert isinstance(plain, NativeStepModel)
    assert isinstance(listed, NativeStepModel)
    return plain, listed, lists


def test_native_step_excludes_unlisted_tokens_from_the_softmax(
    natives: tuple[NativeStepModel, NativeStepModel, Shortlist],
) -> None:
    plain, listed, lists = natives

    expected, actual = decode(ShortlistedModel(plain, lists), *SEGMENTS), decode(listed, *SEGMENTS)

    for one, other in zip(expected, actual, strict=True):
        assert [hypothesis.token_ids for hypothesis in one] == [hypothesis.token_ids for hypothesis in other]
        for first, second in zip(one, other, strict=True):
            assert first.token_log_probs == pytest.approx(second.token_log_probs, abs=_LOG_PROB_TOLERANCE)


def test_native_translation_does_not_depend_on_shortlists_of_other_segments(
    natives: tuple[NativeStepModel, NativeStepModel, Shortlist],
) -> None:
    _, listed, _ = natives

    together = decode(listed, *SEGMENTS, *SEGMENTS[::-1])

    assert together == [decode(listed, segment)[0] for segment in (*SEGMENTS, *SEGMENTS[::-1])]


def test_shortlist_of_the_whole_vocabulary_does_not_change_results() -> None:
    model = ToyModel(num_words=NUM_WORDS)
    everything = replace(shortlist(max_size=V), threshold=1.0, shares=np.ones(V, np.float32))

    plain, listed = decode(model, *SEGMENTS), decode(ShortlistedModel(model, everything), *SEGMENTS)

    for one, other in zip(plain, listed, strict=True):
        assert [hypothesis.token_ids for hypothesis in one] == [hypothesis.token_ids for hypothesis in other]
        assert [hypothesis.score for hypothesis in one] == pytest.approx([hypothesis.score for hypothesis in other])


def test_targets_contain_only_listed_tokens() -> None:
    lists = shortlist(max_size=128)
    model = ShortlistedModel(ToyModel(num_words=NUM_WORDS), lists)

    for segment, hypotheses in zip(SEGMENTS, decode(model, *SEGMENTS), strict=True):
        listed = set(lists.of(segment.source_ids).tolist())
        assert all(listed.issuperset(hypothesis.token_ids) for hypothesis in hypotheses)


def test_translation_does_not_depend_on_shortlists_of_other_segments() -> None:
    model = ShortlistedModel(ToyModel(num_words=NUM_WORDS), shortlist(max_size=128))

    together = decode(model, *SEGMENTS)

    assert together == [decode(model, segment)[0] for segment in SEGMENTS]


def test_prefix_can_contain_unlisted_tokens() -> None:
    model = ShortlistedModel(ToyModel(num_words=NUM_WORDS), shortlist(max_size=128))
    unlisted = 240
    segment = make_segment(5, beam_size=4, max_target_tokens=12, target_prefix=(unlisted, unlisted))

    ((hypothesis,),) = decode(model, segment)

    assert hypothesis.token_ids[:2] == (unlisted, unlisted)
    assert hypothesis.token_log_probs[:2] == (0, 0)
