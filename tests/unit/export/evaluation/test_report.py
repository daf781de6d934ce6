import pytest
import sacrebleu

from dragoman_export.evaluation.report import bleu_difference

_REFERENCES = [f"the {animal} sleeps in the {place} today ." for animal in ("cat", "dog") for place in "abcdefgh"]
_WORSE = [text.replace("sleeps", "sits") if index % 2 else text for index, text in enumerate(_REFERENCES)]
_WORST = [text.replace("today", "now") for text in _WORSE]


def test_difference_is_to_the_mean_of_the_others() -> None:
    difference, (low, high) = bleu_difference(_REFERENCES, [_WORSE, _WORST], _REFERENCES)

    scores = [sacrebleu.corpus_bleu(texts, [_REFERENCES]).score for texts in (_WORSE, _WORST)]
    assert difference == pytest.approx(100 - sum(scores) / 2)
    assert 0 < low < difference < high


def test_equal_translations_do_not_differ() -> None:
    assert bleu_difference(_WORSE, [_WORSE], _REFERENCES) == (0.0, (0.0, 0.0))
