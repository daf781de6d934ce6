"""Requests as the caller writes them, and their conversion to messages.

`v1/translation.proto` declares fields, ranges and defaults. The server checks the ranges; the client does not.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, TypeVar

from google.protobuf.message import Message

from dragoman.client.enums import (
    AttentionDetail,
    LongSentencePolicy,
    NumberFormat,
    Priority,
    ProtectedKind,
    TextFormat,
)
from dragoman.client.message_mapping import check_items, check_type, to_fields
from dragoman.option_ranges import option_ranges
from dragoman.v1 import translation_pb2 as pb

T = TypeVar("T")


def _with_ranges(message: type[Message]) -> Callable[[type[T]], type[T]]:
    """Add the ranges and defaults of the fields of a message to the docstring of a class."""

    def decorate(cls: type[T]) -> type[T]:
        lines = [f"    {name}: {option.description}" for name, option in option_ranges(message).items()]
        cls.__doc__ = "\n".join((str(cls.__doc__), "", "Ranges and defaults:", *lines))
        return cls

    return decorate


@_with_ranges(pb.SamplingOptions)
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Options of random sampling; None selects the default."""

    temperature: float | None = None
    """Divisor of the log-probabilities; values below 1 prefer likely tokens."""

    top_k: int | None = None
    """Sample from this number of most likely tokens."""

    top_p: float | None = None
    """Sample from the most likely tokens whose probabilities add up to this value."""

    seed: int | None = None
    """Seed of the random generator."""


@_with_ranges(pb.ProtectionOptions)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionOptions:
    """Spans of text that are preserved unchanged."""

    enabled: bool | None = None
    """Protect the default kinds: all except `COLON`, and except the kinds that a setting of the server removes."""

    enabled_kinds: tuple[ProtectedKind, ...] = ()
    """Kinds to protect in addition to the default kinds. `NUMBER` protects every number and keeps it as written."""

    disabled_kinds: tuple[ProtectedKind, ...] = ()
    """Kinds not to protect, even if `enabled_kinds` contains them."""

    patterns: tuple[str, ...] = ()
    """Additional spans to protect: literal text in which `*` matches 1 to 100 characters, such as `[[*]]`."""


