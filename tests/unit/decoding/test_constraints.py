from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dragoman_service.datatypes import SearchConfig
from dragoman_service.decoding.constraints import CandidateRules, SearchPlan, TargetRules
from dragoman_service.decoding.step_model import Placeholder, StepOutput, VocabularySpec
from tests.fakes import BOS, EOS, FIRST_WORD, PAD, UNK

VOCABULARY = VocabularySpec(size=100, pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK)


def make_output(*token_ids: int) -> StepOutput:
    log_probs = -np.arange(1.0, len(token_ids) + 1, dtype=np.float32)
    return StepOutput(log_probs=log_probs[None, None], token_ids=np.array([[token_ids]]))


def test_special_tokens_are_forbidden() -> None:
    output = make_output(PAD, BOS, UNK, EOS, FIRST_WORD)

    allowed = CandidateRules(VOCABULARY).apply(output, forbids_eos=np.array([False]))

    assert allowed.tolist() == [[[-np.inf, -np.inf, -np.inf, -4.0, -5.0]]]


def test_eos_is_forbidden_for_targets_that_are_too_short() -> None:
    output = make_output(EOS, FIRST_WORD)
    both = StepOutput(log_probs=np.repeat(output.log_probs, 2, 0), token_ids=np.repeat(output.token_ids, 2, 0))

    allowed = CandidateRules(VOCABULARY).apply(both, forbids_eos=np.array([True, False]))

    assert allowed[:, 0].tolist() == [[-np.inf, -2.0], [-1.0, -2.0]]


def test_arrays_of_the_model_are_not_changed() -> None:
    output = make_output(PAD, EOS)

    CandidateRules(VOCABULARY).apply(output, forbids_eos=np.array([True]))

    assert output.log_probs.tolist() == [[[-1.0, -2.0]]]


PLACEHOLDERS = replace(VOCABULARY, placeholders=(Placeholder(90, 12), Placeholder(91, 10), Placeholder(92, 11)))


@pytest.mark.parametrize(
    ("source_ids", "prefix", "expected"),
    [
        ((50, EOS), (), [True, True, True]),
        ((50, 91, 91, EOS), (), [False, True, True]),
        ((90, EOS), (11,), [True, False, False]),
        ((10, 11, 12, EOS), (90,), [True, True, True]),
    ],
)
def test_placeholders_are_masked_unless_source_or_prefix_contains_them(
    source_ids: tuple[int, ...], prefix: tuple[int, ...], expected: list[bool]
) -> None:
    rules = CandidateRules(PLACEHOLDERS)

    assert rules.placeholder_ids.tolist() == [10, 11, 12]
    assert rules.find_masked(source_ids, prefix).tolist() == expected


def test_masked_candidates_are_last_and_the_others_are_unchanged() -> None:
    output = make_output(11, 20, 10, 12, 21)
    both = StepOutput(log_probs=np.repeat(output.log_probs, 2, 0), token_ids=np.repeat(output.token_ids, 2, 0))

    output = CandidateRules(PLACEHOLDERS).without_masked(both, np.array([[True, True, False], [False, False, False]]))

    assert output.token_ids.tolist() == [[[20, 12, 21, 11, 10]], [[11, 20, 10, 12, 21]]]
    assert output.log_probs.tolist() == [[[-2.0, -4.0, -5.0, -np.inf, -np.inf]], [[-1.0, -2.0, -3.0, -4.0, -5.0]]]


def test_a_step_without_masked_candidates_is_not_copied() -> None:
    output = make_output(20, 21, 11)

    assert CandidateRules(PLACEHOLDERS).without_masked(output, np.array([[True, False, True]])) is output


@pytest.mark.parametrize(("beam_size", "expected"), [(1, 5), (4, 8), (200, 100)])
def test_number_of_candidates_includes_beam_eos_and_forbidden_tokens(beam_size: int, expected: int) -> None:
    assert CandidateRules(VOCABULARY).num_candidates(beam_size) == expected


def test_vocabulary_can_use_an_id_twice_or_lack_one() -> None:
    vocabulary = VocabularySpec(size=100, pad_id=EOS, bos_id=-1, eos_id=EOS, unk_id=UNK)

    allowed = CandidateRules(vocabulary).apply(make_output(EOS, UNK, 99), forbids_eos=np.array([False]))

    assert allowed.tolist() == [[[-1.0, -np.inf, -3.0]]]


def make_rules(targets: list[list[int]], *, avoided_ids: tuple[int, ...] = (), **search: Any) -> TargetRules:
    """Return the rules of a segment whose rows have the given targets, all of one length."""
    plan = SearchPlan(search=SearchConfig(**search), avoided_ids=avoided_ids, avoided_size=3 if avoided_ids else 0)
    rules = TargetRules(plan, vocabulary_size=100)
    for step in range(len(targets[0])):
        parents = np.zeros(len(targets), np.int64) if step == 0 else np.arange(len(targets))
        rules.extend(np.array([target[step] for target in targets]), parents)
    return rules


def lowered(rules: TargetRules, num_rows: int, *token_ids: int) -> list[list[float]]:
    log_probs = np.full((num_rows, len(token_ids)), -1.0, np.float32)
    return rules.apply(log_probs, np.tile(token_ids, (num_rows, 1))).tolist()  # type: ignore[no-any-return]


def test_row_does_not_repeat_its_own_ngrams() -> None:
    rules = make_rules([[10, 11, 12, 10, 11], [10, 11, 13, 10, 11]], no_repeat_ngram_size=3)

    assert lowered(rules, 2, 12, 13, 14) == [[-np.inf, -1, -1], [-1, -np.inf, -1]]


def test_row_has_the_tokens_of_its_parent() -> None:
    rules = make_rules([[10], [20]], no_repeat_ngram_size=1)

    rules.extend(np.array([30, 31]), np.array([1, 1]))

    assert lowered(rules, 2, 10, 20, 30, 31) == [[-1, -np.inf, -np.inf, -1], [-1, -np.inf, -1, -np.inf]]


def test_ngram_of_the_avoided_text_is_not_completed() -> None:
    rules = make_rules([[50, 11], [50, 12]], avoided_ids=(10, 50, 11, 13))

    assert lowered(rules, 2, 13, 10, 50) == [[-np.inf, -1, -1], [-1, -1, -1]]


def test_repeated_tokens_are_less_likely() -> None:
    rules = make_rules([[10, 10], [10, 11]], repetition_penalty=1.5)

    assert lowered(rules, 2, 10, 11, 12) == [[-1.5, -1, -1], [-1.5, -1.5, -1]]


def test_suppressed_tokens_are_forbidden() -> None:
    rules = make_rules([[10]], suppressed_tokens=frozenset({10, 99}))

    assert lowered(rules, 1, 10, 98, 99) == [[-np.inf, -1, -np.inf]]


def test_number_of_lowered_tokens_is_an_upper_bound() -> None:
    tokens = list(range(10, 50))

    assert make_rules([tokens], repetition_penalty=2.0).num_lowered >= 40
    assert make_rules([tokens], no_repeat_ngram_size=1).num_lowered >= 40
    assert make_rules([[10]], suppressed_tokens=frozenset(tokens)).num_lowered >= 40
    assert make_rules([tokens], no_repeat_ngram_size=2).num_lowered < 40


def test_default_options_have_no_rules() -> None:
    assert TargetRules.of(SearchPlan(search=SearchConfig()), vocabulary_size=100) is None
