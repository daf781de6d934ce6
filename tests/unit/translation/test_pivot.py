from dataclasses import replace
from typing import Any

import pytest

from dragoman_service.datatypes import Pivot, Span, TextHypothesis, Translation, WarningKind
from dragoman_service.errors import DrainingError, InvalidFieldError, ModelNotFoundError
from dragoman_service.request import (
    AttentionDetail,
    FixedSpan,
    RequestContext,
    SamplingOptions,
    Term,
    TextFormat,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.translation.pivot import find_pivot_route, served_source_languages
from dragoman_service.translation.settings import TranslationLimits
from tests.unit.text.text_fakes import FakeModel, FakeQueue, make_hypothesis, make_translator, repository, source_text


class Models:
    """Repository with one model for each pair."""

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
    translator = make_translator(models, limits=limits)
    return await translator.translate(_request(**fields), RequestContext())


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
    route = find_pivot_route(repository(Models("en-fr", "fr-de")), _request(options=options, target_prefixes=("Ho",)))

    assert route is not None
    assert route.first.options == TranslationOptions(repetition_penalty=2.0)
    assert (route.first.target_prefixes, route.first.target_language) == ((), "fr")


async def test_error_of_a_pivot_text_names_the_pivot_language() -> None:
    models = Models("en-fr", "fr-de", en_fr="x" * 19 + ".")

    with pytest.raises(InvalidFieldError, match=r"texts\[0\].* through fr.* 20 characters.* at most 10"):
        await _translate(models, TranslationLimits(max_text_characters=10))


@pytest.mark.parametrize(
    ("text", "pivot", "target", "kind", "of_source", "of_target"),
    [
        ("We saw 3 dogs.", "On a vu trois chiens.", "Wir sahen zwei Hunde.", WarningKind.NUMBER_CHANGED, "3", ""),
        ("We saw dogs.", "On a vu 5 chiens.", "Wir sahen 5 Hunde.", WarningKind.NUMBER_CHANGED, "", "5"),
        ("From 10 to 20.", "De 10 à 12.", "Von 10 bis 12.", WarningKind.NUMBER_CHANGED, "20", "12"),
        ("Use GitHub now.", "Utilisez-le.", "Benutze es jetzt.", WarningKind.NAME_CHANGED, "GitHub", ""),
        ("Ask McDonald.", "Demandez-le.", "Frag ihn.", WarningKind.NAME_CHANGED, "McDonald", ""),
        ("Use eBay there.", "Utilisez-le la.", "Benutze es da.", WarningKind.NAME_CHANGED, "eBay", ""),
    ],
)
async def test_source_and_final_text_are_compared(
    text: str, pivot: str, target: str, kind: WarningKind, of_source: str, of_target: str
) -> None:
    result = await _translate(Models("en-fr", "fr-de", en_fr=pivot, fr_de=target), texts=(text,))

    (translation,) = result.translations
    final = translation.hypotheses[0].text
    found = [warning for warning in translation.warnings if warning.kind is kind]
    spans = [(warning.source, warning.target) for warning in found]
    assert [(text[a.start : a.end] if a else "", final[b.start : b.end] if b else "") for a, b in spans] == [
        (of_source, of_target)
    ]
    assert {warning.sentence_index for warning in translation.warnings} == {None}


async def test_violation_of_one_step_that_the_other_corrects_is_no_warning() -> None:
    models = Models("en-fr", "fr-de", en_fr="On a vu trois.", fr_de="Wir sahen 3 Hunde.")

    result = await _translate(models, texts=("We saw 3 dogs.",))

    assert [warning.kind for warning in result.translations[0].warnings] == []


async def test_other_warnings_of_both_steps_name_their_step() -> None:
    models = Models("en-fr", "fr-de")
    for model in models.models.values():
        model.scheduler = FakeQueue(answer=lambda segment: (make_hypothesis("Jo.", is_finished=False),))

    result = await _translate(models)

    warnings = result.translations[0].warnings
    assert [(warning.kind, warning.message.split(":")[0]) for warning in warnings] == [
        (WarningKind.TRUNCATED, "into fr"),
        (WarningKind.TRUNCATED, "from fr"),
    ]
    assert {(warning.sentence_index, warning.source, warning.target) for warning in warnings} == {(None, None, None)}


@pytest.mark.parametrize("text_format", [TextFormat.HTML, TextFormat.XML])
async def test_markup_has_the_warnings_of_its_steps_only(text_format: TextFormat) -> None:
    models = Models("en-fr", "fr-de", en_fr="Vu.", fr_de="Gesehen.")

    result = await _translate(models, texts=("<p>Use GitHub.</p>",), options=TranslationOptions(format=text_format))

    (warning,) = result.translations[0].warnings
    assert warning.message.startswith("into fr: ")
    assert (warning.kind, warning.source) == (WarningKind.NAME_CHANGED, None)


async def test_fixed_spans_are_preserved_by_both_steps() -> None:
    models = Models("en-fr", "fr-de", en_fr="Le 2013 est la.", fr_de="Das 2013 ist da.")
    spans = ((FixedSpan(span=Span(start=4, end=8), target="Wort"),),)

    result = await _translate(models, texts=("The word is here.",), fixed_spans=spans)

    assert list(map(source_text, models.models["en-fr"].scheduler.segments)) == ["The 2013 is here."]
    assert list(map(source_text, models.models["fr-de"].scheduler.segments)) == ["Le 2013 est la."]
    assert result.translations[0].hypotheses[0].text == "Das Wort ist da."


def test_source_languages_include_those_with_a_pivot() -> None:
    models = Models("en-fr", "fr-de", "it-de", "nl-es")

    assert set(served_source_languages(repository(models), _request())) == {"en", "fr", "it"}
    assert set(served_source_languages(repository(models), replace(_request(), pivot_languages=()))) == {"fr", "it"}
    with pytest.raises(ModelNotFoundError):
        served_source_languages(repository(models), _request(target_language="tlh"))
