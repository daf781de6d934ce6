"""Protobuf messages to and from the service's own types: pure functions, both ways.

What only the wire can say is checked here: enum numbers, lengths of names, fields that this server does not implement.
Ranges that a setting or a model decides are checked by `service.translate.service`.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import groupby
from typing import Any

from dragoman.v1 import translation_pb2 as pb
from google.protobuf import duration_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.rpc import status_pb2

from service import datatypes
from service.bundle import Manifest
from service.errors import InvalidFieldError, UnsupportedFieldError
from service.models.model import ModelState, ModelStatus
from service.translate.options import ATTENTION_FIELDS, MAX_TARGET_TOKENS, TranslationLimits

UNSUPPORTED_FIELDS = ("options.format",)
"""Paths of request fields that are refused whatever the model, unless they ask for what the server does anyway."""

_MAX_LANGUAGE_CHARACTERS = 35  # the longest tag that RFC 5646, section 4.4.1, asks programs to take
_MAX_NAME_CHARACTERS = 128

_PRIORITIES: Mapping[int, datatypes.Priority] = {
    pb.PRIORITY_UNSPECIFIED: datatypes.Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: datatypes.Priority.INTERACTIVE,
    pb.PRIORITY_BULK: datatypes.Priority.BULK,
}

_LONG_SENTENCE_POLICIES: Mapping[int, datatypes.LongSentencePolicy] = {
    pb.LONG_SENTENCE_POLICY_UNSPECIFIED: datatypes.LongSentencePolicy.SPLIT,
    pb.LONG_SENTENCE_POLICY_SPLIT: datatypes.LongSentencePolicy.SPLIT,
    pb.LONG_SENTENCE_POLICY_REFUSE: datatypes.LongSentencePolicy.REFUSE,
}

_ATTENTION_DETAILS: Mapping[int, datatypes.AttentionDetail] = {
    pb.ATTENTION_DETAIL_UNSPECIFIED: datatypes.AttentionDetail.NONE,
    pb.ATTENTION_DETAIL_NONE: datatypes.AttentionDetail.NONE,
    pb.ATTENTION_DETAIL_AVERAGED: datatypes.AttentionDetail.AVERAGED,
    pb.ATTENTION_DETAIL_ALL_HEADS: datatypes.AttentionDetail.ALL_HEADS,
}

WARNING_KINDS: Mapping[datatypes.WarningKind, pb.WarningKind] = {
    datatypes.WarningKind.TRUNCATED: pb.WARNING_KIND_TRUNCATED,
    datatypes.WarningKind.SOURCE_SPLIT: pb.WARNING_KIND_SOURCE_SPLIT,
    datatypes.WarningKind.REPETITION: pb.WARNING_KIND_REPETITION,
    datatypes.WarningKind.COPIED_SOURCE: pb.WARNING_KIND_COPIED_SOURCE,
    datatypes.WarningKind.LENGTH_RATIO: pb.WARNING_KIND_LENGTH_RATIO,
}

MODEL_STATES: Mapping[ModelState, pb.ModelState] = {
    ModelState.LOADING: pb.MODEL_STATE_LOADING,
    ModelState.READY: pb.MODEL_STATE_READY,
    ModelState.DRAINING: pb.MODEL_STATE_DRAINING,
    ModelState.FAILED: pb.MODEL_STATE_FAILED,
}

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

_OPTIONAL_SAMPLING = ("temperature", "top_k", "top_p", "seed")
"""Likewise of SamplingOptions."""

_NO_OPTIONS = datatypes.TranslationOptions()


def from_translate_request(message: pb.TranslateRequest) -> datatypes.TranslationRequest:
    """Return what the caller asks for.

    Raises:
        InvalidFieldError: if an enum number is unknown or a name too long.
        UnsupportedFieldError: if a field asks for what the server does not implement yet.
    """
    return _from_request(message, texts=tuple(message.texts), target_prefixes=tuple(message.target_prefixes))


def from_translate_document_request(message: pb.TranslateDocumentRequest) -> datatypes.TranslationRequest:
    """Return what the caller asks for, with the document as its only text.

    Raises:
        InvalidFieldError: as `from_translate_request`; also if the document is not to be split.
        UnsupportedFieldError: if a field asks for what the server does not implement yet.
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
) -> datatypes.TranslationRequest:
    _check_length("source_language", message.source_language, at_least=1, at_most=_MAX_LANGUAGE_CHARACTERS)
    _check_length("target_language", message.target_language, at_least=1, at_most=_MAX_LANGUAGE_CHARACTERS)
    _check_length("model", message.model, at_least=0, at_most=_MAX_NAME_CHARACTERS)
    check_request_id(message.request_id)
    return datatypes.TranslationRequest(
        texts=texts,
        source_language=message.source_language,
        target_language=message.target_language,
        model=message.model,
        options=_from_options(message.options) if message.HasField("options") else _NO_OPTIONS,
        target_prefixes=target_prefixes,
        request_id=message.request_id,
    )


def from_priority(number: int) -> datatypes.Priority:
    """Return how urgent a request is; InvalidFieldError if the number is unknown."""
    return _PRIORITIES[_known("priority", number, pb.Priority)]


def check_request_id(request_id: str) -> None:
    """Refuse an id that cannot be sent back in metadata."""
    if len(request_id) > _MAX_NAME_CHARACTERS or not (request_id.isascii() and request_id.isprintable()):
        limit = f"at most {_MAX_NAME_CHARACTERS} printable ASCII characters"
        raise InvalidFieldError("request_id", repr(request_id[:_MAX_NAME_CHARACTERS]), limit)


