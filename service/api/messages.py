"""Protobuf messages to and from the service's own types: pure functions, both ways.

What only the wire can say is checked here: enum numbers, lengths of names, fields that this server does not implement.
Ranges that a setting or a model decides are checked by `service.translator`.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby

from dragoman.v1 import translation_pb2 as pb
from google.protobuf import duration_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from service import datatypes
from service.bundle import Manifest
from service.errors import InvalidFieldError, UnsupportedFieldError
from service.models import ModelState, ModelStatus
from service.text.limits import MAX_TARGET_TOKENS, TranslationLimits

UNSUPPORTED_FIELDS = (
    "options.no_repeat_ngram_size",
    "options.repetition_penalty",
    "options.coverage_penalty",
    "options.repetition_guard",
    "options.sampling",
    "options.target_prefix",
    "options.long_sentences",
    "options.format",
    "options.return_alignment",
    "target_prefixes",
)
"""Paths of request fields that are refused unless they ask for what the server does anyway."""

_MAX_LANGUAGE_CHARACTERS = 35  # the longest tag that RFC 5646, section 4.4.1, asks programs to take
_MAX_NAME_CHARACTERS = 128

_PRIORITIES: Mapping[int, datatypes.Priority] = {
    pb.PRIORITY_UNSPECIFIED: datatypes.Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: datatypes.Priority.INTERACTIVE,
    pb.PRIORITY_BULK: datatypes.Priority.BULK,
}

WARNING_KINDS: Mapping[datatypes.WarningKind, pb.WarningKind] = {
    datatypes.WarningKind.TRUNCATED: pb.WARNING_KIND_TRUNCATED,
    datatypes.WarningKind.SOURCE_SPLIT: pb.WARNING_KIND_SOURCE_SPLIT,
}

MODEL_STATES: Mapping[ModelState, pb.ModelState] = {
    ModelState.LOADING: pb.MODEL_STATE_LOADING,
    ModelState.READY: pb.MODEL_STATE_READY,
    ModelState.DRAINING: pb.MODEL_STATE_DRAINING,
}

_PRECISIONS: Mapping[str, pb.Precision] = {
    "fp32": pb.PRECISION_FLOAT32,
    "fp16": pb.PRECISION_FLOAT16,
    "int8": pb.PRECISION_INT8,
}


def from_translate_request(message: pb.TranslateRequest) -> datatypes.TranslationRequest:
    """Return what the caller asks for.

    Raises:
        InvalidFieldError: if an enum number is unknown or a name too long.
        UnsupportedFieldError: if a field asks for what the server does not implement yet.
    """
    _check_length("source_language", message.source_language, at_least=1, at_most=_MAX_LANGUAGE_CHARACTERS)
    _check_length("target_language", message.target_language, at_least=1, at_most=_MAX_LANGUAGE_CHARACTERS)
    _check_length("model", message.model, at_least=0, at_most=_MAX_NAME_CHARACTERS)
    check_request_id(message.request_id)
    _require("target_prefixes", not any(message.target_prefixes))
    return datatypes.TranslationRequest(
        texts=tuple(message.texts),
        source_language=message.source_language,
        target_language=message.target_language,
        model=message.model,
        options=_from_options(message.options),
        priority=_PRIORITIES[_known("priority", message.priority, pb.Priority)],
        request_id=message.request_id,
    )


def check_request_id(request_id: str) -> None:
    """Refuse an id that cannot be sent back in metadata."""
    if len(request_id) > _MAX_NAME_CHARACTERS or not (request_id.isascii() and request_id.isprintable()):
        limit = f"at most {_MAX_NAME_CHARACTERS} printable ASCII characters"
        raise InvalidFieldError("request_id", repr(request_id[:_MAX_NAME_CHARACTERS]), limit)


def _from_options(message: pb.DecodingOptions) -> datatypes.TranslationOptions:
    _check_implemented(message)
    return datatypes.TranslationOptions(
        beam_size=message.beam_size if message.HasField("beam_size") else None,
        num_hypotheses=message.num_hypotheses if message.HasField("num_hypotheses") else None,
        length_penalty_alpha=message.length_penalty if message.HasField("length_penalty") else None,
        min_target_tokens=message.min_target_tokens if message.HasField("min_target_tokens") else None,
        max_target_tokens=message.max_target_tokens if message.HasField("max_target_tokens") else None,
        split_sentences=message.split_sentences if message.HasField("split_sentences") else True,
        return_scores=message.return_scores,
        return_tokens=message.return_tokens,
    )


def _check_implemented(message: pb.DecodingOptions) -> None:
    """Refuse what asks for more than the server does; a field that spells out what it does anyway may pass."""
    text_format = _known("options.format", message.format, pb.TextFormat)
    long_sentences = _known("options.long_sentences", message.long_sentences, pb.LongSentencePolicy)
    _require("options.format", text_format != pb.TEXT_FORMAT_HTML)
    _require("options.long_sentences", long_sentences != pb.LONG_SENTENCE_POLICY_REFUSE)
    _require("options.no_repeat_ngram_size", message.no_repeat_ngram_size == 0)
    _require(
        "options.repetition_penalty", not message.HasField("repetition_penalty") or message.repetition_penalty == 1
    )
    _require("options.coverage_penalty", message.coverage_penalty == 0)
    _require("options.repetition_guard", not message.repetition_guard)
    _require("options.sampling", not message.HasField("sampling"))
    _require("options.target_prefix", not message.target_prefix)
    _require("options.return_alignment", not message.return_alignment)


def _require(field: str, is_implemented: bool) -> None:
    if not is_implemented:
        raise UnsupportedFieldError(field)


def _known(field: str, number: int, enum: EnumTypeWrapper) -> int:
    """Return an enum number that the contract lists; proto3 lets any other pass."""
    if number not in enum.values():
        raise InvalidFieldError(field, number, f"one of {', '.join(enum.keys())}")
    return number


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


def from_get_model_request(message: pb.GetModelRequest) -> str:
    """Return the `name` or `name/version` that is asked for; InvalidFieldError if it cannot be one."""
    _check_length("model", message.model, at_least=1, at_most=_MAX_NAME_CHARACTERS)
    return message.model


def to_list_models_response(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.ListModelsResponse:
    """Return the models as the caller gets them; `statuses` holds the versions of each model side by side."""
    by_name = groupby(statuses, key=lambda status: status.name)
    return pb.ListModelsResponse(models=[_to_model(name, versions, limits) for name, versions in by_name])


def to_get_model_response(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.GetModelResponse:
    """Return one model as the caller gets it; all `statuses` are versions of it."""
    (model,) = to_list_models_response(statuses, limits).models
    return pb.GetModelResponse(model=model)


def _to_model(name: str, versions: Iterable[ModelStatus], limits: TranslationLimits) -> pb.Model:
    return pb.Model(name=name, versions=[_to_version(version, limits) for version in versions])


def _to_version(status: ModelStatus, limits: TranslationLimits) -> pb.ModelVersion:
    manifest = status.manifest
    return pb.ModelVersion(
        version=status.version,
        state=MODEL_STATES[status.state],
        is_default=status.is_default,
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
        unsupported_fields=UNSUPPORTED_FIELDS,
    )


def _to_limits(manifest: Manifest, limits: TranslationLimits) -> pb.ModelLimits:
    return pb.ModelLimits(
        max_source_tokens=manifest.limits.max_source_tokens,
        max_target_tokens=min(manifest.limits.max_target_tokens, MAX_TARGET_TOKENS),
        max_texts=limits.max_texts,
        max_text_characters=limits.max_text_characters,
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
