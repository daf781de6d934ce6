"""Conversion between protobuf messages and the values of the service, driven by descriptors and dataclass fields.

A field of a message and of a dataclass correspond if they have the same name (see `_WIRE_NAMES` for exceptions). Enum
members have the same name after a prefix. Lengths of lists are checked here, before a list is copied; all other ranges
are checked by `dragoman_service.translation.options`.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from dragoman.option_ranges import OptionRange, field_range, option_range
from dragoman.v1 import translation_pb2 as pb
from dragoman_service import datatypes
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.models.glossaries import Glossary
from dragoman_service.models.model import ModelStatus
from dragoman_service.request import TranslationRequest
from dragoman_service.translation.options import ATTENTION_FIELDS
from dragoman_service.translation.settings import TranslationLimits

MAX_LISTED_PAIRS = 256  # of a model version; more language pairs are only listed as groups

_WIRE_NAMES: Mapping[str, str] = {"is_enabled": "enabled"}  # dataclass field -> message field
_PRECISIONS: Mapping[str, pb.Precision] = {
    "fp32": pb.PRECISION_FLOAT32,
    "fp16": pb.PRECISION_FLOAT16,
    "int8": pb.PRECISION_INT8,
}

_MAX_TARGET_TOKENS = int(option_range("options.max_target_tokens").maximum)

_Message = TypeVar("_Message")


def parse_message(raw_message: bytes, deserialize: Callable[[bytes], _Message]) -> _Message:
    """Deserialize a message; RequestError if it is invalid."""
    try:
        return deserialize(raw_message)
    except DecodeError as error:
        raise RequestError("request", "not a valid protobuf message with UTF-8 texts") from error


def from_translate_request(message: pb.TranslateRequest) -> TranslationRequest:
    """Return the request of a message, without its priority.

    Raises:
        InvalidFieldError: if a list is too long or an enum number is unknown.
    """
    request: TranslationRequest = _from_message(TranslationRequest, message)
    return request


def from_translate_document_request(message: pb.TranslateDocumentRequest) -> TranslationRequest:
    """Return the request of a message, with the document as its only text; raises as `from_translate_request`."""
    request: TranslationRequest = _from_message(TranslationRequest, message, texts=(message.text,))
    if not request.options.split_sentences:
        raise InvalidFieldError("options.split_sentences", "false", "absent or true in TranslateDocument")
    return request


def from_priority(number: int) -> datatypes.Priority:
    """Return the priority of an enum number; InvalidFieldError if the number is unknown."""
    if number == pb.PRIORITY_UNSPECIFIED:
        return datatypes.Priority.INTERACTIVE
    priority: datatypes.Priority = _known_member(datatypes.Priority, pb.Priority.DESCRIPTOR, "priority", number)
    return priority


def from_detect_language_request(message: pb.DetectLanguageRequest) -> tuple[tuple[str, ...], str]:
    """Return texts and target language; InvalidFieldError if a list, text or name has an invalid length."""
    texts = option_range("texts", pb.DetectLanguageRequest)
    if not texts.min_items <= len(message.texts) <= (texts.max_items or math.inf):
        limit = f"{texts.min_items} to {texts.max_items} texts"
        raise InvalidFieldError("texts", f"a list of {len(message.texts)}", limit)
    for index, text in enumerate(message.texts):
        _check_length(f"texts[{index}]", text, texts)
    _check_length("target_language", message.target_language, option_range("target_language", pb.DetectLanguageRequest))
    return tuple(message.texts), message.target_language


def from_model_name(model: str) -> str:
    """Return the name of a model; InvalidFieldError if it has an invalid length."""
    if not model:
        raise InvalidFieldError("model", "empty", "the name of a model")
    _check_length("model", model, option_range("model"))
    return model


def to_translate_response(result: datatypes.TranslationResult, *, request_id: str) -> pb.TranslateResponse:
    """Return the message of a result."""
    return pb.TranslateResponse(request_id=request_id, **_to_fields(result, pb.TranslateResponse.DESCRIPTOR))


def to_translated_sentence(
    sentence: datatypes.TranslatedSentence, *, index: int, request_id: str
) -> pb.TranslatedSentence:
    """Return the message of a sentence of a document."""
    if sentence.warnings:  # all of this sentence, so they need no index
        warnings = tuple(dataclasses.replace(warning, sentence_index=None) for warning in sentence.warnings)
        sentence = dataclasses.replace(sentence, warnings=warnings)
    fields = _to_fields(sentence, pb.TranslatedSentence.DESCRIPTOR)
    return pb.TranslatedSentence(index=index, request_id=request_id, **fields)


def to_detect_language_response(
    detections: Iterable[Sequence[datatypes.DetectedLanguage]],
) -> pb.DetectLanguageResponse:
    """Return the message of the languages of each text."""
    kind = pb.DetectedLanguage.DESCRIPTOR
    return pb.DetectLanguageResponse(
        detections=[{"languages": [_to_fields(each, kind) for each in languages]} for languages in detections]
    )


def to_list_models_response(statuses: Iterable[ModelStatus], limits: TranslationLimits) -> pb.ListModelsResponse:
    """Return the message of all models; `statuses` is grouped by model."""
    by_name = groupby(statuses, key=lambda status: status.name)
    return pb.ListModelsResponse(models=[to_model(versions, limits) for _, versions in by_name])


def to_list_glossaries_response(glossaries: Iterable[Glossary]) -> pb.ListGlossariesResponse:
    """Return the message of all glossaries."""
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
    """Return the message of one model; `statuses` are its versions, at least one."""
    versions = list(statuses)
    return pb.Model(name=versions[0].name, versions=[_to_version(version, limits) for version in versions])


def _to_version(status: ModelStatus, limits: TranslationLimits) -> pb.ModelVersion:
    version = pb.ModelVersion(
        version=status.version,
        state=f"MODEL_STATE_{status.state.name}",
        state_message=status.message,
        is_default=status.is_default,
        labels=status.labels,
    )
    if status.manifest is not None:
        version.MergeFrom(_manifest_fields(status, status.manifest, limits))
    return version


def _manifest_fields(status: ModelStatus, manifest: Manifest, limits: TranslationLimits) -> pb.ModelVersion:
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
            max_target_tokens=min(manifest.limits.max_target_tokens, _MAX_TARGET_TOKENS),
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


def _from_message(kind: Any, message: Message, path: str = "", **given: Any) -> Any:
    """Return a dataclass with the fields that a message has; absent fields have the default of the dataclass."""
    readers, defaults = _readers(kind, message.DESCRIPTOR)
    fields = {**defaults, **given}
    for descriptor, value in message.ListFields():
        if (reader := readers.get(descriptor)) is not None:
            name, read = reader
            fields[name] = value if read is None else read(value, path)
    return kind(**fields)


_Reader = tuple[str, Callable[[Any, str], Any] | None]  # of a value of the field and the path of the message


@cache
def _readers(kind: Any, message: Any) -> tuple[Mapping[Any, _Reader], Mapping[str, Any]]:
    """Return name and conversion of each field by descriptor, and the defaults of required fields."""
    readers: dict[Any, _Reader] = {}
    defaults: dict[str, Any] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        wire = message.fields_by_name.get(_WIRE_NAMES.get(field.name, field.name))
        if wire is None:
            continue
        readers[wire] = field.name, _reader(wire, hints[field.name])
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()  # immutable, so all values can share it
        elif field.default is dataclasses.MISSING:
            defaults[field.name] = () if wire.is_repeated else wire.default_value
    return readers, defaults


def _reader(wire: Any, hint: Any) -> Callable[[Any, str], Any] | None:
    container, kind = _item_type(hint)
    name, enum_type = wire.name, wire.enum_type
    max_items = field_range(wire).max_items or math.inf

    def read_message(value: Any, path: str) -> Any:
        return _from_message(kind, value, f"{path}{name}.")

    def read_list(values: Sequence[Any], path: str) -> Any:
        if len(values) > max_items:  # before it is copied: a message has space for two million empty texts
            raise InvalidFieldError(f"{path}{name}", f"a list of {len(values)}", f"at most {max_items} items")
        if wire.message_type is not None:
            values = [_from_message(kind, item, f"{path}{name}[{index}].") for index, item in enumerate(values)]
        elif enum_type is not None:
            values = [_known_member(kind, enum_type, f"{path}{name}[{i}]", number) for i, number in enumerate(values)]
        return container(values)

    if wire.is_repeated:
        return read_list
    if wire.message_type is not None:
        return read_message
    if enum_type is not None:
        return lambda number, path: _known_member(kind, enum_type, f"{path}{name}", number)
    return None


def _item_type(hint: Any) -> tuple[type, Any]:
    """Return container and type of the items of `tuple[X, ...]`, `frozenset[X]`, `X | None` or X."""
    if isinstance(hint, types.UnionType):
        hint = next(kind for kind in hint.__args__ if kind is not types.NoneType)
    origin = typing.get_origin(hint)
    return (origin, typing.get_args(hint)[0]) if origin in {tuple, frozenset} else (tuple, hint)


@cache
def _numbers(kind: Any, wire: Any) -> Mapping[Any, int]:
    prefix = wire.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {member: wire.values_by_name[prefix + member.name].number for member in kind}


@cache
def _members(kind: Any, wire: Any) -> Mapping[int, Any]:
    return {number: member for member, number in _numbers(kind, wire).items()}


def _known_member(kind: Any, wire: Any, path: str, number: int) -> Any:
    """Return the member with a number; proto3 accepts numbers that the enum does not define."""
    member = _members(kind, wire).get(number)
    if member is None:
        raise InvalidFieldError(path, number, f"one of {', '.join(value.name for value in wire.values)}")
    return member


def _to_fields(value: Any, message: Any) -> dict[str, Any]:
    """Return the fields of a message as arguments of its constructor; nested messages are dictionaries."""
    fields = {}
    for name, wire_name, write in _writers(value.__class__, message):
        item = getattr(value, name)
        if item is not None and item != ():
            fields[wire_name] = item if write is None else write(item)
    return fields


@cache
def _writers(kind: Any, message: Any) -> Sequence[tuple[str, str, Callable[[Any], Any] | None]]:
    hints = typing.get_type_hints(kind)
    names = [(name, _WIRE_NAMES.get(name, name)) for name in hints]
    return [
        (name, wire_name, _writer(message.fields_by_name[wire_name], hints[name]))
        for name, wire_name in names
        if wire_name in message.fields_by_name
    ]


def _writer(wire: Any, hint: Any) -> Callable[[Any], Any] | None:
    _, kind = _item_type(hint)
    write: Callable[[Any], Any] | None = None
    if kind in _SPECIAL_FIELDS:
        write = _SPECIAL_FIELDS[kind]
    elif wire.message_type is not None:
        write = lambda value: _to_fields(value, wire.message_type)  # noqa: E731
    elif wire.enum_type is not None:
        write = _numbers(kind, wire.enum_type).__getitem__
    if write is None or not wire.is_repeated:
        return write
    return lambda values: [write(value) for value in values]


def _attention_fields(attention: datatypes.CrossAttention) -> dict[str, Any]:
    return {
        "source_pieces": attention.source_pieces,
        "target_pieces": attention.target_pieces,
        "num_heads": len(attention.weights),
        "layer": attention.layer,
        "weights": attention.weights.ravel().tolist(),  # much faster to copy than an array
    }


def _timing_fields(timings: datatypes.StageTimings) -> dict[str, Any]:
    seconds = {"queue": timings.queue_s, "encode": timings.encode_s, "decode": timings.decode_s, "text": timings.text_s}
    nanoseconds = {name: divmod(round(value * 1e9), 10**9) for name, value in seconds.items()}
    return {name: {"seconds": whole, "nanos": rest} for name, (whole, rest) in nanoseconds.items()}


_SPECIAL_FIELDS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    datatypes.CrossAttention: _attention_fields,
    datatypes.StageTimings: _timing_fields,
}


def _check_length(field: str, text: str, option: OptionRange) -> None:
    if option.max_characters is not None and len(text) > option.max_characters:
        raise InvalidFieldError(field, f"{len(text)} characters long", f"at most {option.max_characters} characters")
