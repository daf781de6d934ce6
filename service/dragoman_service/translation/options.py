"""Validation of requests: options and the search that they describe, and limits while the texts are split.

Ranges and defaults of the options come from the contract (`dragoman.option_ranges`). This module adds the limits that a
setting or a model decides, and the rules that involve several fields.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, lru_cache
from typing import Any

from dragoman.option_ranges import OptionRange, option_range
from dragoman_service.datatypes import SamplingConfig, SearchConfig, Segment
from dragoman_service.errors import DeadlineExceededError, InvalidFieldError, UnsupportedFieldError
from dragoman_service.request import (
    MAX_PATTERN_STARS,
    AttentionDetail,
    NumberFormat,
    SamplingOptions,
    Term,
    TranslationOptions,
    TranslationRequest,
)
from dragoman_service.scheduling.admission import max_decode_cost
from dragoman_service.text.plans import TextModel
from dragoman_service.translation.settings import TranslationDefaults, TranslationLimits

# Options that need a model with an attention graph.
ATTENTION_FIELDS = ("options.coverage_penalty", "options.return_alignment", "options.return_attention")

_SEED_BITS = 63

# Source tokens times hypotheses of a request with an alignment: the attention of all layers and heads is in memory
# until the response is sent.
MAX_ALIGNED_TOKENS = 8192

# The same for requests that return the attention, so that a response stays within a few megabytes.
MAX_ATTENTION_TOKENS = {AttentionDetail.AVERAGED: 4096, AttentionDetail.ALL_HEADS: 512}


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request whose values are within their limits."""

    request: TranslationRequest  # with the defaults of the server for protected spans and numbers
    search: SearchConfig

    def with_languages(self, source_language: str, *, unchanged_texts: frozenset[int]) -> "CheckedRequest":
        """Return the request with a detected source language."""
        request = replace(self.request, source_language=source_language, unchanged_texts=unchanged_texts)
        return CheckedRequest(request, self.search)


def with_default_protection(options: TranslationOptions, defaults: TranslationDefaults) -> TranslationOptions:
    """Return options with the settings of the server for protected spans and numbers.

    A kind of `defaults.unprotected_kinds` is disabled unless the request enables it.
    """
    removed = frozenset(defaults.unprotected_kinds).difference(options.protection.enabled_kinds)
    protection = options.protection
    if not removed.issubset(protection.disabled_kinds):
        protection = replace(protection, disabled_kinds=protection.disabled_kinds | removed)
    number_format = options.number_format or NumberFormat(defaults.number_format)
    return replace(options, protection=protection, number_format=number_format)


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
) -> CheckedRequest:
    """Do all checks that need neither the model nor the sentences.

    Raises:
        InvalidFieldError: for the first field that is out of range.
    """
    if is_document:
        _check_text("text", request.texts[0], limits.max_document_characters, at_least=1)
    else:
        _check_texts(request.texts, limits)
    _check_fields(request, "", without=("texts", "options"))
    if request.target_prefixes and len(request.target_prefixes) != len(request.texts):
        value, limit = f"{len(request.target_prefixes)} prefixes", f"none or {len(request.texts)}"
        raise InvalidFieldError("target_prefixes", value, limit)
    options = request.options
    texts = options.target_prefix, options.suppressed_tokens, options.terms, options.protection.patterns
    if options.sampling or any(texts):
        options, search = _checked_options(options, defaults, draw_seed)
    else:
        options, search = _cached_options(options, defaults)
    return CheckedRequest(replace(request, options=options), search)


def _checked_options(
    options: TranslationOptions, defaults: TranslationDefaults, draw_seed: Callable[[], int]
) -> tuple[TranslationOptions, SearchConfig]:
    _check_fields(options, "options.")
    _check_patterns(options.protection.patterns)
    _check_terms(options.terms)
    search = search_config(options, defaults, draw_seed=draw_seed)
    return with_default_protection(options, defaults), search


@lru_cache(maxsize=256)
def _cached_options(
    options: TranslationOptions, defaults: TranslationDefaults
) -> tuple[TranslationOptions, SearchConfig]:
    # For options without texts of the caller and without a seed. Most callers always send the same options.
    return _checked_options(options, defaults, new_seed)


