"""What a caller asked for, with the defaults filled in and every cap checked."""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from dragoman_service.datatypes import SamplingConfig, SearchConfig, Segment
from dragoman_service.errors import DeadlineExceededError, InvalidFieldError, UnsupportedFieldError
from dragoman_service.request import (
    MAX_BEAM_SIZE,
    MAX_COVERAGE_PENALTY,
    MAX_LENGTH_PENALTY,
    MAX_NGRAM_SIZE,
    MAX_PATTERN_CHARACTERS,
    MAX_PATTERN_STARS,
    MAX_PREFIX_CHARACTERS,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_SUPPRESSED_TOKENS,
    MAX_TARGET_TOKENS,
    MAX_TEMPERATURE,
    MAX_TERM_CHARACTERS,
    MAX_TEXTS,
    MAX_TOP_K,
    MIN_TEMPERATURE,
    AttentionDetail,
    SamplingOptions,
    Term,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.scheduling.latency_model import most_work
from dragoman_service.text.planning import TextModel

MAX_ALIGNED_TOKENS = 8192
"""Source tokens times hypotheses of a request with an alignment: all layers and heads of all of them are in memory
until the answer is made."""

MAX_ATTENTION_TOKENS = {AttentionDetail.AVERAGED: 4096, AttentionDetail.ALL_HEADS: 512}
"""Likewise of a request that gets the attention itself; an answer stays within a few megabytes."""

MAX_DOCUMENT_CHARACTERS = 2**28
"""Of a document, whatever the settings: positions in the translation, which may be longer, fit 32 bits."""

ATTENTION_FIELDS = ("options.coverage_penalty", "options.return_alignment", "options.return_attention")
"""What a model without an attention graph cannot do."""

_SEED_BITS = 63

_Choice = TypeVar("_Choice")


class TranslationLimits(BaseModel):
    """What one request may hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_texts: int = Field(default=MAX_TEXTS, ge=1, le=MAX_TEXTS)
    """Most texts of a request."""

    max_text_characters: int = Field(default=10_000, ge=1)
    """Most characters (Unicode code points) of each text."""

    max_request_characters: int = Field(default=100_000, ge=1)
    """Most characters of all texts of a request together."""

    max_request_sentences: int = Field(default=2048, ge=1)
    """Most sentences of all texts of a request together, parts of overlong ones counted."""

    max_request_source_tokens: int = Field(default=65_536, ge=1)
    """Most source tokens of all texts of a request together, EOS of each sentence counted."""

    max_request_work_tokens: int = Field(default=2_162_688, ge=1)
    """Most work of all texts of a request together: for each sentence its source tokens and its beam size times the
    decoder steps, taken as two for each source token, or as many as `min_target_tokens` or a prefix force. The default
    is what the most source tokens need with the widest beam."""

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
    """Live hypotheses of each sentence; 1 is greedy search. A request for more hypotheses gets a beam that is wide
    enough for them."""

    length_penalty: float = Field(default=0.6, ge=0, le=MAX_LENGTH_PENALTY)
    """Exponent of the length penalty; 0 disables it."""

    repetition_guard: bool = True
    """Decode a sentence again if its translation runs in a loop, copies the source or has an implausible length."""

    early_stopping: bool = False
    """End the search of a sentence once as many hypotheses as its beam is wide have finished, instead of when no
    live one can be better: a tenth fewer steps with the model that ships."""


def new_seed() -> int:
    """Return an unpredictable seed."""
    return secrets.randbits(_SEED_BITS)


def check_request(
    request: TranslationRequest,
    limits: TranslationLimits,
    defaults: TranslationDefaults,
    *,
    draw_seed: Callable[[], int],
    is_document: bool = False,
) -> SearchConfig:
    """Check all of a request that needs neither a model nor a look at its texts; return its search.

    Raises:
        InvalidFieldError: naming the first field that is out of range.
    """
    if is_document:
        _check_length("text", request.texts[0], limits.max_document_characters, at_least=1)
    else:
        _check_texts(request.texts, limits)
    prefixes = {f"target_prefixes[{index}]": prefix for index, prefix in enumerate(request.target_prefixes)}
    if prefixes and len(prefixes) != len(request.texts):
        raise InvalidFieldError("target_prefixes", f"{len(prefixes)} prefixes", f"none or {len(request.texts)}")
    for field, prefix in {"options.target_prefix": request.options.target_prefix, **prefixes}.items():
        _check_length(field, prefix, MAX_PREFIX_CHARACTERS)
    _check_patterns(request.options.protection.patterns)
    _check_terms(request.options.terms)
    return search_config(request.options, defaults, draw_seed=draw_seed)


def search_config(
    options: TranslationOptions, defaults: TranslationDefaults, *, draw_seed: Callable[[], int] = new_seed
) -> SearchConfig:
    """Return the options with the defaults filled in, and a drawn seed if the request samples and names none.

    Without a choice `max_target_tokens` is the cap of the interface; each segment gets its own, as well as its own
    seed and prefix.

    Raises:
        InvalidFieldError: naming the option that is out of range.
    """
    search = SearchConfig(
        beam_size=_beam_size(options, defaults),
        num_hypotheses=_chosen(options.num_hypotheses, 1),
        length_penalty=_chosen(options.length_penalty, defaults.length_penalty),
        min_target_tokens=_chosen(options.min_target_tokens, 0),
        max_target_tokens=_chosen(options.max_target_tokens, MAX_TARGET_TOKENS),
        no_repeat_ngram_size=_chosen(options.no_repeat_ngram_size, 0),
        repetition_penalty=_chosen(options.repetition_penalty, 1.0),
        coverage_penalty=_chosen(options.coverage_penalty, 0.0),
        sampling=_sampling_config(options.sampling, draw_seed) if options.sampling else None,
        early_stopping=_chosen(options.early_stopping, defaults.early_stopping),
        repetition_guard=_chosen(options.repetition_guard, defaults.repetition_guard) and options.sampling is None,
    )
    _check_range("length_penalty", search.length_penalty, 0, MAX_LENGTH_PENALTY)
    _check_range("max_target_tokens", search.max_target_tokens, 1, MAX_TARGET_TOKENS)
    below = ", below options.max_target_tokens"
    _check_range("min_target_tokens", search.min_target_tokens, 0, search.max_target_tokens - 1, note=below)
    _check_range("no_repeat_ngram_size", search.no_repeat_ngram_size, 0, MAX_NGRAM_SIZE)
    _check_range("repetition_penalty", search.repetition_penalty, 1, MAX_REPETITION_PENALTY)
    _check_range("coverage_penalty", search.coverage_penalty, 0, MAX_COVERAGE_PENALTY)
    return search


def fit_to_model(
    search: SearchConfig, options: TranslationOptions, model: TextModel, *, name: str, has_attention: bool
) -> SearchConfig:
    """Check what a model decides of a request; return its search with the ids of the suppressed tokens.

    Messages name the model as `name`, which is `name/version`.

    Raises:
        InvalidFieldError: naming the option that is beyond the limits or the vocabulary of the model.
        UnsupportedFieldError: naming the option that needs the cross-attention.
    """
    limit = model.max_target_tokens
    if options.max_target_tokens is not None:
        _check_range("max_target_tokens", options.max_target_tokens, 1, limit, note=f", the limit of model {name}")
    if options.min_target_tokens is not None:
        note = f", below the limit of model {name}"
        _check_range("min_target_tokens", options.min_target_tokens, 0, limit - 1, note=note)
    if not has_attention:
        _check_needs_no_attention(options)
    if not options.suppressed_tokens:
        return search
    return replace(search, suppressed_tokens=_suppressed_ids(options.suppressed_tokens, model, name=name))


class TextBudget:
    """Counts what texts become while they are split, and ends that at the first limit; of a document for each sentence.

    Splitting may expand a text: a single character can become 18 of them, and each of these a token.
    """

    def __init__(
        self,
        options: TranslationOptions,
        limits: TranslationLimits,
        *,
        is_document: bool = False,
        deadline_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count nothing yet. `deadline_s` is on the clock; infinite: the work is never too late."""
        self._deadline_s = deadline_s
        self._has_deadline = deadline_s < math.inf
        self._clock = clock
        self._options = options
        self._limits = limits
        self._is_document = is_document
        self._is_cancelled = False
        self._num_segments = self._num_tokens = self._work = 0

    def cancel(self) -> None:
        """End the work at the next check, a few milliseconds later; any thread may call it."""
        self._is_cancelled = True

    def check(self) -> None:
        """Raise CancelledError if the work is no longer wanted, DeadlineExceededError if the deadline has passed."""
        if self._is_cancelled:
            raise CancelledError
        if self._has_deadline and self._clock() >= self._deadline_s:
            raise DeadlineExceededError("text")

    def check_sentence(self, num_tokens: int) -> None:
        """Raise as `check`, and InvalidFieldError for a sentence of too many source tokens, before it is split."""
        self.check()
        if self._is_document:
            self._num_segments = self._num_tokens = self._work = 0
        self._check("source tokens", self._num_tokens + num_tokens, self._limits.max_request_source_tokens)

    def add(self, segments: Sequence[Segment]) -> None:
        """Count segments; InvalidFieldError if there are too many, or too much work or attention in all."""
        self._num_segments += len(segments)
        self._num_tokens += num_source_tokens(segments)
        self._work += most_work(segments)
        self._check("sentences", self._num_segments, self._limits.max_request_sentences)
        self._check("source tokens", self._num_tokens, self._limits.max_request_source_tokens)
        self._check("work tokens (beam size times decoder steps)", self._work, self._limits.max_request_work_tokens)
        num_hypotheses = max((segment.search.num_hypotheses for segment in segments), default=1)
        for name, limit in _attention_limits(self._options).items():
            if self._num_tokens * num_hypotheses > limit:
                value = f"{self._num_tokens} or more source tokens times {num_hypotheses} hypotheses"
                raise InvalidFieldError(self._field, value, f"at most {limit} with options.{name}")

    @property
    def _field(self) -> str:
        return "text" if self._is_document else "texts"

    def _check(self, unit: str, value: int, limit: int) -> None:
        if value > limit:
            scope = "a sentence" if self._is_document else "all texts"
            raise InvalidFieldError(self._field, f"{value} or more {unit}", f"at most {limit} over {scope}")


def max_attention_tokens(options: TranslationOptions) -> float:
    """Return how many source tokens times hypotheses may be in memory with their attention; infinite without any."""
    return min(_attention_limits(options).values(), default=math.inf)


def num_source_tokens(segments: Iterable[Segment]) -> int:
    """Return the source tokens of all segments, EOS counted."""
    return sum(len(segment.source_ids) for segment in segments)


def _attention_limits(options: TranslationOptions) -> dict[str, int]:
    limits = {"return_alignment": MAX_ALIGNED_TOKENS} if options.return_alignment else {}
    if options.return_attention in MAX_ATTENTION_TOKENS:
        name = f"return_attention {options.return_attention.name}"
        limits[name] = MAX_ATTENTION_TOKENS[options.return_attention]
    return limits


def _check_needs_no_attention(options: TranslationOptions) -> None:
    has_weights = options.return_attention is not AttentionDetail.NONE
    asked = (options.coverage_penalty, options.return_alignment, has_weights)
    for field, is_asked in zip(ATTENTION_FIELDS, asked, strict=True):
        if is_asked:
            raise UnsupportedFieldError(field)


def _suppressed_ids(pieces: Sequence[str], model: TextModel, *, name: str) -> frozenset[int]:
    field = "options.suppressed_tokens"
    if len(pieces) > MAX_SUPPRESSED_TOKENS:
        raise InvalidFieldError(field, f"{len(pieces)} pieces", f"at most {MAX_SUPPRESSED_TOKENS}")
    ids = set()
    for index, piece in enumerate(pieces):
        token_id = model.tokenizer.token_id(piece)
        if token_id is None:
            limit = f"a piece of the vocabulary of model {name} that is not special"
            raise InvalidFieldError(f"{field}[{index}]", repr(piece), limit)
        ids.add(token_id)
    return frozenset(ids)


def _beam_size(options: TranslationOptions, defaults: TranslationDefaults) -> int:
    """Return the width of the search; with sampling it is the number of targets drawn."""
    num_hypotheses = _chosen(options.num_hypotheses, 1)
    if options.sampling is not None:
        if options.beam_size is not None:
            raise InvalidFieldError("options.beam_size", options.beam_size, "absent with options.sampling")
        _check_range("num_hypotheses", num_hypotheses, 1, MAX_BEAM_SIZE)
        return num_hypotheses
    beam_size = _chosen(options.beam_size, max(defaults.beam_size, min(num_hypotheses, MAX_BEAM_SIZE)))
    _check_range("beam_size", beam_size, 1, MAX_BEAM_SIZE)
    note = "" if options.beam_size is None else ", the beam size"
    _check_range("num_hypotheses", num_hypotheses, 1, MAX_BEAM_SIZE if not note else beam_size, note=note)
    return beam_size


def _sampling_config(options: SamplingOptions, draw_seed: Callable[[], int]) -> SamplingConfig:
    sampling = SamplingConfig(
        temperature=_chosen(options.temperature, 1.0),
        top_k=options.top_k,
        top_p=_chosen(options.top_p, 1.0),
        seed=draw_seed() if options.seed is None else options.seed,
    )
    _check_range("sampling.temperature", sampling.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
    if sampling.top_k is not None:
        _check_range("sampling.top_k", sampling.top_k, 1, MAX_TOP_K)
    if not 0 < sampling.top_p <= 1:  # not a number is in no range
        raise InvalidFieldError("options.sampling.top_p", sampling.top_p, "above 0, at most 1")
    if not 0 <= sampling.seed <= MAX_SEED:
        raise InvalidFieldError("options.sampling.seed", sampling.seed, "0 to 2^63 - 1")
    return sampling


def _chosen(choice: _Choice | None, default: _Choice) -> _Choice:
    return default if choice is None else choice


def _check_range(option: str, value: float, low: float, high: float, *, note: str = "") -> None:
    if not low <= value <= high:  # not a number is in no range
        raise InvalidFieldError(f"options.{option}", value, f"{low:g} to {high:g}{note}")


def _check_patterns(patterns: Sequence[str]) -> None:
    for index, pattern in enumerate(patterns):
        field = f"options.protection.patterns[{index}]"
        _check_length(field, pattern, MAX_PATTERN_CHARACTERS, at_least=2)
        if pattern.startswith("*") or "**" in pattern or any(map(str.isspace, pattern)):
            raise InvalidFieldError(field, repr(pattern), "without white space, and `*` neither first nor doubled")
    num_stars = sum(pattern.count("*") for pattern in patterns)
    if num_stars > MAX_PATTERN_STARS:
        limit = f"at most {MAX_PATTERN_STARS} in all patterns together"
        raise InvalidFieldError("options.protection.patterns", f"{num_stars} `*`", limit)


def _check_terms(terms: Sequence[Term]) -> None:
    sources = set[str]()
    for index, term in enumerate(terms):
        field = f"options.terms[{index}]"
        _check_length(f"{field}.source", term.source, MAX_TERM_CHARACTERS, at_least=1)
        _check_length(f"{field}.target", term.target, MAX_TERM_CHARACTERS)
        if term.source != term.source.strip():
            raise InvalidFieldError(f"{field}.source", repr(term.source), "without white space at its ends")
        if term.source in sources:
            raise InvalidFieldError(f"{field}.source", repr(term.source), "in no other term")
        sources.add(term.source)


def _check_texts(texts: Sequence[str], limits: TranslationLimits) -> None:
    if not 1 <= len(texts) <= limits.max_texts:
        raise InvalidFieldError("texts", f"{len(texts)} texts", f"1 to {limits.max_texts} texts")
    hint = f"; TranslateDocument (`translate_document`, `--document`) takes up to {limits.max_document_characters}"
    for index, text in enumerate(texts):
        _check_length(f"texts[{index}]", text, limits.max_text_characters, hint=hint)
    num_characters = sum(map(len, texts))
    if num_characters > limits.max_request_characters:
        limit = f"at most {limits.max_request_characters} over all texts"
        raise InvalidFieldError("texts", f"{num_characters} characters", limit)


def _check_length(field: str, text: str, at_most: int, *, at_least: int = 0, hint: str = "") -> None:
    """Reject a text that is too short or long, or no Unicode."""
    if not at_least <= len(text) <= at_most:
        limit = f"{at_least} to {at_most} characters" if at_least else f"at most {at_most}"
        raise InvalidFieldError(field, f"{len(text)} characters", limit + hint)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFieldError(field, "a text with a lone surrogate", "Unicode text") from error
