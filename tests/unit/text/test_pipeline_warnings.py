import pytest

from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    GuardReport,
    SegmentResult,
    SentenceAlignment,
    Span,
    StageTimings,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.text.pipeline import WARNING_KINDS, sentence_warnings
from tests.unit.text.text_fakes import make_hypothesis

LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run of 3 tokens 12 times in a row")
SHORTER_LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a run of 1 token 8 times in a row")
LONG = Degeneration(kind=DegenerationKind.LENGTH_RATIO, detail="90 tokens for 4")


def _result(*found: Degeneration, remaining: tuple[Degeneration, ...] = (), is_replaced: bool = True) -> SegmentResult:
    report = GuardReport(found=found, remaining=remaining, is_replaced=is_replaced) if found else None
    return SegmentResult(hypotheses=(make_hypothesis("a"),), num_steps=1, timings=StageTimings(), guard=report)


def _warnings(*results: SegmentResult, is_truncated: bool = False) -> list[TranslationWarning]:
    sentence = SentenceAlignment(
        source=Span(start=0, end=1),
        target=Span(start=0, end=1),
        num_source_tokens=70,
        num_target_tokens=2,
        is_truncated=is_truncated,
        is_split=len(results) > 1,
    )
    return list(sentence_warnings(sentence, results, sentence_index=3, max_source_tokens=64, max_target_tokens=9))


def test_there_is_nothing_to_say_about_a_sound_sentence() -> None:
    assert _warnings(_result()) == []


@pytest.mark.parametrize(
    ("result", "messages"),
    [
        (_result(LOOP), ["a run of 3 tokens 12 times in a row; decoding again cured it"]),
        (
            _result(LOOP, remaining=(SHORTER_LOOP,)),
            ["a run of 3 tokens 12 times in a row; decoding again left a run of 1 token 8 times in a row"],
        ),
        (
            _result(LOOP, remaining=(LOOP,), is_replaced=False),
            ["a run of 3 tokens 12 times in a row; decoding again did not help"],
        ),
        (
            _result(LOOP, remaining=(LONG,)),
            [
                "a run of 3 tokens 12 times in a row; decoding again cured it",
                "90 tokens for 4, since it was decoded again",
            ],
        ),
        (
            _result(LOOP, LONG),
            [
                "a run of 3 tokens 12 times in a row; decoding again cured it",
                "90 tokens for 4; decoding again cured it",
            ],
        ),
    ],
    ids=["cured", "better", "no help", "other", "both cured"],
)
def test_a_message_says_what_was_found_and_whether_decoding_again_helped(
    result: SegmentResult, messages: list[str]
) -> None:
    assert [warning.message for warning in _warnings(result)] == messages


def test_every_defect_has_a_warning_of_its_kind() -> None:
    assert set(WARNING_KINDS) == set(DegenerationKind)
    assert [kind.value for kind in WARNING_KINDS] == [kind.value for kind in WARNING_KINDS.values()]


def test_the_part_of_a_split_sentence_is_named() -> None:
    warnings = _warnings(_result(), _result(LOOP))

    assert [(warning.kind, warning.sentence_index) for warning in warnings] == [
        (WarningKind.SOURCE_SPLIT, 3),
        (WarningKind.REPETITION, 3),
    ]
    assert warnings[0].message == "decoded in 2 parts: 70 source tokens, the model takes 64"
    assert warnings[1].message.startswith("part 2 of 2: a run of 3 tokens")


def test_a_cut_off_sentence_names_its_limit() -> None:
    (warning,) = _warnings(_result(), is_truncated=True)

    assert (warning.kind, warning.message) == (WarningKind.TRUNCATED, "cut off at the limit of 9 target tokens")
