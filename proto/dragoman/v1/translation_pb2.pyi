# Generated from translation.proto by proto/generate.py; do not edit.
# mypy: ignore-errors
import datetime

from dragoman.v1 import options_pb2 as _options_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BULK: _ClassVar[Priority]

class ProtectedKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROTECTED_KIND_UNSPECIFIED: _ClassVar[ProtectedKind]
    PROTECTED_KIND_BRACES: _ClassVar[ProtectedKind]
    PROTECTED_KIND_PRINTF: _ClassVar[ProtectedKind]
    PROTECTED_KIND_TEMPLATE: _ClassVar[ProtectedKind]
    PROTECTED_KIND_URL: _ClassVar[ProtectedKind]
    PROTECTED_KIND_EMAIL: _ClassVar[ProtectedKind]
    PROTECTED_KIND_PATH: _ClassVar[ProtectedKind]
    PROTECTED_KIND_CODE: _ClassVar[ProtectedKind]
    PROTECTED_KIND_TAG: _ClassVar[ProtectedKind]
    PROTECTED_KIND_COLON: _ClassVar[ProtectedKind]
    PROTECTED_KIND_ICU: _ClassVar[ProtectedKind]
    PROTECTED_KIND_NUMBER: _ClassVar[ProtectedKind]
    PROTECTED_KIND_IDENTIFIER: _ClassVar[ProtectedKind]
    PROTECTED_KIND_BRACKETS: _ClassVar[ProtectedKind]
    PROTECTED_KIND_VARIABLE: _ClassVar[ProtectedKind]
    PROTECTED_KIND_PLURAL: _ClassVar[ProtectedKind]
    PROTECTED_KIND_ESCAPE: _ClassVar[ProtectedKind]
    PROTECTED_KIND_ACCELERATOR: _ClassVar[ProtectedKind]

class NumberFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NUMBER_FORMAT_UNSPECIFIED: _ClassVar[NumberFormat]
    NUMBER_FORMAT_LOCALIZED: _ClassVar[NumberFormat]
    NUMBER_FORMAT_AS_WRITTEN: _ClassVar[NumberFormat]

class AttentionDetail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_DETAIL_UNSPECIFIED: _ClassVar[AttentionDetail]
    ATTENTION_DETAIL_NONE: _ClassVar[AttentionDetail]
    ATTENTION_DETAIL_AVERAGED: _ClassVar[AttentionDetail]
    ATTENTION_DETAIL_ALL_HEADS: _ClassVar[AttentionDetail]

class LongSentencePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LONG_SENTENCE_POLICY_UNSPECIFIED: _ClassVar[LongSentencePolicy]
    LONG_SENTENCE_POLICY_SPLIT: _ClassVar[LongSentencePolicy]
    LONG_SENTENCE_POLICY_REFUSE: _ClassVar[LongSentencePolicy]

class TextFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_FORMAT_UNSPECIFIED: _ClassVar[TextFormat]
    TEXT_FORMAT_PLAIN: _ClassVar[TextFormat]
    TEXT_FORMAT_HTML: _ClassVar[TextFormat]
    TEXT_FORMAT_XML: _ClassVar[TextFormat]
    TEXT_FORMAT_MARKDOWN: _ClassVar[TextFormat]

class WarningKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WARNING_KIND_UNSPECIFIED: _ClassVar[WarningKind]
    WARNING_KIND_TRUNCATED: _ClassVar[WarningKind]
    WARNING_KIND_SOURCE_SPLIT: _ClassVar[WarningKind]
    WARNING_KIND_REPETITION: _ClassVar[WarningKind]
    WARNING_KIND_COPIED_SOURCE: _ClassVar[WarningKind]
    WARNING_KIND_LENGTH_RATIO: _ClassVar[WarningKind]
    WARNING_KIND_PLACEHOLDER_LOST: _ClassVar[WarningKind]
    WARNING_KIND_EMPTY_TRANSLATION: _ClassVar[WarningKind]
    WARNING_KIND_INVALID_OUTPUT: _ClassVar[WarningKind]
    WARNING_KIND_NUMBER_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_IDENTIFIER_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_SYMBOL_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_NAME_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_ADDRESS_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_MARKUP_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_ENDING_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_WHITE_SPACE_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_CAPITALS_CHANGED: _ClassVar[WarningKind]
    WARNING_KIND_UNTRANSLATED: _ClassVar[WarningKind]
    WARNING_KIND_REPAIR_SKIPPED: _ClassVar[WarningKind]
    WARNING_KIND_LOW_CONFIDENCE: _ClassVar[WarningKind]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_DRAINING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FLOAT32: _ClassVar[Precision]
    PRECISION_FLOAT16: _ClassVar[Precision]
    PRECISION_INT8: _ClassVar[Precision]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BULK: Priority
PROTECTED_KIND_UNSPECIFIED: ProtectedKind
PROTECTED_KIND_BRACES: ProtectedKind
PROTECTED_KIND_PRINTF: ProtectedKind
PROTECTED_KIND_TEMPLATE: ProtectedKind
PROTECTED_KIND_URL: ProtectedKind
PROTECTED_KIND_EMAIL: ProtectedKind
PROTECTED_KIND_PATH: ProtectedKind
PROTECTED_KIND_CODE: ProtectedKind
PROTECTED_KIND_TAG: ProtectedKind
PROTECTED_KIND_COLON: ProtectedKind
PROTECTED_KIND_ICU: ProtectedKind
PROTECTED_KIND_NUMBER: ProtectedKind
PROTECTED_KIND_IDENTIFIER: ProtectedKind
PROTECTED_KIND_BRACKETS: ProtectedKind
PROTECTED_KIND_VARIABLE: ProtectedKind
PROTECTED_KIND_PLURAL: ProtectedKind
PROTECTED_KIND_ESCAPE: ProtectedKind
PROTECTED_KIND_ACCELERATOR: ProtectedKind
NUMBER_FORMAT_UNSPECIFIED: NumberFormat
NUMBER_FORMAT_LOCALIZED: NumberFormat
NUMBER_FORMAT_AS_WRITTEN: NumberFormat
ATTENTION_DETAIL_UNSPECIFIED: AttentionDetail
ATTENTION_DETAIL_NONE: AttentionDetail
ATTENTION_DETAIL_AVERAGED: AttentionDetail
ATTENTION_DETAIL_ALL_HEADS: AttentionDetail
LONG_SENTENCE_POLICY_UNSPECIFIED: LongSentencePolicy
LONG_SENTENCE_POLICY_SPLIT: LongSentencePolicy
LONG_SENTENCE_POLICY_REFUSE: LongSentencePolicy
TEXT_FORMAT_UNSPECIFIED: TextFormat
TEXT_FORMAT_PLAIN: TextFormat
TEXT_FORMAT_HTML: TextFormat
TEXT_FORMAT_XML: TextFormat
TEXT_FORMAT_MARKDOWN: TextFormat
WARNING_KIND_UNSPECIFIED: WarningKind
WARNING_KIND_TRUNCATED: WarningKind
WARNING_KIND_SOURCE_SPLIT: WarningKind
WARNING_KIND_REPETITION: WarningKind
WARNING_KIND_COPIED_SOURCE: WarningKind
WARNING_KIND_LENGTH_RATIO: WarningKind
WARNING_KIND_PLACEHOLDER_LOST: WarningKind
WARNING_KIND_EMPTY_TRANSLATION: WarningKind
WARNING_KIND_INVALID_OUTPUT: WarningKind
WARNING_KIND_NUMBER_CHANGED: WarningKind
WARNING_KIND_IDENTIFIER_CHANGED: WarningKind
WARNING_KIND_SYMBOL_CHANGED: WarningKind
WARNING_KIND_NAME_CHANGED: WarningKind
WARNING_KIND_ADDRESS_CHANGED: WarningKind
WARNING_KIND_MARKUP_CHANGED: WarningKind
WARNING_KIND_ENDING_CHANGED: WarningKind
WARNING_KIND_WHITE_SPACE_CHANGED: WarningKind
WARNING_KIND_CAPITALS_CHANGED: WarningKind
WARNING_KIND_UNTRANSLATED: WarningKind
WARNING_KIND_REPAIR_SKIPPED: WarningKind
WARNING_KIND_LOW_CONFIDENCE: WarningKind
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_DRAINING: ModelState
MODEL_STATE_FAILED: ModelState
PRECISION_UNSPECIFIED: Precision
PRECISION_FLOAT32: Precision
PRECISION_FLOAT16: Precision
PRECISION_INT8: Precision