@_with_ranges(pb.Term)
@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word or phrase with a fixed translation."""

    source: str
    target: str = ""
    """Its translation; empty: the source text itself."""

    is_case_sensitive: bool = False
    is_part_of_word: bool = False
    """True if it also matches inside words."""


@_with_ranges(pb.DecodingOptions)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """Options of a translation; None selects the default of the server."""

    beam_size: int | None = None
    """Live hypotheses per sentence; 1 is greedy search. Must be None with `sampling`."""

    num_hypotheses: int | None = None
    """Translations returned per text, at most `beam_size` if that is given.

    Beam search returns fewer if several hypotheses have the same text or if one is empty.
    """

    length_penalty: float | None = None
    """Exponent of the length penalty of Wu et al. 2016 (arXiv:1609.08144)."""

    min_target_tokens: int | None = None
    """Minimum number of target tokens per sentence, excluding end-of-sentence."""

    max_target_tokens: int | None = None
    """Maximum number of target tokens per sentence, including end-of-sentence."""

    no_repeat_ngram_size: int | None = None
    """Length of token sequences that must not occur twice in a sentence; 0 disables the rule."""

    repetition_penalty: float | None = None
    """Makes tokens that are already in the sentence less likely; 1 disables the penalty."""

    coverage_penalty: float | None = None
    """Weight of the penalty for source tokens without attention; 0 disables it."""

    repetition_guard: bool | None = None
    """Decode a sentence again, without repetitions, if its translation loops or has an implausible length. Has no
    effect with `sampling`."""

    sampling: SamplingOptions | None = None
    """Sample tokens at random instead of searching."""

    target_prefix: str | None = None
    """Start of each translation."""

    split_sentences: bool | None = None
    """Split each text into sentences that are translated separately."""

    long_sentences: LongSentencePolicy | None = None
    """Handling of sentences that are longer than the model accepts."""

    format: TextFormat | None = None
    return_scores: bool | None = None
    """Return `Hypothesis.token_log_probs`."""

    return_tokens: bool | None = None
    """Return `Hypothesis.tokens`."""

    return_alignment: bool | None = None
    """Return `Hypothesis.alignment`."""

    suppressed_tokens: tuple[str, ...] = ()
    """Pieces of the vocabulary, spelled as in `Hypothesis.tokens`, that no translation may contain."""

    return_attention: AttentionDetail | None = None
    """Return `Hypothesis.attention` at this level of detail."""

    early_stopping: bool | None = None
    """End the search of a sentence when `beam_size` hypotheses have finished, instead of when no live hypothesis can
    be better. Has no effect with `sampling`."""

    protection: ProtectionOptions | None = None
    """Spans that are preserved unchanged; None: the default kinds, such as placeholders, addresses and numbers."""

    terms: tuple[Term, ...] = ()
    """Words and phrases with fixed translations."""

    glossary: str | None = None
    """Name of a glossary of the server. Entries of `terms` take precedence."""

    number_format: NumberFormat | None = None
    """Format of protected numbers: separators of the target language, or as written in the source."""


class RequestSettings(TypedDict, total=False):
    """Settings of every request for a translation."""

    source_language: str
    """BCP-47 tag, such as `en`; default: detected by the server."""

    target_language: Required[str]
    """BCP-47 tag, such as `de`."""

    model: str
    """`name`, `name/version` or `name@label`, such as `en-de@stable`; default: the model of the language pair."""

    options: DecodingOptions
    """Default: the defaults of the server."""

    priority: Priority
    """Default: `INTERACTIVE`."""

    request_id: str
    """Id in results and logs, up to 128 printable ASCII characters; default: a random id."""


class TranslationRequest(RequestSettings, total=False):
    """One request of a stream: `TranslationRequest(texts=["Hello."], source_language="en", target_language="de")`."""

    texts: Required[Sequence[str]]
    """1 to 128 texts."""

    target_prefixes: Sequence[str]
    """Start of each translation, one for each text, instead of `options.target_prefix`; default: none."""

    pivot_languages: Sequence[str]
    """Intermediate languages to try, in this order, if no model translates directly; default: none."""


def translation_message(request: TranslationRequest) -> pb.TranslateRequest:
    """Convert a request to its message, with a new request id if it has none.

    Raises:
        TypeError: if a sequence of strings is one string, or a setting has the wrong type.
        ValueError: if a setting is unknown or does not fit its wire type, or the request id is not printable ASCII.
    """
    check_items("texts", request.get("texts"), str)
    check_items("target_prefixes", request.get("target_prefixes", ()), str)
    check_items("pivot_languages", request.get("pivot_languages", ()), str)
    return pb.TranslateRequest(**_wire_fields(request))


def document_message(text: str, settings: RequestSettings) -> pb.TranslateDocumentRequest:
    """Convert a document and its settings to a message; see `translation_message`."""
    check_type("text", text, str)
    return pb.TranslateDocumentRequest(text=text, **_wire_fields(settings))


def new_request_id() -> str:
    """Return a unique request id."""
    return uuid.uuid4().hex


def _wire_fields(settings: RequestSettings) -> dict[str, Any]:
    fields: dict[str, Any] = dict(settings)
    options = fields.pop("options", None)
    if options is not None:
        check_type("options", options, DecodingOptions)
        fields["options"] = to_fields(options, "options")
    request_id = fields["request_id"] = settings.get("request_id") or new_request_id()
    if not (request_id.isascii() and request_id.isprintable()):  # the id is also sent as gRPC metadata
        raise ValueError(f"request_id is {request_id!r}, must be printable ASCII")
    return fields
