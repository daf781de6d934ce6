"""Which candidates a search may take: rules of the vocabulary, rules of each segment, and sampling.

Rules only lower log-probabilities. If a row has L tokens lowered, its best N allowed tokens are therefore among its
N + L best, so a search over a few candidates equals the search over the whole vocabulary. What is sampled depends on
the rows of its own segment only, so that other segments cannot change a draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

_LOWERED_BUCKET = 16
"""The number of lowered tokens is rounded up to this: with another number of candidates the runtime binds anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How a segment is searched: the caller's options, and text that a second search must avoid."""

    search: SearchConfig
    avoided_ids: tuple[int, ...] = ()
    """Text of which no run of `avoided_size` tokens may appear in the target."""

    avoided_size: int = 0
    """0: no text is avoided."""


class CandidateRules:
    """The rules of one vocabulary.

    Special tokens are never taken, placeholders only if the source or the prefix of the segment contains them, and EOS
    not before the minimum length.
    """

    def __init__(self, vocabulary: VocabularySpec) -> None:
        self.eos_id = vocabulary.eos_id
        self.vocabulary_size = vocabulary.size
        """V."""

        special = {vocabulary.pad_id, vocabulary.bos_id, vocabulary.unk_id} - {vocabulary.eos_id}
        self.never = sorted(token for token in special if 0 <= token < vocabulary.size)
        """Tokens that are never taken."""

        # Added to a log-probability: 0 where a token is allowed, -inf where it never is.
        self._bias = np.zeros(vocabulary.size, dtype=np.float32)
        self._bias[self.never] = -np.inf

        self._placeholders = sorted(vocabulary.placeholders, key=lambda placeholder: placeholder.target_id)
        self.placeholder_ids = np.array([placeholder.target_id for placeholder in self._placeholders], np.int64)
        """[P] target tokens, ascending."""

        self._places = np.full(vocabulary.size, -1, np.int16)  # [V] index into `placeholder_ids`; -1: another token
        self._places[self.placeholder_ids] = np.arange(len(self._placeholders))

    def num_candidates(self, num_taken: int) -> int:
        """C that makes the search over candidates equal to the search over the whole vocabulary.

        Of one row, at most `num_taken` continuations live on and EOS may finish, so the best `num_taken + 1` allowed
        ones suffice; forbidden ones may come before them. A forbidden EOS takes the place of the allowed one. Masked
        placeholders are not counted: they are removed before.
        """
        return min(num_taken + 1 + len(self.never), self.vocabulary_size)

    def find_masked(self, source_ids: Sequence[int], target_prefix: Sequence[int]) -> BoolArray:
        """Return [P], True for each placeholder that is neither in the source nor in the target prefix."""
        sources, prefix = set(source_ids), set(target_prefix)
        return np.array([source not in sources and target not in prefix for source, target in self._placeholders], bool)

    def without_masked(self, output: StepOutput, is_masked: BoolArray) -> StepOutput:
        """Return the candidates of each row in their order, the masked ones last with a log-probability of -inf.

        The log-probabilities of the other tokens are not normalised again, so they keep their bits.

        Args:
            output: [B, K, C]
            is_masked: [B, P] from `find_masked` for each segment, or [B, 0].
        """
        if not is_masked.any():
            return output
        places = self._places.take(output.token_ids)
        if places.max() < 0:  # as in most steps
            return output
        segments = np.arange(len(is_masked))[:, None, None]
        is_out = is_masked[segments, places] & (places >= 0)
        if not is_out.any():
            return output
        order = is_out.argsort(axis=2, kind="stable")
        log_probs = np.where(is_out, np.float32(-np.inf), output.log_probs)
        return StepOutput(
            log_probs=np.take_along_axis(log_probs, order, axis=2),
            token_ids=np.take_along_axis(output.token_ids, order, axis=2),
        )

    def apply(self, output: StepOutput, *, forbids_eos: BoolArray | None) -> FloatArray:
        """Return the log-probabilities [B, K, C] with those of forbidden candidates set to -inf.

        `forbids_eos` [B] is True for segments whose targets are still too short to end; None: for none.
        """
        allowed: FloatArray = output.log_probs + self._bias.take(output.token_ids)
        if forbids_eos is not None and forbids_eos.any():
            allowed[(output.token_ids == self.eos_id) & forbids_eos[:, None, None]] = -np.inf
        return allowed


