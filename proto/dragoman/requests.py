"""What a caller asks for, and its wire messages.

Names, ranges and defaults are those of `v1/translation.proto`; the server checks them, not the client.
"""

import dataclasses
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict

from dragoman.enums import AttentionDetail, LongSentencePolicy, Priority, ProtectedKind, TextFormat
from dragoman.v1 import translation_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn at random; None means the default."""

    temperature: float | None = None
    """Divides the log-probabilities, 0.01 to 10; default 1."""

    top_k: int | None = None
    """Draw among this many likeliest tokens only, 1 to 1,000; None: among all."""

    top_p: float | None = None
    """Draw among the likeliest tokens whose probabilities add up to this only, above 0, up to 1; default 1."""

    seed: int | None = None
    """Start of the random generator, 0 to 2**63 - 1; None: a new one for each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionOptions:
    """What in a text must come back unchanged."""

    enabled: bool | None = None
    """Look for the kinds of spans that are protected by default, all but `COLON`; default True."""

    enabled_kinds: tuple[ProtectedKind, ...] = ()
    """Kinds to protect besides those."""

    disabled_kinds: tuple[ProtectedKind, ...] = ()
    """Kinds not to protect."""

    patterns: tuple[str, ...] = ()
    """More that must come back unchanged: at most 16, literal but for `*`, such as `[[*]]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word or phrase with a fixed translation."""

    source: str
    """What stands in the text, 1 to 200 characters."""

    target: str = ""
    """What stands in the translation, up to 200 characters; empty: the same as in the text."""

    is_case_sensitive: bool = False
    """Whether upper and lower case must be as in `source`."""

    is_part_of_word: bool = False
    """Whether it may be a part of a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """How to translate; None means the server's default, which is named here as the server ships."""

    beam_size: int | None = None
    """Live hypotheses per sentence, 1 to 16; default 4, or `num_hypotheses` if that is
    more. None with `sampling`."""

    num_hypotheses: int | None = None
    """Most translations returned per text, 1 to 16, and at most `beam_size` if that is given; default 1.

    Beam search returns fewer if several hypotheses have the same text, or if one is empty.
    """

    length_penalty: float | None = None
    """Exponent of the length penalty of Wu et al. 2016 (arXiv:1609.08144), 0 to 5; default 0.6."""

    min_target_tokens: int | None = None
    """Fewest target tokens per sentence, end-of-sentence not counted, 0 to 512; default 0."""

    max_target_tokens: int | None = None
    """Most target tokens per sentence, end-of-sentence counted, 1 to 512; default: tokens of source or prefix + 50."""

    no_repeat_ngram_size: int | None = None
    """Forbids that a run of this many tokens occurs twice in a sentence, 0 to 16; 0, the default, allows it."""

    repetition_penalty: float | None = None
    """Makes tokens the sentence holds already less likely, 1 to 10; default 1, which leaves them alone."""

    coverage_penalty: float | None = None
    """Weight of the penalty for source tokens left uncovered, 0 to 5; 0, the default, disables it."""

    repetition_guard: bool | None = None
    """Decode a sentence again, with repeats forbidden, if its translation runs in a loop, is the source or has an
    absurd length; default True. Has no effect with `sampling`."""

    sampling: SamplingOptions | None = None
    """Draw tokens at random; None: beam search."""

    target_prefix: str | None = None
    """What the translation of each text starts with, up to 1,000 characters."""

    split_sentences: bool | None = None
    """Split each text into sentences that are translated one by one; default True."""

    long_sentences: LongSentencePolicy | None = None
    """What to do with a sentence that is longer than the model takes; default `SPLIT`."""

    format: TextFormat | None = None
    """What the texts are written in; default `PLAIN`."""

    return_scores: bool | None = None
    """Return `Hypothesis.token_log_probs`; default False."""

    return_tokens: bool | None = None
    """Return `Hypothesis.tokens`; default False."""

    return_alignment: bool | None = None
    """Return `Hypothesis.alignment`; default False."""

    suppressed_tokens: tuple[str, ...] = ()
    """Pieces of the vocabulary, spelled as in `Hypothesis.tokens`, that no translation may hold: at most 64."""

    return_attention: AttentionDetail | None = None
    """Return `Hypothesis.attention`, and how much of it; default `NONE`."""

    early_stopping: bool | None = None
    """End the search of a sentence once `beam_size` hypotheses have finished; default False: once none that lives can
    be better. Has no effect with `sampling`."""

    protection: ProtectionOptions | None = None
    """What must come back unchanged; None: placeholders, addresses, paths, code and tags."""

    terms: tuple[Term, ...] = ()
    """Words and phrases with fixed translations, at most 128."""

    glossary: str | None = None
    """Name of a glossary of the server, whose terms hold where none of `terms` is."""


