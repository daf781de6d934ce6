"""What one request may hold: the limits an operator sets, the caps the interface promises, the checks."""

import math
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from service.datatypes import AttentionDetail, Segment, TranslationOptions, TranslationRequest
from service.errors import InvalidFieldError

MAX_BEAM_SIZE = 16
"""Of a request; the interface promises this cap."""

MAX_LENGTH_PENALTY = 5.0
"""Of a request; the interface promises this cap."""

MAX_TARGET_TOKENS = 512
"""Of a request, whatever its model takes; the interface promises this cap."""

MAX_PREFIX_CHARACTERS = 1000
"""Of a target prefix; the interface promises this cap."""

MAX_ALIGNED_TOKENS = 8192
"""Source tokens times hypotheses of a request with an alignment; the interface promises this cap. All layers and heads
of all of them are in memory until the answer is made."""

MAX_ATTENTION_TOKENS = {AttentionDetail.AVERAGED: 4096, AttentionDetail.ALL_HEADS: 512}
"""Likewise of a request that gets the attention itself; an answer stays within a few megabytes."""

MAX_DOCUMENT_CHARACTERS = 2**28
"""Of a document, whatever the settings: positions in the translation, which may be longer, fit 32 bits."""

EXTRA_TARGET_TOKENS = 50
"""What a target may have more than its source if the caller sets no limit, as in section 6.1 of Vaswani et al. 2017."""


class TranslationLimits(BaseModel):
    """What one request may hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_texts: int = Field(default=128, ge=1, le=128)
    """Most texts of a request."""

    max_text_characters: int = Field(default=10_000, ge=1)
    """Most characters (Unicode code points) of each text."""

    max_request_characters: int = Field(default=100_000, ge=1)
    """Most characters of all texts of a request together."""

    max_request_sentences: int = Field(default=2048, ge=1)
    """Most sentences of all texts of a request together, parts of overlong ones counted. Keep it below what the queue
    takes, or a request in between is told to come back and never finds room."""

    max_request_source_tokens: int = Field(default=65_536, ge=1)
    """Most source tokens of all texts of a request together, EOS of each sentence counted. Keep it below
    what the queue takes, too."""

    max_document_characters: int = Field(default=1_000_000, ge=1, le=MAX_DOCUMENT_CHARACTERS)
    """Most characters of a document, whose memory on the server is a few times its size. A message holds up to 4 bytes
    a character, so `grpc.max_message_bytes` may have to grow with it."""

    document_window_segments: int = Field(default=64, ge=1, le=1024)
    """Sentences of a document that are in the queue or decoded at a time, parts of overlong ones counted; finished
    ones that wait for an earlier one, or for a slow reader, are among them."""


class TranslationDefaults(BaseModel):
    """What holds where a request does not choose."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    beam_size: int = Field(default=4, ge=1, le=MAX_BEAM_SIZE)
    """Live hypotheses of each sentence; 1 is greedy search."""

    length_penalty: float = Field(default=0.6, ge=0, le=MAX_LENGTH_PENALTY)
    """Exponent of the length penalty; 0 disables it."""

    repetition_guard: bool = True
    """Decode a sentence again if its translation runs in a loop, copies the source or has an absurd length."""

    early_stopping: bool = False
    """End the search of a sentence once as many hypotheses as its beam is wide have finished, in place of when none
    that lives can be better: a tenth fewer steps with the model that ships."""


def check_texts(texts: Sequence[str], limits: TranslationLimits) -> None:
    """Refuse texts that are too many, too long or no Unicode.

    Raises:
        InvalidFieldError: naming `texts` or one of them.
    """
    if not 1 <= len(texts) <= limits.max_texts:
        raise InvalidFieldError("texts", f"{len(texts)} texts", f"1 to {limits.max_texts} texts")
    for index, text in enumerate(texts):
        field = f"texts[{index}]"
        if len(text) > limits.max_text_characters:
            raise InvalidFieldError(field, f"{len(text)} characters", f"at most {limits.max_text_characters}")
        _check_unicode(field, text)
    num_characters = sum(map(len, texts))
    if num_characters > limits.max_request_characters:
        limit = f"at most {limits.max_request_characters} over all texts"
        raise InvalidFieldError("texts", f"{num_characters} characters", limit)


def check_document(text: str, limits: TranslationLimits) -> None:
    """Refuse a document that is empty, too long or no Unicode.

    Raises:
        InvalidFieldError: naming `text`.
    """
    if not 1 <= len(text) <= limits.max_document_characters:
        raise InvalidFieldError("text", f"{len(text)} characters", f"1 to {limits.max_document_characters} characters")
    _check_unicode("text", text)


def check_segments(segments: Sequence[Segment], limits: TranslationLimits) -> None:
    """Refuse a request whose texts came apart into too much.

    Raises:
        InvalidFieldError: naming `texts`.
    """
    if len(segments) > limits.max_request_sentences:
        limit = f"at most {limits.max_request_sentences} over all texts"
        raise InvalidFieldError("texts", f"{len(segments)} sentences", limit)
    num_tokens = sum(len(segment.source_ids) for segment in segments)
    if num_tokens > limits.max_request_source_tokens:
        limit = f"at most {limits.max_request_source_tokens} over all texts"
        raise InvalidFieldError("texts", f"{num_tokens} source tokens", limit)


def check_prefixes(request: TranslationRequest) -> None:
    """Refuse prefixes that are too long, no Unicode, or not one for each text.

    Raises:
        InvalidFieldError: naming the field.
    """
    prefixes = {f"target_prefixes[{index}]": prefix for index, prefix in enumerate(request.target_prefixes)}
    if prefixes and len(prefixes) != len(request.texts):
        raise InvalidFieldError("target_prefixes", f"{len(prefixes)} prefixes", f"none or {len(request.texts)}")
    for field, prefix in {"options.target_prefix": request.options.target_prefix, **prefixes}.items():
        if len(prefix) > MAX_PREFIX_CHARACTERS:
            raise InvalidFieldError(field, f"{len(prefix)} characters", f"at most {MAX_PREFIX_CHARACTERS}")
        _check_unicode(field, prefix)


def check_attention(options: TranslationOptions, segments: Sequence[Segment], *, field: str = "texts") -> None:
    """Refuse more attention than an answer should hold.

    Args:
        options: of the request.
        segments: of all that is answered at once.
        field: what holds them.

    Raises:
        InvalidFieldError: naming the field.
    """
    num_tokens = sum(len(segment.source_ids) for segment in segments)
    num_hypotheses = max((segment.search.num_hypotheses for segment in segments), default=1)
    for name, limit in _attention_limits(options).items():
        if num_tokens * num_hypotheses > limit:
            value = f"{num_tokens} source tokens times {num_hypotheses} hypotheses"
            raise InvalidFieldError(field, value, f"at most {limit} with options.{name}")


def max_attention_tokens(options: TranslationOptions) -> float:
    """Return how many source tokens times hypotheses may be in memory with their attention; infinite without any."""
    return min(_attention_limits(options).values(), default=math.inf)


def _attention_limits(options: TranslationOptions) -> dict[str, int]:
    limits = {"return_alignment": MAX_ALIGNED_TOKENS} if options.return_alignment else {}
    if options.return_attention in MAX_ATTENTION_TOKENS:
        name = f"return_attention {options.return_attention.name}"
        limits[name] = MAX_ATTENTION_TOKENS[options.return_attention]
    return limits


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFieldError(field, "a text with a lone surrogate", "Unicode text") from error