class TargetRules:
    """The rules of a segment: suppressed tokens, no repeated n-grams, repetition penalty.

    Holds the targets of the segment's live rows, on which the last two depend.
    """

    @classmethod
    def of(cls, plan: SearchPlan, *, vocabulary_size: int) -> "TargetRules | None":
        """Return the rules of a search, None if it has none."""
        search = plan.search
        has_rules = search.suppressed_tokens or search.no_repeat_ngram_size or search.repetition_penalty != 1
        return cls(plan, vocabulary_size=vocabulary_size) if has_rules or plan.avoided_size else None

    def __init__(self, plan: SearchPlan, *, vocabulary_size: int) -> None:
        """Begin with one empty target."""
        search = plan.search
        self._vocabulary_size = vocabulary_size
        self._suppressed = np.array(sorted(search.suppressed_tokens), np.int64)
        self._ngram_size = search.no_repeat_ngram_size
        self._penalty = search.repetition_penalty
        self._avoided_ids = np.array([plan.avoided_ids], np.int64)  # [1, S]
        self._avoided_size = plan.avoided_size
        self._targets = np.zeros((1, 0), np.int64)  # [N, T] of the N live rows
        self._repeats = self._find_repeats()  # rows and tokens

    @property
    def num_lowered(self) -> int:
        """Most tokens that the rules lower in any row at the next step; rounded up."""
        num_tokens = len(self._suppressed) + int(np.bincount(self._repeats[0], minlength=1).max())
        if self._penalty != 1:
            num_tokens += self._targets.shape[1]
        return -(-max(num_tokens, 1) // _LOWERED_BUCKET) * _LOWERED_BUCKET

    def extend(self, tokens: IntArray, parents: IntArray) -> None:
        """Take a step: `tokens` [N] and `parents` [N] of the rows that are live now."""
        self._targets = np.concatenate((self._targets[parents], tokens[:, None]), axis=1)
        self._repeats = self._find_repeats()

    def apply(self, log_probs: FloatArray, token_ids: IntArray) -> FloatArray:
        """Return the log-probabilities [N, C] of candidate tokens [N, C] under the rules, in the same order."""
        rows = np.arange(len(log_probs))[:, None]
        lowered = log_probs.copy()
        if self._penalty != 1:
            is_held = self._marks(rows, self._targets)
            lowered[is_held[rows, token_ids]] *= self._penalty
        is_forbidden = self._marks(*self._repeats)
        is_forbidden[:, self._suppressed] = True
        lowered[is_forbidden[rows, token_ids]] = -np.inf
        return lowered

    def _find_repeats(self) -> tuple[IntArray, IntArray]:
        """Return rows, and tokens that would repeat a run of the row itself or of the text to avoid."""
        own = _completions(self._targets, self._targets, self._ngram_size)
        avoided = _completions(self._targets, self._avoided_ids, self._avoided_size)
        return np.concatenate((own[0], avoided[0])), np.concatenate((own[1], avoided[1]))

    def _marks(self, rows: IntArray, token_ids: IntArray) -> BoolArray:
        """Return [N, V], True at the given tokens of the given rows."""
        marks = np.zeros((len(self._targets), self._vocabulary_size), np.bool_)
        marks[rows, token_ids] = True
        return marks


def _completions(targets: IntArray, texts: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Return rows, and tokens that would make the end of a row's target a run of `size` tokens of its text.

    Args:
        targets: [N, T]
        texts: [N, S], or [1, S] if all targets have the same.
        size: tokens of a run; 0: there are none.
    """
    num_targets, length = targets.shape
    if size == 0 or length < size - 1 or texts.shape[1] < size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    runs = np.lib.stride_tricks.sliding_window_view(texts, size, axis=1)  # [N or 1, S - size + 1, size]
    ends = targets[:, length - (size - 1) :]
    rows, places = (runs[:, :, :-1] == ends[:, None, :]).all(axis=2).nonzero()
    last = np.broadcast_to(runs[:, :, -1], (num_targets, runs.shape[1]))
    return rows, last[rows, places]


class Sampler:
    """Draws the next tokens of one segment's samples: hypotheses that do not compete with each other."""

    def __init__(self, config: SamplingConfig, *, num_samples: int) -> None:
        self._config = config
        self._num_samples = num_samples
        # Philox: its stream is fixed by the seed on every platform and by numpy's compatibility policy.
        self._generator = np.random.Generator(np.random.Philox(config.seed))

    def num_choices(self, vocabulary_size: int) -> int:
        """Return how many of the likeliest tokens a draw may choose among."""
        return min(self._config.top_k or vocabulary_size, vocabulary_size)

    def draw(self, log_probs: FloatArray) -> IntArray:
        """Return the column drawn in each row [N, C] of the live samples; see `remaining_weights`.

        Takes as many random numbers as there are samples in all.
        """
        uniforms = self._generator.random(self._num_samples)[: len(log_probs)]
        weights = remaining_weights(log_probs, self._config)
        reached = weights.cumsum(axis=1)
        columns = (reached <= uniforms[:, None] * reached[:, -1:]).sum(axis=1)
        # Rounding may make the product the whole sum, which no column exceeds.
        drawn: IntArray = np.minimum(columns, (weights > 0).sum(axis=1) - 1)
        return drawn


def remaining_weights(log_probs: FloatArray, config: SamplingConfig) -> DoubleArray:
    """Return the weights after temperature, then top_k, then top_p, relative to the likeliest token of each row.

    top_p keeps a token (Holtzman et al. 2020, arXiv:1904.09751) if the likelier ones do not reach the sum without it;
    the sum is over what top_k keeps, normalised again.

    Args:
        log_probs: [N, C] descending in C, -inf for tokens not allowed (masked placeholders among them), the first
            column finite. Tokens that are not allowed have no share in `top_k`, `top_p` and the sum of weights.
        config: says how to draw.

    Returns:
        [N, min(C, top_k)] weights, not normalised: the first of each row is 1; 0 if the token cannot be drawn.
    """
    considered = log_probs[:, : config.top_k].astype(np.float64)
    weights: DoubleArray = np.exp((considered - considered[:, :1]) / config.temperature)
    if config.top_p < 1:
        reached = weights.cumsum(axis=1)
        likelier = np.zeros_like(reached)
        likelier[:, 1:] = reached[:, :-1]
        weights[likelier >= config.top_p * reached[:, -1:]] = 0.0
    return weights