def _from_options(message: pb.DecodingOptions) -> datatypes.TranslationOptions:
    if _known("options.format", message.format, pb.TextFormat) == pb.TEXT_FORMAT_HTML:
        raise UnsupportedFieldError("options.format")
    long_sentences = _known("options.long_sentences", message.long_sentences, pb.LongSentencePolicy)
    return_attention = _known("options.return_attention", message.return_attention, pb.AttentionDetail)
    return datatypes.TranslationOptions(
        **_present(message, _OPTIONAL_OPTIONS),
        sampling=(
            datatypes.SamplingOptions(**_present(message.sampling, _OPTIONAL_SAMPLING))
            if message.HasField("sampling")
            else None
        ),
        target_prefix=message.target_prefix,
        suppressed_tokens=tuple(message.suppressed_tokens),
        long_sentences=_LONG_SENTENCE_POLICIES[long_sentences],
        return_scores=message.return_scores,
        return_tokens=message.return_tokens,
        return_alignment=message.return_alignment,
        return_attention=_ATTENTION_DETAILS[return_attention],
    )


def _present(message: pb.DecodingOptions | pb.SamplingOptions, names: Iterable[Any]) -> dict[str, Any]:
    """Return the fields that a message has; those it has not keep their defaults."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _known(field: str, number: int, enum: EnumTypeWrapper) -> int:
    """Return an enum number that the contract lists; proto3 lets any other pass."""
    if number not in _numbers(enum):
        raise InvalidFieldError(field, number, f"one of {', '.join(enum.keys())}")
    return number


@cache
def _numbers(enum: EnumTypeWrapper) -> frozenset[int]:
    return frozenset(enum.values())


def _check_length(field: str, name: str, *, at_least: int, at_most: int) -> None:
    if not at_least <= len(name) <= at_most:
        raise InvalidFieldError(field, f"{len(name)} characters long", f"{at_least} to {at_most} characters long")


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
    )


def to_error_response(status: status_pb2.Status, *, request_id: str) -> pb.TranslateResponse:
    """Return the answer to a request of a stream that failed."""
    return pb.TranslateResponse(request_id=request_id, error=status)


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
            pb.TranslationWarning(kind=WARNING_KINDS[warning.kind], message=warning.message)
            for warning in sentence.warnings
        ],
        model_name=sentence.model_name,
        model_version=sentence.model_version,
        timings=_to_timings(sentence.timings),
        request_id=request_id,
    )


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
    _check_length("model", model, at_least=1, at_most=_MAX_NAME_CHARACTERS)
    return model


def to_list_models_response(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.ListModelsResponse:
    """Return the models as the caller gets them; `statuses` holds the versions of each model side by side."""
    by_name = groupby(statuses, key=lambda status: status.name)
    return pb.ListModelsResponse(models=[_to_model(name, versions, limits) for name, versions in by_name])


def to_model(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.Model:
    """Return one model as the caller gets it; all `statuses` are versions of it."""
    (model,) = to_list_models_response(statuses, limits).models
    return model


def _to_model(name: str, versions: Iterable[ModelStatus], limits: TranslationLimits) -> pb.Model:
    return pb.Model(name=name, versions=[_to_version(version, limits) for version in versions])


def _to_version(status: ModelStatus, limits: TranslationLimits) -> pb.ModelVersion:
    version = pb.ModelVersion(
        version=status.version,
        state=MODEL_STATES[status.state],
        state_message=status.message,
        is_default=status.is_default,
        labels=status.labels,
    )
    if status.manifest is not None:
        version.MergeFrom(_described_version(status, status.manifest, limits))
    return version


def _described_version(status: ModelStatus, manifest: Manifest, limits: TranslationLimits) -> pb.ModelVersion:
    """Return what the manifest of a version says."""
    return pb.ModelVersion(
        language_pairs=[
            pb.LanguagePair(
                source_language=manifest.source_language,
                target_language=manifest.target_language,
                is_default=status.is_pair_default,
            )
        ],
        precision=_PRECISIONS.get(status.precision, pb.PRECISION_UNSPECIFIED),
        limits=_to_limits(manifest, limits),
        evaluation_scores=_to_scores(manifest, precision=status.precision),
        unsupported_fields=_unsupported_fields(manifest, status.precision),
    )


def _unsupported_fields(manifest: Manifest, precision: str) -> tuple[str, ...]:
    return UNSUPPORTED_FIELDS if manifest.has_attention(precision) else (*UNSUPPORTED_FIELDS, *ATTENTION_FIELDS)


def _to_limits(manifest: Manifest, limits: TranslationLimits) -> pb.ModelLimits:
    return pb.ModelLimits(
        max_source_tokens=manifest.limits.max_source_tokens,
        max_target_tokens=min(manifest.limits.max_target_tokens, MAX_TARGET_TOKENS),
        max_texts=limits.max_texts,
        max_text_characters=limits.max_text_characters,
        max_document_characters=limits.max_document_characters,
    )


def _to_scores(manifest: Manifest, *, precision: str) -> list[pb.EvaluationScore]:
    """Return what the graphs that run scored; a score that names no precision holds for all."""
    return [
        pb.EvaluationScore(
            metric=score.metric,
            test_set=score.data,
            source_language=manifest.source_language,
            target_language=manifest.target_language,
            value=score.value,
            signature=score.signature,
        )
        for score in manifest.scores
        if score.precision in {"", precision}
    ]
