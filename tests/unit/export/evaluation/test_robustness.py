from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.data.reader import Pair
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.robustness import CHANGES, Case, change_lines, changed, measure_changes
from dragoman_service.runtimes.settings import RuntimeSettings

PAIRS = [
    Pair(
        source=f"Tom saw {number} small red balls near Berlin.",
        target=f"Tom sah {number} rote Bälle bei Berlin.",
        location=f"test.tsv:{number}",
    )
    for number in range(11, 19)
]


def first(change: str) -> Case:
    return changed(PAIRS, limit=2, seed=1)[change][0]


def texts(case: Case) -> tuple[str, str]:
    return case.unchanged[0].source, case.unchanged[0].target


def test_changes_apply_to_source_and_reference() -> None:
    capitals, without, joined = map(first, ("all capitals", "without full stop", "very long sentences"))
    other = first("text in the target language")

    for case in (capitals, without, other):
        (pair,) = case.unchanged
        assert pair in PAIRS
        assert case.spans == ()
    assert (capitals.source, capitals.reference) == tuple(map(str.upper, texts(capitals)))
    assert (without.source, without.reference) == tuple(text.removesuffix(".") for text in texts(without))
    assert other.source == other.reference == other.unchanged[0].target
    assert joined.source == ", ".join(pair.source[:-1] for pair in joined.unchanged) + "."
    assert joined.reference == ", ".join(pair.target[:-1] for pair in joined.unchanged) + "."
    assert len(set(joined.unchanged)) == 6


@pytest.mark.parametrize("change", ["placeholders", "tags", "numbers with units"])
def test_inserted_spans_are_in_source_and_reference(change: str) -> None:
    case = first(change)

    assert case.spans
    for span in case.spans:
        assert span in case.source
        assert span in case.reference
    assert (case.source, case.reference) != texts(case)


def test_typos_swap_letters_within_words() -> None:
    case = first("typos")
    words = list(zip(case.source.split(), case.unchanged[0].source.split(), strict=True))

    assert 1 <= sum(word != unchanged for word, unchanged in words) <= 2
    assert all(sorted(word) == sorted(unchanged) and word[0] == unchanged[0] for word, unchanged in words)
    assert case.reference == case.unchanged[0].target


def test_single_words_are_distinct_and_absent_from_the_reference() -> None:
    cases = changed(PAIRS, limit=8, seed=1)["single words"]

    assert sorted(case.source for case in cases) == ["balls", "near", "small"]
    assert not any(case.has_reference for case in cases)


def test_sample_depends_on_the_seed_only() -> None:
    assert changed(PAIRS, limit=3, seed=1) == changed(PAIRS, limit=3, seed=1)
    assert changed(PAIRS, limit=3, seed=1) != changed(PAIRS, limit=3, seed=2)


def test_outcomes_are_measured_by_change(fp32_bundle: Path) -> None:
    cases = changed(PAIRS, limit=2, seed=1)
    with open_text_model([fp32_bundle], RuntimeSettings(num_intra_op_threads=1)) as (model, _):
        outcomes = measure_changes(model, cases, beam_size=4, batch_size=16)

    assert list(outcomes) == list(CHANGES)
    # random weights reproduce neither numbers nor words, and the service inserts placeholders
    assert outcomes["numbers with units"].preserved == outcomes["placeholders"].preserved == 0
    assert outcomes["all capitals"].preserved is None
    assert outcomes["single words"].chrf is None
    assert 0 <= (outcomes["typos"].chrf or 0.0) < 30
    assert outcomes["typos"].sentences == 2
    assert len([*change_lines(outcomes)]) == 1 + len(CHANGES)


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--sample", "0"), "--sample is 0"), (("--sample", "5"), "--data has no pair that permits the change")],
)
def test_unusable_sample_or_text_is_rejected(
    fp32_bundle: Path, tmp_path: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "test.tsv"
    data.write_text("Yes.\tJa.\n", encoding="utf-8")

    assert main(["evaluate", "--robustness", "--bundle", str(fp32_bundle), "--data", str(data), *flags]) == 1

    assert message in capsys.readouterr().err
