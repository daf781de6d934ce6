import numpy as np
import pytest

from service.decoding.constraints import CandidateRules
from service.decoding.step_model import StepOutput, VocabularySpec
from tests.fakes import BOS, EOS, FIRST_WORD, PAD, UNK

VOCABULARY = VocabularySpec(size=100, pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK)


def make_output(*token_ids: int) -> StepOutput:
    log_probs = -np.arange(1.0, len(token_ids) + 1, dtype=np.float32)
    return StepOutput(log_probs=log_probs[None, None], token_ids=np.array([[token_ids]]))


def test_special_tokens_are_never_taken() -> None:
    output = make_output(PAD, BOS, UNK, EOS, FIRST_WORD)

    allowed = CandidateRules(VOCABULARY).apply(output, forbids_eos=np.array([False]))

    assert allowed.tolist() == [[[-np.inf, -np.inf, -np.inf, -4.0, -5.0]]]


def test_eos_is_forbidden_only_to_segments_that_are_too_short() -> None:
    output = make_output(EOS, FIRST_WORD)
    both = StepOutput(log_probs=np.repeat(output.log_probs, 2, 0), token_ids=np.repeat(output.token_ids, 2, 0))

    allowed = CandidateRules(VOCABULARY).apply(both, forbids_eos=np.array([True, False]))

    assert allowed[:, 0].tolist() == [[-np.inf, -2.0], [-1.0, -2.0]]


def test_the_model_s_arrays_are_left_alone() -> None:
    output = make_output(PAD, EOS)

    CandidateRules(VOCABULARY).apply(output, forbids_eos=np.array([True]))

    assert output.log_probs.tolist() == [[[-1.0, -2.0]]]


@pytest.mark.parametrize(("beam_size", "expected"), [(1, 5), (4, 8), (200, 100)])
def test_candidates_leave_room_for_the_beam_eos_and_the_forbidden(beam_size: int, expected: int) -> None:
    assert CandidateRules(VOCABULARY).num_candidates(beam_size) == expected


def test_a_vocabulary_may_use_one_id_twice_or_lack_one() -> None:
    vocabulary = VocabularySpec(size=100, pad_id=EOS, bos_id=-1, eos_id=EOS, unk_id=UNK)

    allowed = CandidateRules(vocabulary).apply(make_output(EOS, UNK, 99), forbids_eos=np.array([False]))

    assert allowed.tolist() == [[[-1.0, -np.inf, -3.0]]]
