"""Protobuf messages to and from the service's own types: pure functions, both ways.

What only the wire can say is checked here: enum numbers, lengths of names, fields that this server does not implement.
Ranges that a setting or a model decides are checked by `dragoman_service.translation.options`.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from google.protobuf import duration_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from dragoman.v1 import translation_pb2 as pb
from dragoman_service import datatypes, request
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.errors import InvalidFieldError
from dragoman_service.models.glossaries import Glossary
from dragoman_service.models.model import ModelState, ModelStatus
from dragoman_service.request import (
    MAX_KINDS,
    MAX_NAME_CHARACTERS,
    MAX_PATTERNS,
    MAX_SUPPRESSED_TOKENS,
    MAX_TARGET_TOKENS,
    MAX_TERMS,
    MAX_TEXTS,
    check_request_id,
)
from dragoman_service.translation.options import ATTENTION_FIELDS, TranslationLimits

MAX_LANGUAGE_CHARACTERS = 35
"""The longest tag that RFC 5646, section 4.4.1, asks programs to take."""

MAX_PIVOT_LANGUAGES = 8
"""Of a request; each may be looked up."""

MAX_DETECTED_CHARACTERS = 10_000
"""Of a text whose language is asked for."""

MAX_LISTED_PAIRS = 256
"""Of a version's language pairs, which are not told one by one if there are more."""


_Member = TypeVar("_Member", bound=enum.Enum)
_Meaning = TypeVar("_Meaning")


def _numbers(wire: EnumTypeWrapper, kind: type[_Member]) -> dict[_Member, int]:
    """Return the number that each member of an enum has on the wire, where it has the same name behind a prefix."""
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    return {member: wire.Value(prefix + member.name) for member in kind}


def _members(wire: EnumTypeWrapper, *, unspecified: _Member) -> dict[int, _Member]:
    """Return what each number of an enum of the contract means."""
    return {0: unspecified, **{number: member for member, number in _numbers(wire, type(unspecified)).items()}}


_PRIORITIES = _members(pb.Priority, unspecified=datatypes.Priority.INTERACTIVE)
_LONG_SENTENCE_POLICIES = _members(pb.LongSentencePolicy, unspecified=request.LongSentencePolicy.SPLIT)
_ATTENTION_DETAILS = _members(pb.AttentionDetail, unspecified=request.AttentionDetail.NONE)
_PROTECTED_KINDS = {number: kind for kind, number in _numbers(pb.ProtectedKind, request.ProtectedKind).items()}
_FORMATS = _members(pb.TextFormat, unspecified=request.TextFormat.PLAIN)

WARNING_KINDS: Mapping[datatypes.WarningKind, Any] = _numbers(pb.WarningKind, datatypes.WarningKind)
_MODEL_STATES: Mapping[ModelState, Any] = _numbers(pb.ModelState, ModelState)

_PRECISIONS: Mapping[str, pb.Precision] = {
    "fp32": pb.PRECISION_FLOAT32,
    "fp16": pb.PRECISION_FLOAT16,
    "int8": pb.PRECISION_INT8,
}

_OPTIONAL_OPTIONS = (
    *("beam_size", "num_hypotheses", "length_penalty", "min_target_tokens", "max_target_tokens"),
    *("no_repeat_ngram_size", "repetition_penalty", "coverage_penalty", "early_stopping", "repetition_guard"),
    "split_sentences",
)
"""Fields of DecodingOptions that may be absent; `TranslationOptions` has the same names."""

_NO_OPTIONS = request.TranslationOptions()


def from_translate_request(message: pb.TranslateRequest) -> request.TranslationRequest:
    """Return what the caller asks for, but for its priority.

    Raises:
        InvalidFieldError: if an enum number is unknown or a name too long.
    """
    _check_number("texts", len(message.texts), MAX_TEXTS)
    _check_number("target_prefixes", len(message.target_prefixes), MAX_TEXTS)
    _check_number("pivot_languages", len(message.pivot_languages), MAX_PIVOT_LANGUAGES)
    for index, language in enumerate(message.pivot_languages):
        _check_length(f"pivot_languages[{index}]", language, at_least=1, at_most=MAX_LANGUAGE_CHARACTERS)
    request = _from_request(message, texts=tuple(message.texts), target_prefixes=tuple(message.target_prefixes))
    return replace(request, pivot_languages=tuple(message.pivot_languages)) if message.pivot_languages else request


