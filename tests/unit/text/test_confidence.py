import math
from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights
from dragoman_service.datatypes import Degeneration, DegenerationKind, DegenerationReport, SearchConfig
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.confidence import FEATURES, features, probability, without_violations
from dragoman_service.text.pipeline import TextPipeline
from tests.unit.text.text_fakes import FakeModel, make_hypothesis, make_result

NONE: dict[str, Any] = dict.fromkeys(FEATURES, 0.0)
GIVEN: dict[str, Any] = {
    "num_source_tokens": 4,
    "token_log_probs": [-1.0],
    "has_defect": False,
    "num_hard": 0,
    "num_soft": 0,
    "usual_log_ratio": 0.0,
}
CONFIDENCE = Confidence(
    weights=ConfidenceWeights(**{**NONE, "mean_log_prob": 2.0, "length_ratio": -3.0, "defect": -1.0}),
    bias=3.0,
    usual_log_ratio=0.0,
    good_chrf=40.0,
    data="nothing",
)
LOOP = Degeneration(kind=DegenerationKind.REPETITION, detail="a loop")


def scores(*targets: Any, model: FakeModel, text: str = "", **options: Any) -> list[float | None]:
    """Return the confidence of sentences with these results; without a text, each source is `Word.`."""
    request = TranslationRequest(
        texts=(text or " ".join(["Word."] * len(targets)),),
        source_language="en",
        target_language="de",
        options=TranslationOptions(**options),
    )
    pipeline = TextPipeline(request, model=model, search=SearchConfig(max_target_tokens=512))
    plans = pipeline.plan()
    (translation,) = pipeline.assemble(plans, pipeline.attempts(plans, targets))
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

    values = [features("Word.", "Wort.", **{**GIVEN, "num_source_tokens": count})[at] for count in (2, 6)]

    assert values == [2 / 6, 1]


def named(source: str, target: str, **changes: Any) -> dict[str, float]:
    """Return the features of a translation by name."""
    return dict(zip(FEATURES, features(source, target, **{**GIVEN, **changes}), strict=True))


@pytest.mark.parametrize("log_probs", [[-0.5], [-0.1, -3.0], [0.0, -0.2, -0.4], [-2.0] * 30])
def test_probabilities_of_tokens_are_features(log_probs: list[float]) -> None:
    """Tokens of a prefix, which have a log-probability of 0, are ignored."""
    own = [each for each in log_probs if each]

    values = named("Word.", "Wort.", token_log_probs=log_probs, num_source_tokens=9)

    assert values["mean_probability"] == pytest.approx(sum(map(math.exp, own)) / len(own))
    assert values["log_prob_by_length"] == pytest.approx(sum(own) / len(own) * math.log(10))


@pytest.mark.parametrize("missing", range(1, 11))
def test_target_with_missing_words_is_short(missing: int) -> None:
    source = "One two three four five six seven eight nine ten eleven."
    target = " ".join(source.split()[missing:])

    short, long = named(source, target), named(target, source)

    assert short["shortness"] == short["length_ratio"] > 0
    assert long["shortness"] == 0
    assert long["length_ratio"] == pytest.approx(short["length_ratio"])
    usual = named(source, target, usual_log_ratio=math.log((len(target) + 1) / (len(source) + 1)))
    assert usual["shortness"] == usual["length_ratio"] == 0


@pytest.mark.parametrize(("num_hard", "num_soft"), [(0, 1), (1, 0), (2, 2), (4, 4), (4, 3)])
def test_violations_are_features_but_do_not_decide_between_searches(num_hard: int, num_soft: int) -> None:
    values = features("Word.", "Wort.", **{**GIVEN, "num_hard": num_hard, "num_soft": num_soft})
    by_name = dict(zip(FEATURES, values, strict=True))

    assert (by_name["hard_violations"], by_name["soft_violations"]) == (num_hard, num_soft)
    assert without_violations(values) == without_violations(features("Word.", "Wort.", **GIVEN))


def test_number_of_violations_is_bounded() -> None:
    values = named("Word.", "Wort.", num_hard=10_000, num_soft=10_000)

    assert values["hard_violations"] == values["soft_violations"] == 4


VIOLATIONS = CONFIDENCE.model_copy(update={"weights": ConfidenceWeights(**{**NONE, "hard_violations": -1.0})})


@pytest.mark.parametrize(
    ("source", "preserved", "damaged"),
    [
        (f"{text} {value}.", f"Wort {value}.", f"Wort {other}.")
        for text in ("Word", "Line", "Total", "Page")
        for value, other in (("95", "59"), ("2018", "18"), ("7", "8"))
    ],
)
def test_changed_number_lowers_the_confidence(source: str, preserved: str, damaged: str) -> None:
    model = FakeModel(confidence=VIOLATIONS)

    intact, broken = (
        scores(make_result(make_hypothesis(target)), model=model, text=source)[0] for target in (preserved, damaged)
    )

    assert intact is not None
    assert broken is not None
    assert broken < intact


@pytest.mark.parametrize("remaining", [(), (LOOP,)])
def test_remaining_defect_lowers_the_confidence(remaining: tuple[Degeneration, ...]) -> None:
    plain = make_result(make_hypothesis("Wort."))
    report = DegenerationReport(found=(LOOP,), remaining=remaining, is_replaced=True)

    before, after = scores(plain, replace(plain, degeneration=report), model=FakeModel(confidence=VIOLATIONS))

    assert before is not None
    assert after is not None
    assert (after < before) == bool(remaining)


def test_weights_of_older_bundles_are_valid() -> None:
    optional = {name for name, field in ConfidenceWeights.model_fields.items() if not field.is_required()}
    older = {name: 1.0 for name in FEATURES if name not in optional}

    assert {"mean_probability", "shortness", "hard_violations", "soft_violations"} <= optional
    assert set(ConfidenceWeights(**older).in_order) == {0.0, 1.0}


def test_confidence_depends_on_the_model_and_not_on_other_options() -> None:
    result = make_result(make_hypothesis("Wort.", score=-0.3), make_hypothesis("Worte.", score=-0.5))
    model = FakeModel(confidence=CONFIDENCE)

    assert scores(result, model=FakeModel()) == [None]
    assert scores(result, model=model) == scores(result, model=model, return_scores=True, return_tokens=True) != [None]


@pytest.mark.parametrize("log_prob", [-1e9, -1.0, 0.0])
@pytest.mark.parametrize("texts", [("", ""), ("a", "b" * 10_000), ("word " * 1_000, "word")])
def test_confidence_is_a_probability_for_any_texts(log_prob: float, texts: tuple[str, str]) -> None:
    values = features(*texts, **{**GIVEN, "token_log_probs": [log_prob]})

    assert len(values) == len(FEATURES)
    assert 0 < probability(CONFIDENCE, values) < 1
