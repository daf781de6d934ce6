"""Constraints on candidates: rules of the vocabulary, rules of the options of a segment, and sampling.

All only lower log-probabilities, so a search over a few candidates equals the search over the whole vocabulary. A
sample depends only on the rows of its own segment, so that other segments cannot change it.
"""

from collections.abc import Sequence

import numpy as np

from dragoman_service.datatypes import SamplingConfig, SearchConfig
from dragoman_service.decoding.step_model import (
    BoolArray,
    DoubleArray,
    FloatArray,
    IntArray,
    StepOutput,
    VocabularySpec,
)

_LOWERED_BUCKET = 16  # granularity of the number of candidates: the runtime binds its outputs again if it changes
_AVOIDED_SIZE = 4  # length of the n-grams of a source that must not be copied; names of three pieces stay possible


class CandidateRules:
    """Rules of a vocabulary.

    Special tokens are never candidates, placeholders only if the source or the prefix of the segment contains them, and
    EOS only from the minimum length on.
    """

    def __init__(self, vocabulary: VocabularySpec) -> None:
        self.eos_id = vocabulary.eos_id
        self.vocabulary_size = vocabulary.size  # V
        special = {vocabulary.pad_id, vocabulary.bos_id, vocabulary.unk_id} - {vocabulary.eos_id}
        self.forbidden_tokens = sorted(token for token in special if 0 <= token < vocabulary.size)  # never candidates

        # Added to a log-probability: 0 where a token is allowed, -inf where it never is.
        self._bias = np.zeros(vocabulary.size, dtype=np.float32)
        self._bias[self.forbidden_tokens] = -np.inf

        self._placeholders = sorted(vocabulary.placeholders, key=lambda placeholder: placeholder.target_id)
        # [P] target tokens, ascending
        self.placeholder_ids = np.array([placeholder.target_id for placeholder in self._placeholders], np.int64)
        # [V] index into `placeholder_ids`; -1: not a placeholder
        self._placeholder_indices = np.full(vocabulary.size, -1, np.int16)
        self._placeholder_indices[self.placeholder_ids] = np.arange(len(self._placeholders))

    def num_candidates(self, num_taken: int) -> int:
        """Return C for which the search over candidates equals the search over the whole vocabulary.

        At most `num_taken` continuations of a row stay live and EOS may finish, so the best `num_taken + 1` allowed
        candidates suffice. Forbidden candidates may rank before them; a forbidden EOS replaces the allowed EOS. Masked
        placeholders are not counted, because they are removed before.
        """
        return min(num_taken + 1 + len(self.forbidden_tokens), self.vocabulary_size)

    def find_masked(self, source_ids: Sequence[int], target_prefix: Sequence[int]) -> BoolArray:
        """Return [P], True for each placeholder that is neither in the source nor in the target prefix."""
        sources, prefix = set(source_ids), set(target_prefix)
        return np.array([source not in sources and target not in prefix for source, target in self._placeholders], bool)

    def without_masked(self, output: StepOutput, is_masked: BoolArray) -> StepOutput:
        """Return the candidates of each row in their order, but masked ones last with a log-probability of -inf.

        The log-probabilities of the other tokens are not normalised again, so they are bit-identical.

        Args:
            output: [B, K, C]
            is_masked: [B, P] from `find_masked` for each segment, or [B, 0].
        """
        if not is_masked.any():
            return output
        indices = self._placeholder_indices.take(output.token_ids)
        if indices.max() < 0:  # as in most steps
            return output
        segments = np.arange(len(is_masked))[:, None, None]
        is_out = is_masked[segments, indices] & (indices >= 0)
        if not is_out.any():
            return output
        order = is_out.argsort(axis=2, kind="stable")
        log_probs = np.where(is_out, np.float32(-np.inf), output.log_probs)
        return StepOutput(
            log_probs=np.take_along_axis(log_probs, order, axis=2),
            token_ids=np.take_along_axis(output.token_ids, order, axis=2),
        )

    def apply(self, output: StepOutput, *, forbids_eos: BoolArray | None) -> FloatArray:
        """Return the log-probabilities [B, K, C], -inf for forbidden candidates.

        `forbids_eos` [B] is True for segments whose targets are too short to end; None: for no segment.
        """
        allowed: FloatArray = output.log_probs + self._bias.take(output.token_ids)
        if forbids_eos is not None and forbids_eos.any():
            allowed[(output.token_ids == self.eos_id) & forbids_eos[:, None, None]] = -np.inf
        return allowed


