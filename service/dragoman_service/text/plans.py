"""Plans of texts: the parts that are decoded, their segments, and what planning needs of a model and of a request."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dragoman_service.bundle.manifest import Confidence
from dragoman_service.datatypes import SearchConfig, Segment, Span
from dragoman_service.errors import InvalidFieldError
from dragoman_service.request import AttentionDetail, TranslationRequest
from dragoman_service.text.placeholders.text_units import TextUnit
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# Target tokens beyond the length of the source if the caller sets no limit (Vaswani et al. 2017, section 6.1).
EXTRA_TARGET_TOKENS = 50

# Source tokens times hypotheses of a request with attention for placing codes; the attention is in memory until the
# response is sent. Beyond the limit, words are taken to be in the order of the source.
MAX_RESTORED_TOKENS = 8192

_SPECIAL = re.compile(
    r"[^A-Za-zäöüÄÖÜß ,.!?;:'-]"
    r"|[A-ZÄÖÜ][A-ZÄÖÜ.]|[a-zäöüß][A-ZÄÖÜ]"  # acronyms, initials, inner capitals
    r"|[.!?;:,][^ ]|(?:^| )[-.,!?;:' ]|''|-(?![A-Za-zäöüÄÖÜß])"
)
_MAX_CHARACTERS = 4_096  # of one call of `re`, which holds the global interpreter lock (GIL)


def is_ordinary(text: str) -> bool:
    """Return whether a text has only words with the usual punctuation between them.

    No rule of `placeholders`, `casing`, `punctuation` and `invariants` applies to it, except for abbreviations and for
    copies of the source. Most sentences are ordinary, so they take a short path.
    """
    return len(text) <= _MAX_CHARACTERS and not _SPECIAL.search(text) and not text.isupper()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """Text that a model reads instead of a text of the same length."""

    text: str
    is_from_capitals: bool = False  # sentence case instead of capitals, so the translation is set in capitals
    is_recased: bool = False  # other case instead of a copied label, so the translation gets the capital of the source
    is_ordinary: bool = field(default=False, compare=False)  # True: see `is_ordinary`; False: unknown

    def part(self, span: Span) -> "ModelText":
        """Return a range of the text."""
        if span.end - span.start == len(self.text):
            return self
        return replace(self, text=self.text[span.start : span.end], is_ordinary=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Part of a text that is decoded as one segment: a sentence, or a part of a long one."""

    span: Span
    segment: Segment
    sentence_index: int  # shared by the parts of one sentence, which are adjacent
    model_text: ModelText
    unit: TextUnit | None = None  # the text with placeholders, if that differs; as long as the model text
    begins_sentence: bool = True

    def shifted(self, by: int) -> "TextPart":
        """Return the same part of a text that has `by` more characters in front."""
        return replace(self, span=self.span.shifted(by), unit=self.unit.shifted(by) if self.unit else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTranslation:
    """A range outside all decoded sentences, such as a term, and its translation."""

    span: Span
    target: str
    is_untranslated: bool = False  # a sentence in letters that the model cannot spell, which stays as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """The segments of one text."""

    text: str
    parts: tuple[TextPart, ...]  # ordered; a part with a unit may enclose others, such as the text of an attribute
    fixed: tuple[FixedTranslation, ...] = ()

    @property
    def spans(self) -> list[Span]:
        """Positions of the parts in the text."""
        return [part.span for part in self.parts]


class TextModel(Protocol):
    """The properties of a model that text processing needs. Limits include EOS."""

    @property
    def tokenizer(self) -> SentencePieceTokenizer:
        """Tokenizer of the language pair."""

    @property
    def max_source_tokens(self) -> int:
        """Longest source."""

    @property
    def max_target_tokens(self) -> int:
        """Longest target."""

    @property
    def confidence(self) -> Confidence | None:
        """Weights of the confidence of sentences; None if the bundle has none."""


class TextBudget(Protocol):
    """Limits of text work. Each method raises if the work exceeds a limit or its deadline, or is cancelled."""

    def check(self) -> None:
        """Check deadline and cancellation; called every few milliseconds."""

    def check_sentence(self, num_tokens: int) -> None:
        """Check the source tokens of a sentence before it is split further."""

    def add(self, segments: Sequence[Segment]) -> None:
        """Count the segments of a sentence."""


class SegmentBuilder:
    """Builds the segments of one request."""

    def __init__(
        self, request: TranslationRequest, *, model: TextModel, search: SearchConfig, has_attention: bool
    ) -> None:
        """Take a validated request, and the options of all its segments."""
        self._request, self._options = request, request.options
        self._model, self._tokenizer = model, model.tokenizer
        self._search = search
        options = request.options
        self.returns_attention = options.return_alignment or options.return_attention is not AttentionDetail.NONE
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
        wants_attention = self.returns_attention
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