def from_translate_document_request(message: pb.TranslateDocumentRequest) -> request.TranslationRequest:
    """Return what the caller asks for, with the document as its only text.

    Raises:
        RequestError: as `from_translate_request`; also if the document is not to be split.
    """
    request = _from_request(message, texts=(message.text,), target_prefixes=())
    if not request.options.split_sentences:
        raise InvalidFieldError("options.split_sentences", "false", "absent or true in TranslateDocument")
    return request


def _from_request(
    message: pb.TranslateRequest | pb.TranslateDocumentRequest,
    *,
    texts: tuple[str, ...],
    target_prefixes: tuple[str, ...],
) -> request.TranslationRequest:
    _check_length("source_language", message.source_language, at_least=0, at_most=MAX_LANGUAGE_CHARACTERS)
    _check_length("target_language", message.target_language, at_least=1, at_most=MAX_LANGUAGE_CHARACTERS)
    _check_length("model", message.model, at_least=0, at_most=MAX_NAME_CHARACTERS)
    check_request_id(message.request_id)
    return request.TranslationRequest(
        texts=texts,
        source_language=message.source_language,
        target_language=message.target_language,
        model=message.model,
        options=_from_options(message.options) if message.HasField("options") else _NO_OPTIONS,
        target_prefixes=target_prefixes,
    )


def from_priority(number: int) -> datatypes.Priority:
    """Return how urgent a request is; InvalidFieldError if the number is unknown."""
    return _known("priority", number, pb.Priority, _PRIORITIES)


def _from_options(message: pb.DecodingOptions) -> request.TranslationOptions:
    _check_length("options.glossary", message.glossary, at_least=0, at_most=MAX_NAME_CHARACTERS)
    _check_number("options.suppressed_tokens", len(message.suppressed_tokens), MAX_SUPPRESSED_TOKENS)
    return request.TranslationOptions(
        **_present(message, _OPTIONAL_OPTIONS),
        sampling=_from_sampling(message.sampling) if message.HasField("sampling") else None,
        target_prefix=message.target_prefix,
        suppressed_tokens=tuple(message.suppressed_tokens),
        long_sentences=_known(
            "options.long_sentences", message.long_sentences, pb.LongSentencePolicy, _LONG_SENTENCE_POLICIES
        ),
        format=_known("options.format", message.format, pb.TextFormat, _FORMATS),
        protection=_from_protection(message.protection) if message.HasField("protection") else _NO_OPTIONS.protection,
        terms=tuple(_from_terms(message.terms)),
        glossary=message.glossary,
        return_scores=message.return_scores,
        return_tokens=message.return_tokens,
        return_alignment=message.return_alignment,
        return_attention=_known(
            "options.return_attention", message.return_attention, pb.AttentionDetail, _ATTENTION_DETAILS
        ),
    )


def _from_protection(message: pb.ProtectionOptions) -> request.ProtectionOptions:
    _check_number("options.protection.patterns", len(message.patterns), MAX_PATTERNS)
    return request.ProtectionOptions(
        is_enabled=message.enabled if message.HasField("enabled") else True,
        enabled_kinds=_from_kinds("options.protection.enabled_kinds", message.enabled_kinds),
        disabled_kinds=_from_kinds("options.protection.disabled_kinds", message.disabled_kinds),
        patterns=tuple(message.patterns),
    )


def _from_kinds(field: str, numbers: Sequence[int]) -> frozenset[request.ProtectedKind]:
    _check_number(field, len(numbers), MAX_KINDS)
    return frozenset(
        _known(f"{field}[{index}]", number, pb.ProtectedKind, _PROTECTED_KINDS) for index, number in enumerate(numbers)
    )


def _from_terms(terms: Sequence[pb.Term]) -> Iterator[request.Term]:
    _check_number("options.terms", len(terms), MAX_TERMS)
    for term in terms:
        yield request.Term(
            source=term.source,
            target=term.target,
            is_case_sensitive=term.is_case_sensitive,
            is_part_of_word=term.is_part_of_word,
        )


def _from_sampling(message: pb.SamplingOptions) -> request.SamplingOptions:
    return request.SamplingOptions(**_present(message, ("temperature", "top_k", "top_p", "seed")))