class TranslateRequest(_message.Message):
    __slots__ = ("texts", "source_language", "target_language", "model", "options", "priority", "request_id", "target_prefixes", "pivot_languages")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    PIVOT_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    source_language: str
    target_language: str
    model: str
    options: DecodingOptions
    priority: Priority
    request_id: str
    target_prefixes: _containers.RepeatedScalarFieldContainer[str]
    pivot_languages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., model: _Optional[str] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ..., request_id: _Optional[str] = ..., target_prefixes: _Optional[_Iterable[str]] = ..., pivot_languages: _Optional[_Iterable[str]] = ...) -> None: ...

class DecodingOptions(_message.Message):
    __slots__ = ("beam_size", "num_hypotheses", "length_penalty", "min_target_tokens", "max_target_tokens", "no_repeat_ngram_size", "repetition_penalty", "coverage_penalty", "repetition_guard", "sampling", "target_prefix", "split_sentences", "long_sentences", "format", "return_scores", "return_tokens", "return_alignment", "suppressed_tokens", "return_attention", "early_stopping", "protection", "terms", "glossary", "number_format")
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_GUARD_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TARGET_PREFIX_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    LONG_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RETURN_SCORES_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FORMAT_FIELD_NUMBER: _ClassVar[int]
    beam_size: int
    num_hypotheses: int
    length_penalty: float
    min_target_tokens: int
    max_target_tokens: int
    no_repeat_ngram_size: int
    repetition_penalty: float
    coverage_penalty: float
    repetition_guard: bool
    sampling: SamplingOptions
    target_prefix: str
    split_sentences: bool
    long_sentences: LongSentencePolicy
    format: TextFormat
    return_scores: bool
    return_tokens: bool
    return_alignment: bool
    suppressed_tokens: _containers.RepeatedScalarFieldContainer[str]
    return_attention: AttentionDetail
    early_stopping: bool
    protection: ProtectionOptions
    terms: _containers.RepeatedCompositeFieldContainer[Term]
    glossary: str
    number_format: NumberFormat
    def __init__(self, beam_size: _Optional[int] = ..., num_hypotheses: _Optional[int] = ..., length_penalty: _Optional[float] = ..., min_target_tokens: _Optional[int] = ..., max_target_tokens: _Optional[int] = ..., no_repeat_ngram_size: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., coverage_penalty: _Optional[float] = ..., repetition_guard: bool = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., target_prefix: _Optional[str] = ..., split_sentences: bool = ..., long_sentences: _Optional[_Union[LongSentencePolicy, str]] = ..., format: _Optional[_Union[TextFormat, str]] = ..., return_scores: bool = ..., return_tokens: bool = ..., return_alignment: bool = ..., suppressed_tokens: _Optional[_Iterable[str]] = ..., return_attention: _Optional[_Union[AttentionDetail, str]] = ..., early_stopping: bool = ..., protection: _Optional[_Union[ProtectionOptions, _Mapping]] = ..., terms: _Optional[_Iterable[_Union[Term, _Mapping]]] = ..., glossary: _Optional[str] = ..., number_format: _Optional[_Union[NumberFormat, str]] = ...) -> None: ...

