"""Reference searches over the whole vocabulary of a `ToyModel`, for comparison with the engine."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.beam_state import length_penalty
from tests.fakes import EOS, FIRST_WORD, ToyModel


@dataclass(frozen=True)
class Candidate:
    """A target; unfinished without EOS."""

    token_ids: tuple[int, ...]
    log_prob: float

    @property
    def is_finished(self) -> bool:
        """True if the last token is EOS."""
        return self.token_ids[-1:] == (EOS,)


def final_score(model: ToyModel, segment: Segment, candidate: Candidate) -> float:
    """Return the score with length and coverage penalty, implemented independently of the service."""
    search = segment.search
    score = candidate.log_prob / length_penalty(len(candidate.token_ids), alpha=search.length_penalty)
    if not candidate.is_finished or not search.coverage_penalty:
        return score
    attention = model.cross_attention(segment.source_ids, candidate.token_ids)
    penalty = 0.0
    for source in range(len(segment.source_ids)):
        covered = sum(
            float(attention[-1, :, step, source].mean(dtype=np.float64)) for step in range(attention.shape[2])
        )
        penalty += math.log(min(covered, 1.0))
    return score + search.coverage_penalty * penalty


def allowed_tokens(model: ToyModel, segment: Segment, target: Sequence[int]) -> dict[int, float]:
    """Return the log-probability of each allowed next token of a target after its prefix."""
    search, log_probs = segment.search, model.next_log_probs(segment.source_ids, target)
    placeholders = {placeholder.target_id for placeholder in model.limits.vocabulary.placeholders}
    masked = placeholders.difference(segment.source_ids, search.target_prefix)
    allowed = {}
    for token in sorted({EOS, *range(FIRST_WORD, model.limits.vocabulary.size)} - masked):
        is_early_end = token == EOS and len(target) < search.min_target_tokens
        if is_early_end or token in search.suppressed_tokens or repeats_itself((*target, token), search):
            continue
        factor = search.repetition_penalty if token in target else 1.0
        allowed[token] = float(log_probs[token] * np.float32(factor))
    return allowed


def repeats_itself(target: tuple[int, ...], search: SearchConfig) -> bool:
    """Return whether the last n-gram of a target occurs in it earlier."""
    size = search.no_repeat_ngram_size
    runs = [target[start : start + size] for start in range(len(target) - size + 1)] if size else []
    return bool(runs) and runs[-1] in runs[:-1]


def extensions(model: ToyModel, segment: Segment, candidate: Candidate) -> list[Candidate]:
    """Return the extensions of a live candidate by one token."""
    prefix, length = segment.search.target_prefix, len(candidate.token_ids)
    if length < len(prefix):
        return [Candidate((*candidate.token_ids, prefix[length]), 0.0)]
    return [
        Candidate((*candidate.token_ids, token), candidate.log_prob + log_prob)
        for token, log_prob in allowed_tokens(model, segment, candidate.token_ids).items()
    ]


def full_beam_search(model: ToyModel, segment: Segment) -> list[Candidate]:
    """Return the hypotheses of textbook beam search, run to the maximum length unless early stopping is on."""
    search, live, finished = segment.search, [Candidate((), 0.0)], list[Candidate]()
    for _ in range(search.max_target_tokens):
        candidates = [extended for candidate in live for extended in extensions(model, segment, candidate)]
        candidates.sort(key=lambda candidate: -candidate.log_prob)
        finished += [candidate for candidate in candidates[: search.beam_size] if candidate.is_finished]
        live = [candidate for candidate in candidates if not candidate.is_finished][: search.beam_size]
        if (search.beam_size == 1 or search.early_stopping) and len(finished) >= search.beam_size:
            break
    finished.sort(key=lambda candidate: -final_score(model, segment, candidate))
    return [*finished, *live][: search.num_hypotheses]


def exhaustive_search(model: ToyModel, segment: Segment) -> list[Candidate]:
    """Score every finished target; return the best."""
    search, words = segment.search, range(FIRST_WORD, model.limits.vocabulary.size)
    lengths = range(search.min_target_tokens, search.max_target_tokens)
    targets = [(*target, EOS) for length in lengths for target in itertools.product(words, repeat=length)]
    log_probs = [target_log_prob(model, segment, target) for target in targets]
    candidates = [
        Candidate(target, log_prob) for target, log_prob in zip(targets, log_probs, strict=True) if log_prob is not None
    ]
    candidates.sort(key=lambda candidate: -final_score(model, segment, candidate))
    return candidates[: search.num_hypotheses]


def target_log_prob(model: ToyModel, segment: Segment, target: tuple[int, ...]) -> float | None:
    """Return the log-probability of a finished target under the options, None if they forbid it."""
    prefix, log_prob = segment.search.target_prefix, 0.0
    if target[: len(prefix)] != prefix:
        return None
    for step in range(len(prefix), len(target)):
        allowed = allowed_tokens(model, segment, target[:step])
        if target[step] not in allowed:
            return None
        log_prob += allowed[target[step]]
    return log_prob