class RequestSettings(TypedDict, total=False):
    """What goes with the text in every request for a translation."""

    source_language: str
    """BCP-47 tag, such as `en`; default: detected by the server, if it can."""

    target_language: Required[str]
    """BCP-47 tag, such as `de`."""

    model: str
    """`name`, `name/version` or `name@label`, such as `en-de@stable`; default: the model for the language pair."""

    options: DecodingOptions
    """How to translate; default: as the server decides."""

    priority: Priority
    """How urgent the request is; default `INTERACTIVE`."""

    request_id: str
    """Names the request in answers and logs, up to 128 printable ASCII characters; default: a random one."""


class TranslationRequest(RequestSettings, total=False):
    """One request of a stream: `TranslationRequest(texts=["Hello."], source_language="en", target_language="de")`."""

    texts: Required[Sequence[str]]
    """1 to 128 texts."""

    target_prefixes: Sequence[str]
    """What each translation starts with, one for each text, in place of `options.target_prefix`; default: none."""

    pivot_languages: Sequence[str]
    """Languages that may be translated through, in this order, if no model translates directly; default: none."""


def translation_message(request: TranslationRequest) -> pb.TranslateRequest:
    """Make the wire message, with a new request id if there is none.

    Raises:
        TypeError: if `texts` or another sequence of strings is one string, or a setting has the wrong type.
        ValueError: if a setting is unknown or does not fit its wire type, or the request id is not printable ASCII.
    """
    _check_strings("texts", request.get("texts"))
    _check_strings("target_prefixes", request.get("target_prefixes", ()))
    _check_strings("pivot_languages", request.get("pivot_languages", ()))
    return pb.TranslateRequest(**_wire_fields(request))


def document_message(text: str, settings: RequestSettings) -> pb.TranslateDocumentRequest:
    """Make the wire message, with a new request id if there is none.

    Raises:
        TypeError: if a setting has the wrong type.
        ValueError: if a setting is unknown or does not fit its wire type, or the request id is not printable ASCII.
    """
    _check_type("text", text, str)
    return pb.TranslateDocumentRequest(text=text, **_wire_fields(settings))


def detection_message(texts: Sequence[str], target_language: str) -> pb.DetectLanguageRequest:
    """Make the wire message; TypeError if `texts` is one string or holds something else."""
    _check_strings("texts", texts)
    return pb.DetectLanguageRequest(texts=texts, target_language=target_language)


def new_request_id() -> str:
    """Make an id that no other request has."""
    return uuid.uuid4().hex


def _wire_fields(settings: RequestSettings) -> dict[str, Any]:
    fields: dict[str, Any] = dict(settings)
    options = fields.pop("options", None)
    if options is not None:
        _check_type("options", options, DecodingOptions)
        fields["options"] = _options_message(options)
    fields["request_id"] = settings.get("request_id") or new_request_id()
    # It travels as gRPC metadata too, which holds nothing else.
    if not (fields["request_id"].isascii() and fields["request_id"].isprintable()):
        raise ValueError(f"request_id is {fields['request_id']!r}, must be printable ASCII")
    return fields


def _options_message(options: DecodingOptions) -> pb.DecodingOptions:
    if options.suppressed_tokens is not None:
        _check_strings("suppressed_tokens", options.suppressed_tokens)
    fields = _present(options)
    if options.sampling is not None:
        _check_type("options.sampling", options.sampling, SamplingOptions)
        fields["sampling"] = pb.SamplingOptions(**_present(options.sampling))
    if options.protection is not None:
        _check_type("options.protection", options.protection, ProtectionOptions)
        fields["protection"] = pb.ProtectionOptions(**_present(options.protection))
    fields["terms"] = [pb.Term(**_present(term)) for term in options.terms]
    return pb.DecodingOptions(**fields)


def _present(options: DecodingOptions | SamplingOptions | ProtectionOptions | Term) -> dict[str, Any]:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if value is not None}


def _check_strings(name: str, values: object) -> None:
    """Raise a TypeError unless `values` are several strings; a string is a sequence of strings, too."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        what = "one string" if isinstance(values, str) else f"of type {type(values).__name__}"
        raise TypeError(f"{name} is {what}, must be a sequence of strings")
    if isinstance(values, Collection):  # an iterator can be read once only; protobuf reads it
        for index, value in enumerate(values):
            _check_type(f"{name}[{index}]", value, str)


def _check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{name} is of type {type(value).__name__}, must be {expected.__name__}")