def search_config(
    options: TranslationOptions, defaults: TranslationDefaults, *, draw_seed: Callable[[], int] = new_seed
) -> SearchConfig:
    """Return the search of options whose ranges are checked, with defaults and, if necessary, a drawn seed.

    If `max_target_tokens` is absent, it is the maximum of the contract. Each segment gets its own limit, seed and
    prefix.

    Raises:
        InvalidFieldError: for options that contradict each other.
    """
    chosen = _present(options, SearchConfig)
    defaults_of_search = defaults.model_dump(exclude={"unprotected_kinds", "number_format"})
    values = {**_constant_defaults(SearchConfig, "options."), **defaults_of_search, **chosen}
    if options.sampling is not None:
        if options.beam_size is not None:
            raise InvalidFieldError("options.beam_size", options.beam_size, "absent with options.sampling")
        sampling = dict(_constant_defaults(SamplingConfig, "options.sampling."))
        sampling |= _present(options.sampling, SamplingConfig)
        if "seed" not in sampling:
            sampling["seed"] = draw_seed()
        # As many targets are drawn as hypotheses are requested.
        values |= {"sampling": SamplingConfig(**sampling), "repetition_guard": False}
        values["beam_size"] = values["num_hypotheses"]
    elif options.beam_size is None:
        values["beam_size"] = max(values["beam_size"], values["num_hypotheses"])
    search = SearchConfig(**{"max_target_tokens": option_range("options.max_target_tokens").maximum, **values})
    if search.num_hypotheses > search.beam_size:
        limit = f"1 to {search.beam_size}, the beam size"
        raise InvalidFieldError("options.num_hypotheses", search.num_hypotheses, limit)
    if search.min_target_tokens >= search.max_target_tokens:
        limit = f"0 to {search.max_target_tokens - 1}, below options.max_target_tokens"
        raise InvalidFieldError("options.min_target_tokens", search.min_target_tokens, limit)
    return search


def fit_to_model(
    search: SearchConfig, options: TranslationOptions, model: TextModel, *, name: str, has_attention: bool
) -> SearchConfig:
    """Check the limits of a model; return the search with the ids of the suppressed tokens.

    `name` is `name/version` of the model, for errors.

    Raises:
        InvalidFieldError: for an option that exceeds a limit or the vocabulary of the model.
        UnsupportedFieldError: for an option that needs the cross-attention.
    """
    limit = model.max_target_tokens
    if options.max_target_tokens is not None and options.max_target_tokens > limit:
        text = f"1 to {limit}, the limit of model {name}"
        raise InvalidFieldError("options.max_target_tokens", options.max_target_tokens, text)
    if options.min_target_tokens is not None and options.min_target_tokens >= limit:
        text = f"0 to {limit - 1}, below the limit of model {name}"
        raise InvalidFieldError("options.min_target_tokens", options.min_target_tokens, text)
    returns_attention = options.return_attention is not AttentionDetail.NONE
    used = (options.coverage_penalty, options.return_alignment, returns_attention)
    for field, is_used in zip(ATTENTION_FIELDS, used, strict=True):
        if is_used and not has_attention:
            raise UnsupportedFieldError(field)
    if not options.suppressed_tokens:
        return search
    return replace(search, suppressed_tokens=_suppressed_ids(options.suppressed_tokens, model, name=name))


def _suppressed_ids(pieces: Sequence[str], model: TextModel, *, name: str) -> frozenset[int]:
    ids = set()
    for index, piece in enumerate(pieces):
        token_id = model.tokenizer.token_id(piece)
        if token_id is None:
            limit = f"a piece of the vocabulary of model {name} that is not special"
            raise InvalidFieldError(f"options.suppressed_tokens[{index}]", repr(piece), limit)
        ids.add(token_id)
    return frozenset(ids)


def _present(options: TranslationOptions | SamplingOptions, kind: type) -> dict[str, Any]:
    # The options that the request sets, and that are fields of `kind` with the same value.
    names = {field.name for field in fields(kind)} & {field.name for field in fields(options)}
    names -= {"sampling", "target_prefix", "suppressed_tokens"}  # converted
    return {name: value for name in names if (value := getattr(options, name)) is not None}


@cache
def _constant_defaults(kind: type, path: str) -> Mapping[str, Any]:
    return {name: option.default for name, option in _ranges(kind, path).items() if option.default is not None}


@cache
def _ranges(kind: type, path: str) -> Mapping[str, OptionRange]:
    # The ranges of the fields of a dataclass that has the names of the contract.
    ranges = {}
    for field in fields(kind):
        with suppress(KeyError):
            ranges[field.name] = option_range(path + field.name)
    return ranges


def _check_fields(message: Any, path: str, field: str = "", *, without: Collection[str] = ()) -> None:
    # `path` locates the declaration of a field in the contract, `field` the field itself: it has indices of lists.
    for name, option in _ranges(message.__class__, path).items():
        if name in without:
            continue
        value = getattr(message, name)
        if isinstance(value, tuple | frozenset):
            _check_items(value, option, path + name, (field or path) + name)
        else:
            _check_value(value, option, path + name, (field or path) + name)


def _check_items(items: Iterable[Any], option: OptionRange, path: str, field: str) -> None:
    items = tuple(items)
    if option.max_items is not None and len(items) > option.max_items:
        raise InvalidFieldError(field, f"a list of {len(items)}", f"at most {option.max_items} items")
    for index, item in enumerate(items):
        _check_value(item, option, path, f"{field}[{index}]")


def _check_value(value: Any, option: OptionRange, path: str, field: str) -> None:
    if isinstance(value, str):
        _check_text(field, value, option.max_characters, at_least=option.min_characters)
    elif is_dataclass(value):
        _check_fields(value, f"{path}.", f"{field}.")
    elif isinstance(value, int | float) and not isinstance(value, bool) and not option.contains(value):
        raise InvalidFieldError(field, value, option.text)