def _present(message: pb.DecodingOptions | pb.SamplingOptions, names: Iterable[Any]) -> dict[str, Any]:
    """Return the fields that a message has; those it has not keep their defaults."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _known(field: str, number: int, wire: EnumTypeWrapper, meanings: Mapping[int, _Meaning]) -> _Meaning:
    """Return what an enum number means; proto3 lets numbers pass that the contract does not list."""
    if number not in meanings:
        raise InvalidFieldError(field, number, f"one of {', '.join(wire.keys())}")
    return meanings[number]


def _check_length(field: str, name: str, *, at_least: int, at_most: int) -> None:
    if not at_least <= len(name) <= at_most:
        raise InvalidFieldError(field, f"{len(name)} characters long", f"{at_least} to {at_most} characters long")


def _check_number(field: str, number: int, at_most: int) -> None:
    """Reject a list before it is copied: a message has room for two million empty texts."""
    if number > at_most:
        raise InvalidFieldError(field, f"a list of {number}", f"at most {at_most}")


def to_translate_response(result: datatypes.TranslationResult, *, request_id: str) -> pb.TranslateResponse:
    """Return the answer as the caller gets it."""
    return pb.TranslateResponse(
        translations=[_to_translation(translation) for translation in result.translations],
        model_name=result.model_name,
        model_version=result.model_version,
        timings=_to_timings(result.timings),
        num_source_tokens=result.num_source_tokens,
        num_target_tokens=result.num_target_tokens,
        request_id=request_id,
        detected_language=to_detected_language(result.detected_language) if result.detected_language else None,
        pivot=_to_pivot(result.pivot) if result.pivot else None,
    )


def to_translated_sentence(
    sentence: datatypes.TranslatedSentence, *, index: int, request_id: str
) -> pb.TranslatedSentence:
    """Return a sentence of a document as the caller gets it."""
    return pb.TranslatedSentence(
        index=index,
        text=sentence.text,
        hypotheses=[_to_hypothesis(hypothesis) for hypothesis in sentence.hypotheses],
        sentence=_to_sentence(sentence.sentence) if sentence.sentence else None,
        warnings=[
            pb.TranslationWarning(kind=WARNING_KINDS[warning.kind], message=warning.message)  # of this one sentence
            for warning in sentence.warnings
        ],
        model_name=sentence.model_name,
        model_version=sentence.model_version,
        timings=_to_timings(sentence.timings),
        request_id=request_id,
        detected_language=to_detected_language(sentence.detected_language) if sentence.detected_language else None,
    )


def from_detect_language_request(message: pb.DetectLanguageRequest) -> tuple[tuple[str, ...], str]:
    """Return texts and target language; InvalidFieldError if there are too many, none, or one is too long."""
    _check_number("texts", len(message.texts), MAX_TEXTS)
    if not message.texts:
        raise InvalidFieldError("texts", "a list of 0", f"1 to {MAX_TEXTS} texts")
    for index, text in enumerate(message.texts):
        _check_length(f"texts[{index}]", text, at_least=0, at_most=MAX_DETECTED_CHARACTERS)
    _check_length("target_language", message.target_language, at_least=0, at_most=MAX_LANGUAGE_CHARACTERS)
    return tuple(message.texts), message.target_language


def to_detect_language_response(
    detections: Iterable[Sequence[datatypes.DetectedLanguage]],
) -> pb.DetectLanguageResponse:
    """Return the languages of texts as the caller gets them."""
    return pb.DetectLanguageResponse(
        detections=[
            pb.LanguageDetection(languages=[to_detected_language(language) for language in languages])
            for languages in detections
        ]
    )


def to_detected_language(detected: datatypes.DetectedLanguage) -> pb.DetectedLanguage:
    """Return a language as the caller gets it."""
    return pb.DetectedLanguage(language=detected.language, confidence=detected.confidence, is_served=detected.is_served)


def _to_pivot(pivot: datatypes.Pivot) -> pb.Pivot:
    return pb.Pivot(language=pivot.language, model_name=pivot.model_name, model_version=pivot.model_version)


def _to_translation(translation: datatypes.Translation) -> pb.Translation:
    return pb.Translation(
        hypotheses=[_to_hypothesis(hypothesis) for hypothesis in translation.hypotheses],
        sentences=[_to_sentence(sentence) for sentence in translation.sentences],
        warnings=[_to_warning(warning) for warning in translation.warnings],
    )


def _to_hypothesis(hypothesis: datatypes.TextHypothesis) -> pb.Hypothesis:
    return pb.Hypothesis(
        text=hypothesis.text,
        score=hypothesis.score,
        tokens=hypothesis.tokens,
        token_log_probs=hypothesis.token_log_probs,
        alignment=[_to_link(link) for link in hypothesis.alignment],
        attention=[_to_attention(attention) for attention in hypothesis.attention],
    )


def _to_link(link: datatypes.AlignmentLink) -> pb.AlignmentLink:
    return pb.AlignmentLink(source=_to_span(link.source), target=_to_span(link.target), weight=link.weight)


def _to_attention(attention: datatypes.CrossAttention) -> pb.CrossAttention:
    return pb.CrossAttention(
        source_pieces=attention.source_pieces,
        target_pieces=attention.target_pieces,
        num_heads=len(attention.weights),
        layer=attention.layer,
        weights=attention.weights.ravel().tolist(),  # far quicker to copy than an array
    )


def _to_sentence(sentence: datatypes.SentenceAlignment) -> pb.Sentence:
    return pb.Sentence(
        source=_to_span(sentence.source),
        target=_to_span(sentence.target),
        num_source_tokens=sentence.num_source_tokens,
        num_target_tokens=sentence.num_target_tokens,
        is_truncated=sentence.is_truncated,
        is_split=sentence.is_split,
        score=sentence.score,
    )


def _to_warning(warning: datatypes.TranslationWarning) -> pb.TranslationWarning:
    return pb.TranslationWarning(
        kind=WARNING_KINDS[warning.kind], message=warning.message, sentence_index=warning.sentence_index
    )


def _to_span(span: datatypes.Span) -> pb.Span:
    return pb.Span(start=span.start, end=span.end)


def _to_timings(timings: datatypes.StageTimings) -> pb.StageTimings:
    return pb.StageTimings(
        queue=_to_duration(timings.queue_s),
        encode=_to_duration(timings.encode_s),
        decode=_to_duration(timings.decode_s),
        text=_to_duration(timings.text_s),
    )


def _to_duration(seconds: float) -> duration_pb2.Duration:
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def from_model_name(model: str) -> str:
    """Return the name of a model as a request has it; InvalidFieldError if it cannot be one."""
    _check_length("model", model, at_least=1, at_most=MAX_NAME_CHARACTERS)
    return model


def to_list_models_response(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.ListModelsResponse:
    """Return the models as the caller gets them; `statuses` holds the versions of each model side by side."""
    by_name = groupby(statuses, key=lambda status: status.name)
    return pb.ListModelsResponse(models=[to_model(versions, limits) for _, versions in by_name])


def to_list_glossaries_response(glossaries: Iterable[Glossary]) -> pb.ListGlossariesResponse:
    """Return the glossaries as the caller gets them."""
    return pb.ListGlossariesResponse(
        glossaries=[
            pb.Glossary(
                name=glossary.name,
                pairs=[
                    pb.GlossaryPair(source_language=source, target_language=target, num_terms=len(terms))
                    for (source, target), terms in glossary.terms.items()
                ],
            )
            for glossary in glossaries
        ]
    )


def to_model(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.Model:
    """Return one model as the caller gets it; all `statuses` are versions of it, of which there is at least one."""
    versions = list(statuses)
    return pb.Model(name=versions[0].name, versions=[_to_version(version, limits) for version in versions])


def _to_version(status: ModelStatus, limits: TranslationLimits) -> pb.ModelVersion:
    version = pb.ModelVersion(
        version=status.version,
        state=_MODEL_STATES[status.state],
        state_message=status.message,
        is_default=status.is_default,
        labels=status.labels,
    )
    if status.manifest is not None:
        version.MergeFrom(_described_version(status, status.manifest, limits))
    return version


def _described_version(status: ModelStatus, manifest: Manifest, limits: TranslationLimits) -> pb.ModelVersion:
    """Return what the manifest of a version says; of scores those of the graphs that run, or of all precisions."""
    pair = {"source_language": manifest.source_language, "target_language": manifest.target_language}
    groups = status.language_groups
    are_listed = sum(group.num_pairs for group in groups) <= MAX_LISTED_PAIRS
    return pb.ModelVersion(
        language_pairs=[
            pb.LanguagePair(source_language=source, target_language=target, is_default=group.is_default)
            for group in (groups if are_listed else ())
            for source, target in group.pairs()
        ],
        language_groups=[
            pb.LanguageGroup(
                source_languages=group.sources, target_languages=group.targets, is_default=group.is_default
            )
            for group in groups
        ],
        precision=_PRECISIONS.get(status.precision, pb.PRECISION_UNSPECIFIED),
        limits=pb.ModelLimits(
            max_source_tokens=manifest.limits.max_source_tokens,
            max_target_tokens=min(manifest.limits.max_target_tokens, MAX_TARGET_TOKENS),
            max_texts=limits.max_texts,
            max_text_characters=limits.max_text_characters,
            max_document_characters=limits.max_document_characters,
        ),
        evaluation_scores=[
            pb.EvaluationScore(
                metric=score.metric, test_set=score.data, **pair, value=score.value, signature=score.signature
            )
            for score in manifest.scores
            if score.precision in {"", status.precision}
        ],
        unsupported_fields=() if manifest.has_attention(status.precision) else ATTENTION_FIELDS,
    )
