"""What one request may hold and ask for: the limits an operator sets, the caps the interface promises, the checks."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.datatypes import SearchConfig, Segment, TranslationOptions
from service.errors import InvalidFieldError

_Choice = TypeVar("_Choice")

MAX_BEAM_SIZE = 16
"""Of a request; the interface promises this cap."""

MAX_LENGTH_PENALTY = 5.0
"""Of a request; the interface promises this cap."""

MAX_TARGET_TOKENS = 512
"""Of a request, whatever its model takes; the interface promises this cap."""

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
        if not _is_unicode(text):
            raise InvalidFieldError(field, "a text with a lone surrogate", "Unicode text")
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


def search_config(options: TranslationOptions, defaults: TranslationDefaults) -> SearchConfig:
    """Return the options with the defaults filled in.

    Without a choice `max_target_tokens` is the cap of the interface; each segment gets its own.

    Raises:
        InvalidFieldError: naming the option that is out of range.
    """
    beam_size = _chosen(options.beam_size, defaults.beam_size)
    alpha = _chosen(options.length_penalty_alpha, defaults.length_penalty)
    num_hypotheses = _chosen(options.num_hypotheses, 1)
    min_target_tokens = _chosen(options.min_target_tokens, 0)
    max_target_tokens = _chosen(options.max_target_tokens, MAX_TARGET_TOKENS)
    _check_range("options.beam_size", beam_size, 1, MAX_BEAM_SIZE)
    _check_range("options.num_hypotheses", num_hypotheses, 1, beam_size, note=", the beam size")
    _check_range("options.length_penalty", alpha, 0, MAX_LENGTH_PENALTY)
    _check_range("options.max_target_tokens", max_target_tokens, 1, MAX_TARGET_TOKENS)
    below = ", below options.max_target_tokens"
    _check_range("options.min_target_tokens", min_target_tokens, 0, max_target_tokens - 1, note=below)
    return SearchConfig(
        beam_size=beam_size,
        num_hypotheses=num_hypotheses,
        length_penalty_alpha=alpha,
        min_target_tokens=min_target_tokens,
        max_target_tokens=max_target_tokens,
    )


def check_target_limit(options: TranslationOptions, *, limit: int, model: str) -> None:
    """Refuse target limits beyond those of the model.

    Args:
        options: whose other fields are checked already.
        limit: longest target of the model in tokens, EOS counted.
        model: `name/version`, for the message.

    Raises:
        InvalidFieldError: naming the field.
    """
    if options.max_target_tokens is not None:
        note = f", the limit of model {model}"
        _check_range("options.max_target_tokens", options.max_target_tokens, 1, limit, note=note)
    if options.min_target_tokens is not None:
        note = f", below the limit of model {model}"
        _check_range("options.min_target_tokens", options.min_target_tokens, 0, limit - 1, note=note)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _chosen(choice: _Choice | None, default: _Choice) -> _Choice:
    return default if choice is None else choice


def _check_range(field: str, value: float, low: float, high: float, *, note: str = "") -> None:
    if not low <= value <= high:  # not a number is in no range
        raise InvalidFieldError(field, value, f"{low:g} to {high:g}{note}")
