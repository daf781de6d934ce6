"""The values that travel through the service: options, segments, hypotheses, translations, timings.

All are frozen. Times are seconds, spans are half-open ranges of Unicode code points.
"""

import enum
from dataclasses import dataclass, field


class Priority(enum.Enum):
    """How urgent a request is next to others that wait."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """What the beam search of one segment obeys."""

    beam_size: int = 4
    """Live hypotheses kept after each step; 1 is greedy search. At least 1."""

    num_hypotheses: int = 1
    """Finished hypotheses returned, best first; between 1 and `beam_size`."""

    length_penalty_alpha: float = 0.6
    """Exponent of the length penalty of Wu et al. 2016 (arXiv:1609.08144), section 7; 0 disables it."""

    min_target_tokens: int = 0
    """The end-of-sentence token is forbidden while the target has fewer tokens than this (EOS not counted)."""

    max_target_tokens: int = 256
    """Longest target in tokens, EOS counted; a hypothesis that reaches it without EOS ends unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One sentence-sized piece of a request, queued and decoded alone."""

    source_ids: tuple[int, ...]
    """Token ids of the source, EOS last; padding is not stored."""

    search: SearchConfig
    """Options of its beam search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One candidate target of a segment."""

    token_ids: tuple[int, ...]
    """Target token ids; EOS last if `is_finished`, BOS not stored."""

    token_log_probs: tuple[float, ...]
    """Natural log-probability of each of `token_ids`."""

    log_prob: float
    """Sum of `token_log_probs`."""

    score: float
    """`log_prob` divided by the length penalty; higher is better."""

    is_finished: bool
    """True if the hypothesis ended with EOS, False if it hit `max_target_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """Where the time of a request or segment went, in seconds."""

    queue_s: float = 0.0
    """From admission until its encoder run began."""

    encode_s: float = 0.0
    """Encoder run of the group it was started with."""

    decode_s: float = 0.0
    """From the end of the encoder run until its search ended."""

    text_s: float = 0.0
    """Splitting, tokenizing, detokenizing and joining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """The answer to one segment."""

    hypotheses: tuple[Hypothesis, ...]
    """Best first; between 1 and `num_hypotheses`."""

    num_steps: int
    """Decoder steps it took part in."""

    timings: StageTimings
    """`text_s` is zero here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationOptions:
    """What a caller may choose; None means the server's default."""

    beam_size: int | None = None
    num_hypotheses: int | None = None
    length_penalty_alpha: float | None = None
    min_target_tokens: int | None = None
    max_target_tokens: int | None = None
    """Cap on target tokens of each sentence, EOS counted; None: source tokens + 50, within the model's limit."""

    split_sentences: bool = True
    """Split each text into sentences that are decoded separately."""

    return_scores: bool = False
    """Report the log-probability of each token."""

    return_tokens: bool = False
    """Report the subword pieces of each hypothesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRequest:
    """One call: texts of one language pair under one set of options."""

    texts: tuple[str, ...]
    source_language: str
    """BCP-47 tag, such as `en`."""

    target_language: str
    model: str = ""
    """`name` or `name/version`; empty: the default of the language pair."""

    options: TranslationOptions = field(default_factory=TranslationOptions)
    priority: Priority = Priority.INTERACTIVE
    request_id: str = ""


class WarningKind(enum.Enum):
    """Why a translation deserves a second look."""

    TRUNCATED = "truncated"
    """The target limit was reached before the model ended the sentence."""

    SOURCE_SPLIT = "source_split"
    """A sentence longer than the model takes was decoded in several parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationWarning:
    """One thing to know about one sentence of a translation."""

    kind: WarningKind
    message: str
    """For people; says the figures, for instance the limit that was hit."""

    sentence_index: int
    """Index into `Translation.sentences`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of Unicode code points."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceAlignment:
    """Which piece of the best hypothesis translates which piece of the text."""

    source: Span
    target: Span
    num_source_tokens: int
    """EOS counted."""

    num_target_tokens: int
    """EOS counted."""

    is_truncated: bool
    """See `WarningKind.TRUNCATED`."""

    is_split: bool
    """See `WarningKind.SOURCE_SPLIT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHypothesis:
    """One candidate translation of a whole text."""

    text: str
    score: float
    """Sum of its sentences' scores; higher is better."""

    tokens: tuple[str, ...] = ()
    """Subword pieces of all its sentences, if asked for."""

    token_log_probs: tuple[float, ...] = ()
    """One per token, EOS of each sentence included, if asked for; same length as `tokens` when both are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The answer to one text."""

    hypotheses: tuple[TextHypothesis, ...]
    """Best first; a text with nothing to translate has one, equal to the text."""

    sentences: tuple[SentenceAlignment, ...]
    """In order; refers to the best hypothesis."""

    warnings: tuple[TranslationWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationResult:
    """The answer to one request."""

    translations: tuple[Translation, ...]
    """One a text, in the request's order."""

    model_name: str
    model_version: str
    timings: StageTimings
    """Longest of its segments for queue, encode and decode; total for text."""

    num_source_tokens: int
    """Over all segments, EOS counted."""

    num_target_tokens: int
    """Over the best hypothesis of all segments, EOS counted."""
