"""Checks of translations accept a copy, report each lost part, and need linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_export.evaluation.integrity.cases import KINDS, generate
from dragoman_export.evaluation.integrity.checks import Case, check_case
from dragoman_service.request import TextFormat

_NUM_ATTACKS = 10_000

_CASES = st.integers(0, 2**32).flatmap(lambda seed: st.sampled_from(generate(2 * len(KINDS), seed=seed)))


@given(_CASES)
def test_copy_is_intact(case: Case) -> None:
    assert set(check_case(case, case.source)) <= {"copy of the source"}


@given(_CASES, st.text(max_size=60))
def test_any_answer_can_be_checked(case: Case, answer: str) -> None:
    assert all(problem for problem in check_case(case, answer))


@given(_CASES, st.sampled_from("0123456789"), st.integers(0, 100))
def test_added_digit_is_damage(case: Case, digit: str, place: int) -> None:
    place = min(place, len(case.source))

    assert check_case(case, case.source[:place] + digit + case.source[place:])


@given(_CASES)
def test_empty_answer_is_damage(case: Case) -> None:
    assert check_case(case, "")


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_every_seed_gives_cases_of_all_kinds(seed: int) -> None:
    cases = generate(20 * len(KINDS), seed=seed)

    assert {case.kind for case in cases} == set(KINDS)
    assert all(set(check_case(case, case.source)) <= {"copy of the source"} for case in cases)


@pytest.mark.parametrize(
    "attack", ["|a", "<a ", "<b>", "</b>", "<b></b>", "&", "&#1;", "\\", "[", "1,", "<x/>", "{n} ", " -", "..", "“"]
)
@pytest.mark.parametrize("text_format", [TextFormat.PLAIN, TextFormat.HTML])
def test_time_of_a_check_is_linear(attack: str, text_format: TextFormat) -> None:
    keep = ("{n} ", ("1,000", "1.000"), "|", "&lt;")

    def seconds(count: int) -> float:
        case = Case(
            kind="number",
            source=attack * count,
            source_language="en",
            target_language="de",
            format=text_format,
            keep=keep,
            has_escapes=True,
            has_ending=True,
            is_in_capitals=True,
            is_translated=True,
        )
        started_s = time.process_time()
        check_case(case, attack * count + "x")
        return time.process_time() - started_s

    seconds(10)

    # A quadratic check takes 100 times as long, a linear one 10 times; a pause of the process does not count.
    assert seconds(_NUM_ATTACKS) < 40 * seconds(_NUM_ATTACKS // 10) + 0.2