def _check_patterns(patterns: Sequence[str]) -> None:
    for index, pattern in enumerate(patterns):
        if pattern.startswith("*") or "**" in pattern or any(map(str.isspace, pattern)):
            limit = "without white space, and `*` neither first nor doubled"
            raise InvalidFieldError(f"options.protection.patterns[{index}]", repr(pattern), limit)
    num_stars = sum(pattern.count("*") for pattern in patterns)
    if num_stars > MAX_PATTERN_STARS:
        limit = f"at most {MAX_PATTERN_STARS} in all patterns together"
        raise InvalidFieldError("options.protection.patterns", f"{num_stars} `*`", limit)


def _check_terms(terms: Sequence[Term]) -> None:
    sources = set[str]()
    for index, term in enumerate(terms):
        field = f"options.terms[{index}].source"
        if term.source != term.source.strip():
            raise InvalidFieldError(field, repr(term.source), "without white space at its ends")
        if term.source in sources:
            raise InvalidFieldError(field, repr(term.source), "in no other term")
        sources.add(term.source)


def _check_texts(texts: Sequence[str], limits: TranslationLimits) -> None:
    if not 1 <= len(texts) <= limits.max_texts:
        raise InvalidFieldError("texts", f"{len(texts)} texts", f"1 to {limits.max_texts} texts")
    hint = f"; TranslateDocument (`translate_document`, `--document`) takes up to {limits.max_document_characters}"
    for index, text in enumerate(texts):
        _check_text(f"texts[{index}]", text, limits.max_text_characters, hint=hint)
    num_characters = sum(map(len, texts))
    if num_characters > limits.max_request_characters:
        limit = f"at most {limits.max_request_characters} over all texts"
        raise InvalidFieldError("texts", f"{num_characters} characters", limit)


def _check_text(field: str, text: str, at_most: int | None, *, at_least: int = 0, hint: str = "") -> None:
    if len(text) < at_least or (at_most is not None and len(text) > at_most):
        limit = f"{at_least} to {at_most} characters" if at_least else f"at most {at_most}"
        raise InvalidFieldError(field, f"{len(text)} characters", limit + hint)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFieldError(field, "a text with a lone surrogate", "Unicode text") from error


class RequestBudget:
    """Counts the segments of a request while its texts are split, and raises at the first limit.

    The limits apply to each sentence of a document. Splitting may expand a text: one character can become 18
    characters, each of them a token.
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
        """Start with nothing counted. `deadline_s` is a time of the clock."""
        self._deadline_s = deadline_s
        self._has_deadline = deadline_s < math.inf
        self._clock = clock
        self._options = options
        self._limits = limits
        self._is_document = is_document
        self._is_cancelled = False
        self._num_segments = self._num_tokens = self._work = 0

    def cancel(self) -> None:
        """End the work at the next check, within a few milliseconds. Thread-safe."""
        self._is_cancelled = True

    def check(self) -> None:
        """Raise CancelledError or DeadlineExceededError if the work must end."""
        if self._is_cancelled:
            raise CancelledError
        if self._has_deadline and self._clock() >= self._deadline_s:
            raise DeadlineExceededError("text")

    def check_sentence(self, num_tokens: int) -> None:
        """Raise as `check`, and InvalidFieldError if a sentence has too many source tokens, before it is split."""
        self.check()
        if self._is_document:
            self._num_segments = self._num_tokens = self._work = 0
        self._check("source tokens", self._num_tokens + num_tokens, self._limits.max_request_source_tokens)

    def add(self, segments: Sequence[Segment]) -> None:
        """Count segments; InvalidFieldError if there are too many, or they need too much work or attention."""
        self._num_segments += len(segments)
        self._num_tokens += num_source_tokens(segments)
        self._work += max_decode_cost(segments)
        self._check("sentences", self._num_segments, self._limits.max_request_sentences)
        self._check("source tokens", self._num_tokens, self._limits.max_request_source_tokens)
        self._check("units of decode cost", self._work, self._limits.max_request_decode_cost)
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
    """Return the limit of source tokens times hypotheses with attention in memory; infinite without attention."""
    return min(_attention_limits(options).values(), default=math.inf)


def num_source_tokens(segments: Iterable[Segment]) -> int:
    """Return the source tokens of all segments, including EOS."""
    return sum(len(segment.source_ids) for segment in segments)


def segment_cost(segment: Segment) -> int:
    """Return the source tokens of a segment times its hypotheses."""
    return len(segment.source_ids) * segment.search.num_hypotheses


def _attention_limits(options: TranslationOptions) -> dict[str, int]:
    limits = {"return_alignment": MAX_ALIGNED_TOKENS} if options.return_alignment else {}
    if options.return_attention in MAX_ATTENTION_TOKENS:
        name = f"return_attention {options.return_attention.name}"
        limits[name] = MAX_ATTENTION_TOKENS[options.return_attention]
    return limits
