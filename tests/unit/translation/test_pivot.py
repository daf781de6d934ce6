from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.datatypes import Pivot, TextHypothesis, Translation
from dragoman_service.errors import DrainingError, InvalidFieldError, ModelNotFoundError
from dragoman_service.request import (
    AttentionDetail,
    RequestRecord,
    SamplingOptions,
    Term,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.translation.options import TranslationLimits
from dragoman_service.translation.pivot import find_pivot_route, served_source_languages
from dragoman_service.translation.translator import Translator
from tests.unit.text.text_fakes import METRICS, FakeModel, FakeQueue, make_hypothesis, source_text


class Models:
    """Model source with one model for each pair."""

    def __init__(self, *pairs: str, **answers: str) -> None:
        self.pairs = dict.fromkeys(pairs)
        self.models = {
            pair: FakeModel(name=pair, scheduler=_queue(answers.get(pair.replace("-", "_"), "x"))) for pair in pairs
        }
        self.failure: Exception | None = None

    def resolve(self, model: str, source_language: str, target_language: str) -> FakeModel:
        if self.failure:
            raise self.failure
        pair = f"{source_language}-{target_language}"
        if model and model != pair:
            raise ModelNotFoundError("source_language", pair, (model,))
        if pair not in self.models:
            raise ModelNotFoundError("target_language", pair, tuple(self.models))
        return self.models[pair]

    def source_languages(self, model: str, target_language: str) -> list[str]:
        found = [pair.split("-")[0] for pair in self.models if pair.endswith(f"-{target_language}")]
        if not found:
            raise ModelNotFoundError("target_language", target_language, ())
        return found


def _queue(answer: str) -> FakeQueue:
    return FakeQueue(answer=lambda segment: (make_hypothesis(answer),))


def _request(**fields: Any) -> TranslationRequest:
    usual: dict[str, Any] = {"texts": ("Hi.",), "source_language": "en", "target_language": "de"}
    return TranslationRequest(**{**usual, "pivot_languages": ("es", "fr"), **fields})


async def _translate(models: Models, limits: TranslationLimits | None = None, **fields: Any) -> Any:
    translator = Translator(models, metrics=METRICS, limits=limits)
    return await translator.translate(_request(**fields), RequestRecord())


async def test_text_is_translated_through_the_first_language_with_both_models() -> None:
    models = Models("en-fr", "fr-de", "en-es", en_fr="Salut.", fr_de="Hallo.")

    result = await _translate(models)

    assert result.translations == (Translation(hypotheses=(TextHypothesis(text="Hallo.", score=-1.0),), sentences=()),)
    assert (result.model_name, result.pivot) == ("fr-de", Pivot(language="fr", model_name="en-fr", model_version="1"))
    assert list(map(source_text, models.models["fr-de"].scheduler.segments)) == ["Salut."]
    assert (result.num_source_tokens, result.num_target_tokens) == (len("Hi.") + 1, len("Hallo.") + 1)


async def test_served_pair_is_translated_directly() -> None:
    result = await _translate(
        Models("en-de", "en-fr", "fr-de", en_de="Hallo."), options=TranslationOptions(terms=(Term(source="x"),))
    )

    assert (result.model_name, result.pivot) == ("en-de", None)


@pytest.mark.parametrize(
    ("pairs", "fields"),
    [
        (("en-fr",), {}),
        (("fr-de",), {}),
        (("en-it", "it-de"), {}),
        (("en-fr", "fr-de"), {"pivot_languages": ()}),
        (("en-fr", "fr-de"), {"model": "en-fr"}),
    ],
    ids=["no second model", "no first model", "other pivot", "no pivot allowed", "named model"],
)
async def test_pair_without_models_for_both_steps_is_not_found(pairs: tuple[str, ...], fields: dict[str, Any]) -> None:
    with pytest.raises(ModelNotFoundError, match="en-de"):
        await _translate(Models(*pairs), **fields)


async def test_other_errors_are_raised() -> None:
    models = Models("en-fr", "fr-de")
    models.failure = DrainingError()

    with pytest.raises(DrainingError):
        await _translate(models)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"terms": (Term(source="x"),)}, "options.terms"),
        ({"glossary": "g"}, "options.glossary"),
        ({"return_alignment": True}, "options.return_alignment"),
        ({"return_attention": AttentionDetail.AVERAGED}, "options.return_attention"),
        ({"num_hypotheses": 99}, "options.num_hypotheses"),
    ],
)
async def test_unsupported_options_are_rejected_before_the_first_translation(
    options: dict[str, Any], field: str
) -> None:
    models = Models("en-fr", "fr-de")

    with pytest.raises(InvalidFieldError) as caught:
        await _translate(models, options=TranslationOptions(**options))

    assert caught.value.field == field
    assert not models.models["en-fr"].scheduler.segments


async def test_first_translation_has_no_options_about_the_target() -> None:
    options = TranslationOptions(
        sampling=SamplingOptions(seed=1),
        num_hypotheses=2,
        target_prefix="Ha",
        max_target_tokens=9,
        repetition_penalty=2.0,
    )
    route = find_pivot_route(Models("en-fr", "fr-de"), _request(options=options, target_prefixes=("Ho",)))

    assert route is not None
    assert route.first.options == TranslationOptions(repetition_penalty=2.0)
    assert (route.first.target_prefixes, route.first.target_language) == ((), "fr")


async def test_error_of_a_pivot_text_names_the_pivot_language() -> None:
    models = Models("en-fr", "fr-de", en_fr="x" * 20)

    with pytest.raises(InvalidFieldError, match=r"texts\[0\].* through fr.* 20 characters.* at most 10"):
        await _translate(models, TranslationLimits(max_text_characters=10))


def test_source_languages_include_those_with_a_pivot() -> None:
    models = Models("en-fr", "fr-de", "it-de", "nl-es")

    assert set(served_source_languages(models, _request())) == {"en", "fr", "it"}
    assert set(served_source_languages(models, replace(_request(), pivot_languages=()))) == {"fr", "it"}
    with pytest.raises(ModelNotFoundError):
        served_source_languages(models, _request(target_language="tlh"))
