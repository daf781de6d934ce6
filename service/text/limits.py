"""What one request may hold: the limits an operator sets, the caps the interface promises, the checks."""

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


class TranslationDefaults(BaseModel):
    """What holds where a request does not choose."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    beam_size: int = Field(default=4, ge=1, le=MAX_BEAM_SIZE)
    """Live hypotheses of each sentence; 1 is greedy search."""

    length_penalty: float = Field(default=0.6, ge=0, le=MAX_LENGTH_PENALTY)
    """Exponent of the length penalty; 0 disables it."""

    repetition_guard: bool = True
    """Decode a sentence again if its translation runs in a loop, copies the source or has an absurd length."""


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


def check_attention(options: TranslationOptions, segments: Sequence[Segment]) -> None:
    """Refuse more attention than an answer should hold.

    Raises:
        InvalidFieldError: naming `texts`.
    """
    limits = {"return_alignment": MAX_ALIGNED_TOKENS} if options.return_alignment else {}
    if options.return_attention in MAX_ATTENTION_TOKENS:
        name = f"return_attention {options.return_attention.name}"
        limits[name] = MAX_ATTENTION_TOKENS[options.return_attention]
    num_tokens = sum(len(segment.source_ids) for segment in segments)
    num_hypotheses = max((segment.search.num_hypotheses for segment in segments), default=1)
    for name, limit in limits.items():
        if num_tokens * num_hypotheses > limit:
            value = f"{num_tokens} source tokens times {num_hypotheses} hypotheses"
            raise InvalidFieldError("texts", value, f"at most {limit} with options.{name}")


def _check_unicode(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFieldError(field, "a text with a lone surrogate", "Unicode text") from error