class TargetRules:
    """Rules of a segment: suppressed tokens, no repeated n-grams or n-grams of the source, repetition penalty.

    All but the first depend on the targets of the live rows, which are stored here. If L tokens of a row are lowered,
    its best N allowed tokens are among its N + L best candidates.
    """

    def __init__(self, search: SearchConfig, *, vocabulary_size: int, source_ids: tuple[int, ...] = ()) -> None:
        """Take the rules of a search; the source is needed only for `avoids_source`."""
        self._vocabulary_size = vocabulary_size
        self._suppressed = np.array(sorted(search.suppressed_tokens), np.int64)
        self._ngram_size = search.no_repeat_ngram_size
        self._penalty = search.repetition_penalty
        self._avoided_ids = np.array([source_ids if search.avoids_source else ()], np.int64)  # [1, S]
        self._targets = np.zeros((1, 0), np.int64)  # [N, T] of the N live rows
        self._repeats = self._find_repeats()

    @property
    def num_lowered(self) -> int:
        """Maximum number of tokens that the rules lower in a row at the next step, rounded up."""
        num_tokens = len(self._suppressed) + int(np.bincount(self._repeats[0], minlength=1).max())
        if self._penalty != 1:
            num_tokens += self._targets.shape[1]
        return -(-max(num_tokens, 1) // _LOWERED_BUCKET) * _LOWERED_BUCKET

    def extend(self, tokens: IntArray, parents: IntArray) -> None:
        """Take a step: `tokens` [N] and `parents` [N] of the live rows."""
        self._targets = np.concatenate((self._targets[parents], tokens[:, None]), axis=1)
        self._repeats = self._find_repeats()

    def apply(self, log_probs: FloatArray, token_ids: IntArray) -> FloatArray:
        """Return the log-probabilities [N, C] of candidates [N, C] under the rules, in the same order."""
        rows = np.arange(len(log_probs))[:, None]
        lowered = log_probs.copy()
        if self._penalty != 1:
            is_in_target = self._marks(rows, self._targets)
            lowered[is_in_target[rows, token_ids]] *= self._penalty
        is_forbidden = self._marks(*self._repeats)
        is_forbidden[:, self._suppressed] = True
        lowered[is_forbidden[rows, token_ids]] = -np.inf
        return lowered

    def _find_repeats(self) -> tuple[IntArray, IntArray]:
        """Return rows, and tokens that would repeat an n-gram of the row itself or of the avoided text."""
        own = _completions(self._targets, self._targets, self._ngram_size)
        avoided = _completions(self._targets, self._avoided_ids, _AVOIDED_SIZE)
        return np.concatenate((own[0], avoided[0])), np.concatenate((own[1], avoided[1]))

    def _marks(self, rows: IntArray, token_ids: IntArray) -> BoolArray:
        """Return [N, V], True at the given tokens of the given rows."""
        marks = np.zeros((len(self._targets), self._vocabulary_size), np.bool_)
        marks[rows, token_ids] = True
        return marks


def _completions(targets: IntArray, texts: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Return rows, and tokens that would complete an n-gram of the text at the end of the target of the row.

    Args:
        targets: [N, T]
        texts: [N, S], or [1, S] if all targets have the same text.
        size: length of the n-grams; 0: none.
    """
    num_targets, length = targets.shape
    if size == 0 or length < size - 1 or texts.shape[1] < size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    runs = np.lib.stride_tricks.sliding_window_view(texts, size, axis=1)  # [N or 1, S - size + 1, size]
    ends = targets[:, length - (size - 1) :]
    rows, positions = (runs[:, :, :-1] == ends[:, None, :]).all(axis=2).nonzero()
    last = np.broadcast_to(runs[:, :, -1], (num_targets, runs.shape[1]))
    return rows, last[rows, positions]


class Sampler:
    """Draws the next tokens of the samples of one segment, which do not compete with each other."""

    def __init__(self, config: SamplingConfig, *, num_samples: int) -> None:
        self._config = config
        self._num_samples = num_samples
        # The compatibility policy of NumPy fixes the stream of Philox for a seed, on every platform.
        self._generator = np.random.Generator(np.random.Philox(config.seed))

    def num_choices(self, vocabulary_size: int) -> int:
        """Return the number of likeliest tokens among which a token is drawn."""
        return min(self._config.top_k or vocabulary_size, vocabulary_size)

    def draw(self, log_probs: FloatArray) -> IntArray:
        """Return the column drawn in each row [N, C] of the live samples; see `remaining_weights`."""
        # The number of random numbers does not depend on how many samples are live.
        uniforms = self._generator.random(self._num_samples)[: len(log_probs)]
        weights = remaining_weights(log_probs, self._config)
        reached = weights.cumsum(axis=1)
        columns = (reached <= uniforms[:, None] * reached[:, -1:]).sum(axis=1)
        # Rounding may make the product equal to the sum, which no column exceeds.
        drawn: IntArray = np.minimum(columns, (weights > 0).sum(axis=1) - 1)
        return drawn


def remaining_weights(log_probs: FloatArray, config: SamplingConfig) -> DoubleArray:
    """Return the weights after temperature, then top_k, then top_p, relative to the likeliest token of each row.

    top_p (Holtzman et al. 2020, arXiv:1904.09751) keeps the smallest number of likeliest tokens whose probabilities add
    up to at least top_p. The probabilities are normalised over the tokens that top_k keeps.

    Args:
        log_probs: [N, C] descending in C; -inf for forbidden tokens, which do not count in `top_k` and `top_p`. The
            first column is finite.
        config: temperature, top_k and top_p.

    Returns:
        [N, min(C, top_k)] weights, not normalised: 1 for the first token of each row, 0 for tokens that are not drawn.
    """
    considered = log_probs[:, : config.top_k].astype(np.float64)
    weights: DoubleArray = np.exp((considered - considered[:, :1]) / config.temperature)
    if config.top_p < 1:
        reached = weights.cumsum(axis=1)
        likelier = np.zeros_like(reached)
        likelier[:, 1:] = reached[:, :-1]
        weights[likelier >= config.top_p * reached[:, -1:]] = 0.0
    return weights
