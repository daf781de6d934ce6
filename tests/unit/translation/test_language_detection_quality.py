"""Accuracy of language detection on `tests/data/detection_phrases.tsv`.

The limits of `language_detection` were chosen on the phrases marked `tune`. The `held_out` phrases were only measured.
`python -m tests.compare_detectors` prints the figures of other libraries.
"""

import pytest

from dragoman_service.translation.language_detection import LanguageDetector, listed_candidates
from tests.detection_phrases import Phrase, accepted_language, phrases

SERVED = {"en", "de"}


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return LanguageDetector()


def _num_right(detector: LanguageDetector, chosen: list[Phrase]) -> int:
    return sum(
        accepted_language(detector.detect(one.text, SERVED), SERVED)
        == (one.language if one.language in SERVED else None)
        for one in chosen
    )


@pytest.mark.parametrize(("is_latin", "least"), [(False, 0.98), (True, 0.93)])
@pytest.mark.parametrize("split", ["tune", "held_out"])
def test_phrases_are_accepted_if_their_language_is_served(
    detector: LanguageDetector, split: str, is_latin: bool, least: float
) -> None:
    chosen = [one for one in phrases() if one.split == split and one.is_latin is is_latin]

    assert len(chosen) > 70
    assert _num_right(detector, chosen) >= least * len(chosen)


def test_likeliest_language_is_rarely_wrong_and_never_with_high_confidence(detector: LanguageDetector) -> None:
    firsts = [(one.language, listed_candidates(detector.detect(one.text, SERVED))[0]) for one in phrases()]
    wrong = [first for language, first in firsts if first.language != language]

    assert len(wrong) <= 0.06 * len(firsts)
    assert max(first.confidence for first in wrong) < 0.9
    assert not any(first.is_served and first.confidence > 0.5 for first in wrong)
