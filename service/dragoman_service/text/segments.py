"""Segments of a request: source ids, and the search with the token limits, the prefix and the seed of the segment."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.errors import InvalidFieldError
from dragoman_service.request import TranslationRequest
from dragoman_service.text.plans import TextModel

# Target tokens beyond the length of the source if the caller sets no limit (Vaswani et al. 2017, section 6.1).
EXTRA_TARGET_TOKENS = 50

# Source tokens times hypotheses of a request with attention for placing codes; the attention is in memory until the
# response is sent. Beyond the limit, words are taken to be in the order of the source.
MAX_RESTORED_TOKENS = 8192


class SegmentBuilder:
    """Builds the segments of one request."""

    def __init__(
        self, request: TranslationRequest, *, model: TextModel, search: SearchConfig, has_attention: bool
    ) -> None:
        """Take a validated request, and the options of all its segments."""
        self._request, self._options = request, request.options
        self._model, self._tokenizer = model, model.tokenizer
        self._search = search
        self.num_alignable_tokens: float = MAX_RESTORED_TOKENS if has_attention else 0

    def build(self, token_ids: Sequence[int], *, text_index: int, segment_index: int, needs_alignment: bool) -> Segment:
        """Return a segment of a text.

        Args:
            token_ids: the source, without prefix and suffix.
            text_index: index of the text in the request.
            segment_index: index of the segment in the text.
            needs_alignment: whether the segment has codes whose place depends on the attention of the model.

        Raises:
            InvalidFieldError: if the prefix of the text is invalid or too long.
        """
        source_ids = self.source_ids(token_ids)
        field, prefix = self._prefix(text_index) if segment_index == 0 else ("", ())
        tags = self._tokenizer.target_prefix
        prefix = (*tags, *prefix)
        max_target_tokens = self._options.max_target_tokens or min(
            max(max(len(source_ids), len(prefix)) + EXTRA_TARGET_TOKENS, self._search.min_target_tokens + 1),
            self._model.max_target_tokens,
        )
        if len(tags) >= max_target_tokens:
            raise InvalidFieldError("options.max_target_tokens", max_target_tokens, f"at least {len(tags) + 1}")
        if len(prefix) >= max_target_tokens:
            limit = f"fewer than {max_target_tokens} tokens, the limit of the translation"
            raise InvalidFieldError(field, f"{len(prefix)} tokens long", limit)
        # Each part has a letter or digit, so its translation is not empty.
        shortest = max(self._search.min_target_tokens, min(len(prefix) + 1, max_target_tokens - 1))
        search = replace(
            self._search, min_target_tokens=shortest, max_target_tokens=max_target_tokens, target_prefix=prefix
        )
        if search.sampling:
            seed = segment_seed(search.sampling.seed, text_index=text_index, segment_index=segment_index)
            search = replace(search, sampling=replace(search.sampling, seed=seed))
        wants_attention = self._options.wants_attention
        if needs_alignment and not wants_attention:
            num_tokens = len(source_ids) * search.num_hypotheses
            wants_attention = num_tokens <= self.num_alignable_tokens
            self.num_alignable_tokens -= num_tokens * wants_attention
        return Segment(source_ids=source_ids, search=search, wants_attention=wants_attention)

    def source_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids of a source with its prefix and suffix."""
        return (*self._tokenizer.source_prefix, *token_ids, *self._tokenizer.source_suffix)

    def _prefix(self, text_index: int) -> tuple[str, tuple[int, ...]]:
        if self._request.target_prefixes:
            field, prefix = f"target_prefixes[{text_index}]", self._request.target_prefixes[text_index]
        else:
            field, prefix = "options.target_prefix", self._options.target_prefix
        token_ids = tuple(self._tokenizer.encode_target(prefix)) if prefix else ()
        if self._tokenizer.unk_id in token_ids:
            raise InvalidFieldError(field, "a text with unknown characters", "text that the vocabulary can encode")
        return field, token_ids


def segment_seed(seed: int, *, text_index: int, segment_index: int) -> int:
    """Return the seed of one segment of a request; deterministic, and different for each segment."""
    sequence = np.random.SeedSequence(seed, spawn_key=(text_index, segment_index))
    return int(sequence.generate_state(1, np.uint64)[0])
