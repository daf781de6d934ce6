"""What a caller asked for, with the defaults filled in and every cap checked."""

import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from service.bundle import Manifest
from service.datatypes import AttentionDetail, SamplingConfig, SamplingOptions, SearchConfig, TranslationOptions
from service.errors import InvalidFieldError, UnsupportedFieldError
from service.text.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_TARGET_TOKENS, TranslationDefaults

_Choice = TypeVar("_Choice")

MAX_NGRAM_SIZE = 16
"""Of runs that must not occur twice; this and the caps below are promised by the interface."""

MAX_REPETITION_PENALTY = 10.0
MAX_COVERAGE_PENALTY = 5.0
MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 10.0
MAX_TOP_K = 1000
MAX_SEED = 2**63 - 1
MAX_SUPPRESSED_TOKENS = 64

ATTENTION_FIELDS = ("options.coverage_penalty", "options.return_alignment", "options.return_attention")
"""What a model without an attention graph cannot do."""

_SEED_BITS = 63


def new_seed() -> int:
    """Return a seed that nobody can foresee."""
    return secrets.randbits(_SEED_BITS)


def segment_seed(seed: int, *, text_index: int, segment_index: int) -> int:
    """Return the seed of one segment of a request: the same each time, unlike those of its neighbours."""
    sequence = np.random.SeedSequence(seed, spawn_key=(text_index, segment_index))
    return int(sequence.generate_state(1, np.uint64)[0])


def search_config(
    options: TranslationOptions, defaults: TranslationDefaults, *, draw_seed: Callable[[], int] = new_seed
) -> SearchConfig:
    """Return the options with the defaults filled in.

    Without a choice `max_target_tokens` is the cap of the interface; each segment gets its own, as well as its own
    seed, prefix and suppressed ids.

    Args:
        options: of the request.
        defaults: of the server.
        draw_seed: gives the seed of a request that draws at random and names none.

    Raises:
        InvalidFieldError: naming the option that is out of range.
    """
    beam_size = _beam_size(options, defaults)
    max_target_tokens = _chosen(options.max_target_tokens, MAX_TARGET_TOKENS)
    search = SearchConfig(
        beam_size=beam_size,
        num_hypotheses=_chosen(options.num_hypotheses, 1),
        length_penalty_alpha=_chosen(options.length_penalty_alpha, defaults.length_penalty),
        min_target_tokens=_chosen(options.min_target_tokens, 0),
        max_target_tokens=max_target_tokens,
        no_repeat_ngram_size=_chosen(options.no_repeat_ngram_size, 0),
        repetition_penalty=_chosen(options.repetition_penalty, 1.0),
        coverage_penalty_beta=_chosen(options.coverage_penalty_beta, 0.0),
        sampling=_sampling_config(options.sampling, draw_seed) if options.sampling else None,
        stops_early=_chosen(options.stops_early, defaults.early_stopping),
        has_guard=_chosen(options.has_guard, defaults.repetition_guard) and options.sampling is None,
    )
    _check_search(search)
    return search


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


def tells_attention(manifest: Manifest, precision: str) -> bool:
    """Return whether a bundle has the graph that tells the cross-attention, at one precision."""
    files = manifest.precisions.get(precision)
    return files is not None and files.attention is not None


def check_attention_known(options: TranslationOptions) -> None:
    """Refuse what needs the cross-attention, for a model that cannot tell it.

    Raises:
        UnsupportedFieldError: naming the field.
    """
    asked = (
        bool(options.coverage_penalty_beta),
        options.return_alignment,
        options.return_attention is not AttentionDetail.NONE,
    )
    for field, is_asked in zip(ATTENTION_FIELDS, asked, strict=True):
        if is_asked:
            raise UnsupportedFieldError(field)


def suppressed_ids(pieces: Sequence[str], *, token_id: Callable[[str], int | None], model: str) -> frozenset[int]:
    """Return the tokens that must not occur.

    Args:
        pieces: as the caller spells them.
        token_id: of the model's tokenizer; None for what is not in the vocabulary, or special.
        model: `name/version`, for the message.

    Raises:
        InvalidFieldError: naming the first that there is no token for, or all if they are too many.
    """
    field = "options.suppressed_tokens"
    if len(pieces) > MAX_SUPPRESSED_TOKENS:
        raise InvalidFieldError(field, f"{len(pieces)} pieces", f"at most {MAX_SUPPRESSED_TOKENS}")
    ids = [token_id(piece) for piece in pieces]
    if None in ids:
        index = ids.index(None)
        limit = f"a piece of the vocabulary of model {model} that is not special"
        raise InvalidFieldError(f"{field}[{index}]", repr(pieces[index]), limit)
    return frozenset(known for known in ids if known is not None)


def _beam_size(options: TranslationOptions, defaults: TranslationDefaults) -> int:
    """Return the width of the search; with sampling it is the number of targets drawn."""
    num_hypotheses = _chosen(options.num_hypotheses, 1)
    if options.sampling is not None:
        if options.beam_size is not None:
            raise InvalidFieldError("options.beam_size", options.beam_size, "absent with options.sampling")
        _check_range("options.num_hypotheses", num_hypotheses, 1, MAX_BEAM_SIZE)
        return num_hypotheses
    beam_size = _chosen(options.beam_size, defaults.beam_size)
    _check_range("options.beam_size", beam_size, 1, MAX_BEAM_SIZE)
    _check_range("options.num_hypotheses", num_hypotheses, 1, beam_size, note=", the beam size")
    return beam_size


def _sampling_config(options: SamplingOptions, draw_seed: Callable[[], int]) -> SamplingConfig:
    sampling = SamplingConfig(
        temperature=_chosen(options.temperature, 1.0),
        top_k=options.top_k,
        top_p=_chosen(options.top_p, 1.0),
        seed=draw_seed() if options.seed is None else options.seed,
    )
    field = "options.sampling"
    _check_range(f"{field}.temperature", sampling.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
    if sampling.top_k is not None:
        _check_range(f"{field}.top_k", sampling.top_k, 1, MAX_TOP_K)
    if not 0 < sampling.top_p <= 1:  # not a number is in no range
        raise InvalidFieldError(f"{field}.top_p", sampling.top_p, "above 0, at most 1")
    if not 0 <= sampling.seed <= MAX_SEED:
        raise InvalidFieldError(f"{field}.seed", sampling.seed, "0 to 2^63 - 1")
    return sampling


def _check_search(search: SearchConfig) -> None:
    _check_range("options.length_penalty", search.length_penalty_alpha, 0, MAX_LENGTH_PENALTY)
    _check_range("options.max_target_tokens", search.max_target_tokens, 1, MAX_TARGET_TOKENS)
    below = ", below options.max_target_tokens"
    _check_range("options.min_target_tokens", search.min_target_tokens, 0, search.max_target_tokens - 1, note=below)
    _check_range("options.no_repeat_ngram_size", search.no_repeat_ngram_size, 0, MAX_NGRAM_SIZE)
    _check_range("options.repetition_penalty", search.repetition_penalty, 1, MAX_REPETITION_PENALTY)
    _check_range("options.coverage_penalty", search.coverage_penalty_beta, 0, MAX_COVERAGE_PENALTY)


def _chosen(choice: _Choice | None, default: _Choice) -> _Choice:
    return default if choice is None else choice


def _check_range(field: str, value: float, low: float, high: float, *, note: str = "") -> None:
    if not low <= value <= high:  # not a number is in no range
        raise InvalidFieldError(field, value, f"{low:g} to {high:g}{note}")
