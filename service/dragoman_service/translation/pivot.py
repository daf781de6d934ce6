"""Pivot translation: through a third language, if the request allows it and no model translates directly."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from dragoman_service.datatypes import Pivot, Translation, TranslationResult, TranslationWarning
from dragoman_service.errors import InvalidFieldError, ModelNotFoundError
from dragoman_service.models.repository import ModelRepository
from dragoman_service.request import AttentionDetail, FixedSpan, TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.text.invariants.checks import find_violations
from dragoman_service.text.invariants.violations import INVARIANT_KINDS, Texts
from dragoman_service.translation.fixed_spans import inserted_spans

_LANGUAGE_FIELDS = ("source_language", "target_language")


@dataclass(frozen=True, slots=True, kw_only=True)
class PivotRoute:
    """A request that is translated in two steps."""

    request: TranslationRequest
    language: str  # the pivot language

    @property
    def first(self) -> TranslationRequest:
        """The request for the translation into the pivot language."""
        options = replace(
            self.request.options,
            num_hypotheses=None,
            beam_size=None if self.request.options.sampling else self.request.options.beam_size,
            sampling=None,
            min_target_tokens=None,
            max_target_tokens=None,
            target_prefix="",
            suppressed_tokens=(),
            return_scores=False,
            return_tokens=False,
        )
        return replace(self.request, target_language=self.language, options=options, target_prefixes=())

    def second(self, first: TranslationResult) -> TranslationRequest:
        """Return the request for the translation from the pivot language."""
        request = self.request
        texts = tuple(translation.hypotheses[0].text for translation in first.translations)
        is_markup = request.options.format is not TextFormat.PLAIN
        fixed_spans: tuple[tuple[FixedSpan, ...], ...] = ()
        if request.fixed_spans:
            fixed_spans = tuple(
                inserted_spans(text, spans, source, is_markup=is_markup)
                for text, spans, source in zip(texts, request.fixed_spans, request.texts, strict=True)
            )
        return replace(request, texts=texts, source_language=self.language, fixed_spans=fixed_spans)

    def explained(self, error: InvalidFieldError) -> InvalidFieldError:
        """Return an error of the second translation with the pivot language, because the caller lacks its texts."""
        if not error.field.startswith("texts"):
            return error
        value = f"translated through {self.language}, where it {error.description}"
        return InvalidFieldError(error.field, value, "shorter")

    def joined(self, first: TranslationResult, second: TranslationResult) -> TranslationResult:
        """Return the second translations with the warnings of both, and without positions in the texts."""
        return TranslationResult(
            translations=tuple(
                Translation(
                    hypotheses=last.hypotheses,
                    sentences=(),
                    warnings=(
                        *self._warnings(before, f"into {self.language}"),
                        *self._warnings(last, f"from {self.language}"),
                        *self._violations(text, last.hypotheses[0].text),
                    ),
                )
                for text, before, last in zip(self.request.texts, first.translations, second.translations, strict=True)
            ),
            model_name=second.model_name,
            model_version=second.model_version,
            timings=first.timings + second.timings,
            num_source_tokens=first.num_source_tokens,
            num_target_tokens=second.num_target_tokens,
            pivot=Pivot(language=self.language, model_name=first.model_name, model_version=first.model_version),
        )

    def _warnings(self, translation: Translation, which: str) -> list[TranslationWarning]:
        return [
            replace(warning, message=f"{which}: {warning.message}", sentence_index=None, source=None, target=None)
            for warning in translation.warnings
            if not (self._is_compared and warning.kind in INVARIANT_KINDS)
        ]

    @property
    def _is_compared(self) -> bool:
        # Whether source and final text are compared. In markup, both have the same tags and entities at other places.
        return self.request.options.format is TextFormat.PLAIN

    def _violations(self, source: str, target: str) -> list[TranslationWarning]:
        if not self._is_compared:
            return []
        texts = Texts(
            source=source,
            target=target,
            source_language=self.request.source_language,
            target_language=self.request.target_language,
        )
        return [
            TranslationWarning(
                kind=violation.kind,
                message=violation.detail,
                sentence_index=None,
                source=violation.source,
                target=violation.target,
            )
            for violation in find_violations(texts)
        ]


def find_pivot_route(models: ModelRepository, request: TranslationRequest) -> PivotRoute | None:
    """Return the pivot route of a request; None if a model translates it directly.

    Raises:
        ModelNotFoundError: if no allowed language has models for both steps; names the pair.
        InvalidFieldError: with the option that is not supported with a pivot language.
        RequestError: as `ModelRepository.resolve`.
    """
    unserved = unserved_pair(models, request.model, request.source_language, request.target_language)
    if unserved is None:
        return None
    for language in request.pivot_languages:
        legs = (request.source_language, language), (language, request.target_language)
        if all(unserved_pair(models, request.model, *leg) is None for leg in legs):
            _check_options(request.options, language)
            return PivotRoute(request=request, language=language)
    raise unserved


def served_source_languages(models: ModelRepository, request: TranslationRequest) -> Collection[str]:
    """Return the languages that a request may be translated from, also by pivot; RequestError if there are none."""
    languages: set[str] = set()
    failure: ModelNotFoundError | None = None
    pivots = [
        language
        for language in request.pivot_languages
        if unserved_pair(models, request.model, language, request.target_language) is None
    ]
    for target in (request.target_language, *pivots):
        try:
            languages.update(models.source_languages(request.model, target))
        except ModelNotFoundError as error:
            failure = failure or error
    if not languages and failure:
        raise failure
    return languages


def unserved_pair(models: ModelRepository, model: str, source: str, target: str) -> ModelNotFoundError | None:
    """Return the error of a language pair that is not served; None if it is served."""
    try:
        models.resolve(model, source, target)
    except ModelNotFoundError as error:
        if error.field not in _LANGUAGE_FIELDS:
            raise
        return error
    return None


def _check_options(options: TranslationOptions, language: str) -> None:
    unsupported = {
        "terms": options.terms,
        "glossary": options.glossary,
        "return_alignment": options.return_alignment,
        "return_attention": options.return_attention is not AttentionDetail.NONE,
    }
    for name, is_used in unsupported.items():
        if is_used:
            raise InvalidFieldError(f"options.{name}", "given", f"absent for a translation through {language}")