class ProtectionOptions(_message.Message):
    __slots__ = ("enabled", "enabled_kinds", "disabled_kinds", "patterns")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ENABLED_KINDS_FIELD_NUMBER: _ClassVar[int]
    DISABLED_KINDS_FIELD_NUMBER: _ClassVar[int]
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    enabled_kinds: _containers.RepeatedScalarFieldContainer[ProtectedKind]
    disabled_kinds: _containers.RepeatedScalarFieldContainer[ProtectedKind]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, enabled: bool = ..., enabled_kinds: _Optional[_Iterable[_Union[ProtectedKind, str]]] = ..., disabled_kinds: _Optional[_Iterable[_Union[ProtectedKind, str]]] = ..., patterns: _Optional[_Iterable[str]] = ...) -> None: ...

class Term(_message.Message):
    __slots__ = ("source", "target", "is_case_sensitive", "is_part_of_word")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    IS_CASE_SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    IS_PART_OF_WORD_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    is_case_sensitive: bool
    is_part_of_word: bool
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., is_case_sensitive: bool = ..., is_part_of_word: bool = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("translations", "model_name", "model_version", "timings", "num_source_tokens", "num_target_tokens", "request_id", "error", "detected_language", "pivot")
    TRANSLATIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DETECTED_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PIVOT_FIELD_NUMBER: _ClassVar[int]
    translations: _containers.RepeatedCompositeFieldContainer[Translation]
    model_name: str
    model_version: str
    timings: StageTimings
    num_source_tokens: int
    num_target_tokens: int
    request_id: str
    error: _status_pb2.Status
    detected_language: DetectedLanguage
    pivot: Pivot
    def __init__(self, translations: _Optional[_Iterable[_Union[Translation, _Mapping]]] = ..., model_name: _Optional[str] = ..., model_version: _Optional[str] = ..., timings: _Optional[_Union[StageTimings, _Mapping]] = ..., num_source_tokens: _Optional[int] = ..., num_target_tokens: _Optional[int] = ..., request_id: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., detected_language: _Optional[_Union[DetectedLanguage, _Mapping]] = ..., pivot: _Optional[_Union[Pivot, _Mapping]] = ...) -> None: ...

class Pivot(_message.Message):
    __slots__ = ("language", "model_name", "model_version")
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    language: str
    model_name: str
    model_version: str
    def __init__(self, language: _Optional[str] = ..., model_name: _Optional[str] = ..., model_version: _Optional[str] = ...) -> None: ...

class Translation(_message.Message):
    __slots__ = ("hypotheses", "sentences", "warnings", "is_unchanged")
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    IS_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    sentences: _containers.RepeatedCompositeFieldContainer[Sentence]
    warnings: _containers.RepeatedCompositeFieldContainer[TranslationWarning]
    is_unchanged: bool
    def __init__(self, hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., sentences: _Optional[_Iterable[_Union[Sentence, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[TranslationWarning, _Mapping]]] = ..., is_unchanged: bool = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "score", "tokens", "token_log_probs", "alignment", "attention")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    tokens: _containers.RepeatedScalarFieldContainer[str]
    token_log_probs: _containers.RepeatedScalarFieldContainer[float]
    alignment: _containers.RepeatedCompositeFieldContainer[AlignmentLink]
    attention: _containers.RepeatedCompositeFieldContainer[CrossAttention]
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ..., tokens: _Optional[_Iterable[str]] = ..., token_log_probs: _Optional[_Iterable[float]] = ..., alignment: _Optional[_Iterable[_Union[AlignmentLink, _Mapping]]] = ..., attention: _Optional[_Iterable[_Union[CrossAttention, _Mapping]]] = ...) -> None: ...

