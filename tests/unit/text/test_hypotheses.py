from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights
from dragoman_service.datatypes import Degeneration, DegenerationKind, DegenerationReport, SearchConfig
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.hypotheses import FEATURES, features, probability
from dragoman_service.text.pipeline import TextPipeline
from tests.unit.text.text_fakes import FakeModel, make_hypothesis, make_result

NONE: dict[str, Any] = dict.fromkeys(FEATURES, 0.0)
CONFIDENCE = Confidence(
    weights=ConfidenceWeights(**{**NONE, "mean_log_prob": 2.0, "length_ratio": -3.0, "defect": -1.0}),
    bias=3.0,
    usual_log_ratio=0.0,
    good_chrf=40.0,
    data="nothing",
)
LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a loop")


def scores(*targets: Any, model: FakeModel, **options: Any) -> list[float | None]:
    """Return the confidence of sentences with these results; each source is `Word.`."""
    request = TranslationRequest(
        texts=(" ".join(["Word."] * len(targets)),),
        source_language="en",
        target_language="de",
        options=TranslationOptions(**options),
    )
    pipeline = TextPipeline(request, model=model, search=SearchConfig(max_target_tokens=512))
    (translation,) = pipeline.assemble(pipeline.plan(), list(targets))
    return [sentence.score for sentence in translation.sentences]


def test_unlikely_and_degenerate_translations_have_lower_confidence() -> None:
    likely, unlikely = make_hypothesis("Wort.", score=-0.1), make_hypothesis("Wort.", score=-2.0)
    long = make_hypothesis("Wort" * 9, score=-0.1)
    report = DegenerationReport(found=(LOOP,), remaining=(), is_replaced=True)
    degenerate = replace(make_result(likely), degeneration=report)

    found = scores(*map(make_result, (likely, unlikely, long)), degenerate, model=FakeModel(confidence=CONFIDENCE))

    best, *others = (score or 0.0 for score in found)
    assert 1 > best > max(others)
    assert min(others) > 0


def test_fragmentation_of_the_source_is_a_feature() -> None:
    at = FEATURES.index("source_fragmentation")
    given: dict[str, Any] = {"token_log_probs": [-1.0], "has_defect": False, "usual_log_ratio": 0.0}

    assert [features("Word.", "Wort.", num_source_tokens=count, **given)[at] for count in (2, 6)] == [2 / 6, 1]


def test_confidence_depends_on_the_model_and_not_on_other_options() -> None:
    result = make_result(make_hypothesis("Wort.", score=-0.3), make_hypothesis("Worte.", score=-0.5))
    model = FakeModel(confidence=CONFIDENCE)

    assert scores(result, model=FakeModel()) == [None]
    assert scores(result, model=model) == scores(result, model=model, return_scores=True, return_tokens=True) != [None]


@pytest.mark.parametrize("log_prob", [-1e9, -1.0, 0.0])
@pytest.mark.parametrize("texts", [("", ""), ("a", "b" * 10_000), ("word " * 1_000, "word")])
def test_confidence_is_a_probability_for_any_texts(log_prob: float, texts: tuple[str, str]) -> None:
    values = features(*texts, num_source_tokens=1, token_log_probs=[log_prob], has_defect=False, usual_log_ratio=0.0)

    assert len(values) == len(FEATURES)
    assert 0 < probability(CONFIDENCE, values) < 1