class CrossAttention(_message.Message):
    __slots__ = ("source_pieces", "target_pieces", "num_heads", "layer", "weights")
    SOURCE_PIECES_FIELD_NUMBER: _ClassVar[int]
    TARGET_PIECES_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    source_pieces: _containers.RepeatedScalarFieldContainer[str]
    target_pieces: _containers.RepeatedScalarFieldContainer[str]
    num_heads: int
    layer: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, source_pieces: _Optional[_Iterable[str]] = ..., target_pieces: _Optional[_Iterable[str]] = ..., num_heads: _Optional[int] = ..., layer: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class AlignmentLink(_message.Message):
    __slots__ = ("source", "target", "weight")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    source: Span
    target: Span
    weight: float
    def __init__(self, source: _Optional[_Union[Span, _Mapping]] = ..., target: _Optional[_Union[Span, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Sentence(_message.Message):
    __slots__ = ("source", "target", "num_source_tokens", "num_target_tokens", "is_truncated", "is_split", "score")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    IS_SPLIT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    source: Span
    target: Span
    num_source_tokens: int
    num_target_tokens: int
    is_truncated: bool
    is_split: bool
    score: float
    def __init__(self, source: _Optional[_Union[Span, _Mapping]] = ..., target: _Optional[_Union[Span, _Mapping]] = ..., num_source_tokens: _Optional[int] = ..., num_target_tokens: _Optional[int] = ..., is_truncated: bool = ..., is_split: bool = ..., score: _Optional[float] = ...) -> None: ...

class TranslationWarning(_message.Message):
    __slots__ = ("kind", "message", "sentence_index", "source", "target")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    kind: WarningKind
    message: str
    sentence_index: int
    source: Span
    target: Span
    def __init__(self, kind: _Optional[_Union[WarningKind, str]] = ..., message: _Optional[str] = ..., sentence_index: _Optional[int] = ..., source: _Optional[_Union[Span, _Mapping]] = ..., target: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class StageTimings(_message.Message):
    __slots__ = ("queue", "encode", "decode", "text")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    encode: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    text: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., encode: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., text: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TranslateDocumentRequest(_message.Message):
    __slots__ = ("text", "source_language", "target_language", "model", "options", "priority", "request_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    source_language: str
    target_language: str
    model: str
    options: DecodingOptions
    priority: Priority
    request_id: str
    def __init__(self, text: _Optional[str] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., model: _Optional[str] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class TranslatedSentence(_message.Message):
    __slots__ = ("index", "text", "hypotheses", "sentence", "warnings", "model_name", "model_version", "timings", "request_id", "detected_language", "is_unchanged")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DETECTED_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    IS_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    sentence: Sentence
    warnings: _containers.RepeatedCompositeFieldContainer[TranslationWarning]
    model_name: str
    model_version: str
    timings: StageTimings
    request_id: str
    detected_language: DetectedLanguage
    is_unchanged: bool
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., sentence: _Optional[_Union[Sentence, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[TranslationWarning, _Mapping]]] = ..., model_name: _Optional[str] = ..., model_version: _Optional[str] = ..., timings: _Optional[_Union[StageTimings, _Mapping]] = ..., request_id: _Optional[str] = ..., detected_language: _Optional[_Union[DetectedLanguage, _Mapping]] = ..., is_unchanged: bool = ...) -> None: ...

class DetectLanguageRequest(_message.Message):
    __slots__ = ("texts", "target_language")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    target_language: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., target_language: _Optional[str] = ...) -> None: ...

class DetectLanguageResponse(_message.Message):
    __slots__ = ("detections",)
    DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    detections: _containers.RepeatedCompositeFieldContainer[LanguageDetection]
    def __init__(self, detections: _Optional[_Iterable[_Union[LanguageDetection, _Mapping]]] = ...) -> None: ...

class LanguageDetection(_message.Message):
    __slots__ = ("languages",)
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    languages: _containers.RepeatedCompositeFieldContainer[DetectedLanguage]
    def __init__(self, languages: _Optional[_Iterable[_Union[DetectedLanguage, _Mapping]]] = ...) -> None: ...

class DetectedLanguage(_message.Message):
    __slots__ = ("language", "confidence", "is_served")
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    IS_SERVED_FIELD_NUMBER: _ClassVar[int]
    language: str
    confidence: float
    is_served: bool
    def __init__(self, language: _Optional[str] = ..., confidence: _Optional[float] = ..., is_served: bool = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class ListGlossariesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGlossariesResponse(_message.Message):
    __slots__ = ("glossaries",)
    GLOSSARIES_FIELD_NUMBER: _ClassVar[int]
    glossaries: _containers.RepeatedCompositeFieldContainer[Glossary]
    def __init__(self, glossaries: _Optional[_Iterable[_Union[Glossary, _Mapping]]] = ...) -> None: ...

class Glossary(_message.Message):
    __slots__ = ("name", "pairs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pairs: _containers.RepeatedCompositeFieldContainer[GlossaryPair]
    def __init__(self, name: _Optional[str] = ..., pairs: _Optional[_Iterable[_Union[GlossaryPair, _Mapping]]] = ...) -> None: ...

class GlossaryPair(_message.Message):
    __slots__ = ("source_language", "target_language", "num_terms")
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_TERMS_FIELD_NUMBER: _ClassVar[int]
    source_language: str
    target_language: str
    num_terms: int
    def __init__(self, source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., num_terms: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    versions: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, name: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("version", "state", "state_message", "is_default", "language_pairs", "precision", "limits", "evaluation_scores", "unsupported_fields", "labels", "language_groups")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_PAIRS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SCORES_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ModelState
    state_message: str
    is_default: bool
    language_pairs: _containers.RepeatedCompositeFieldContainer[LanguagePair]
    precision: Precision
    limits: ModelLimits
    evaluation_scores: _containers.RepeatedCompositeFieldContainer[EvaluationScore]
    unsupported_fields: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.RepeatedScalarFieldContainer[str]
    language_groups: _containers.RepeatedCompositeFieldContainer[LanguageGroup]
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., state_message: _Optional[str] = ..., is_default: bool = ..., language_pairs: _Optional[_Iterable[_Union[LanguagePair, _Mapping]]] = ..., precision: _Optional[_Union[Precision, str]] = ..., limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., evaluation_scores: _Optional[_Iterable[_Union[EvaluationScore, _Mapping]]] = ..., unsupported_fields: _Optional[_Iterable[str]] = ..., labels: _Optional[_Iterable[str]] = ..., language_groups: _Optional[_Iterable[_Union[LanguageGroup, _Mapping]]] = ...) -> None: ...

class LanguagePair(_message.Message):
    __slots__ = ("source_language", "target_language", "is_default")
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    source_language: str
    target_language: str
    is_default: bool
    def __init__(self, source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., is_default: bool = ...) -> None: ...

class LanguageGroup(_message.Message):
    __slots__ = ("source_languages", "target_languages", "is_default")
    SOURCE_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    source_languages: _containers.RepeatedScalarFieldContainer[str]
    target_languages: _containers.RepeatedScalarFieldContainer[str]
    is_default: bool
    def __init__(self, source_languages: _Optional[_Iterable[str]] = ..., target_languages: _Optional[_Iterable[str]] = ..., is_default: bool = ...) -> None: ...

class ModelLimits(_message.Message):
    __slots__ = ("max_source_tokens", "max_target_tokens", "max_texts", "max_text_characters", "max_document_characters")
    MAX_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_DOCUMENT_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    max_source_tokens: int
    max_target_tokens: int
    max_texts: int
    max_text_characters: int
    max_document_characters: int
    def __init__(self, max_source_tokens: _Optional[int] = ..., max_target_tokens: _Optional[int] = ..., max_texts: _Optional[int] = ..., max_text_characters: _Optional[int] = ..., max_document_characters: _Optional[int] = ...) -> None: ...

class EvaluationScore(_message.Message):
    __slots__ = ("metric", "test_set", "source_language", "target_language", "value", "signature")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    TEST_SET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    metric: str
    test_set: str
    source_language: str
    target_language: str
    value: float
    signature: str
    def __init__(self, metric: _Optional[str] = ..., test_set: _Optional[str] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., value: _Optional[float] = ..., signature: _Optional[str] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetModelLabelRequest(_message.Message):
    __slots__ = ("model", "label")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    label: str
    def __init__(self, model: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class SetModelLabelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...
