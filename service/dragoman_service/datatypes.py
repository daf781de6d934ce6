"""The values that travel through the service: searches, segments, hypotheses, translations, timings.

All are frozen. Times are seconds, spans are half-open ranges of Unicode code points.
"""

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


class Priority(enum.Enum):
    """How urgent a request is next to others that wait."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How tokens are drawn at random: from the distribution that temperature, then top_k, then top_p leave."""

    temperature: float = 1.0
    """Divides the log-probabilities before they are normalised again; above 0."""

    top_k: int | None = None
    """Draw among this many likeliest tokens; None: among all. At least 1."""

    top_p: float = 1.0
    """Draw among the likeliest tokens whose probabilities reach this sum; above 0, at most 1."""

    seed: int = 0
    """Of the segment's own random generator; at least 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """What the search of one segment obeys."""

    beam_size: int = 4
    """Live hypotheses kept after each step; 1 is greedy search. At least 1."""

    num_hypotheses: int = 1
    """Most hypotheses returned, best first; between 1 and `beam_size`."""

    length_penalty: float = 0.6
    """Exponent of the length penalty of Wu et al. 2016 (arXiv:1609.08144), section 7; 0 disables it."""

    min_target_tokens: int = 0
    """The end-of-sentence token is forbidden while the target has fewer tokens than this (EOS not counted)."""

    max_target_tokens: int = 256
    """Longest target in tokens, EOS counted; a hypothesis that reaches it without EOS ends unfinished."""

    target_prefix: tuple[int, ...] = ()
    """Token ids, without EOS, that every hypothesis begins with; fewer than `max_target_tokens`. Nothing was chosen
    there, so they add nothing to a hypothesis's log-probability."""

    suppressed_tokens: frozenset[int] = frozenset()
    """Token ids that are never taken, besides those that no target holds; EOS is not among them."""

    no_repeat_ngram_size: int = 0
    """No run of this many tokens occurs twice in a target; 0 allows it."""

    repetition_penalty: float = 1.0
    """Factor of the log-probability of a token that the hypothesis holds already (Keskar et al. 2019,
    arXiv:1909.05858, on log-probabilities instead of logits); at least 1, which leaves them alone."""

    coverage_penalty: float = 0.0
    """Weight of the coverage penalty of Wu et al. 2016, section 7; 0 disables it."""

    sampling: SamplingConfig | None = None
    """Draw `num_hypotheses` targets at random instead of searching; `beam_size` equals `num_hypotheses` then."""

    early_stopping: bool = False
    """The search ends once `beam_size` hypotheses have finished, whatever those that live may become."""

    repetition_guard: bool = False
    """Watch for loops, copied sources and absurd lengths, and search once more without them; not with sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One sentence-sized piece of a request, queued and decoded alone."""

    source_ids: tuple[int, ...]
    """Token ids of the source, EOS last; padding is not stored."""

    search: SearchConfig
    """Options of its search."""

    wants_attention: bool = False
    """Report the cross-attention of its hypotheses."""


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

    attention: NDArray[np.float32] | None = field(default=None, compare=False)
    """[L, H, T, S] cross-attention weights of every decoder layer and head while each of the T target tokens was
    chosen, over the S source tokens, each row adding up to 1; None unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """Where the time of a request or segment went, in seconds."""

    queue_s: float = 0.0
    """From admission until it joined a batch, its encoder run apart."""

    encode_s: float = 0.0
    """Encoder runs of the group that it was encoded with."""

    decode_s: float = 0.0
    """From joining the batch until its search ended."""

    text_s: float = 0.0
    """Splitting, tokenizing, detokenizing and joining."""

    def __add__(self, later: "StageTimings") -> "StageTimings":
        """Return the stages of what happened one after the other."""
        return StageTimings(
            queue_s=self.queue_s + later.queue_s,
            encode_s=self.encode_s + later.encode_s,
            decode_s=self.decode_s + later.decode_s,
            text_s=self.text_s + later.text_s,
        )


class DegenerationKind(enum.Enum):
    """Kind of a defect of a target."""

    REPETITION = "repetition"
    """The target loops: it repeats the same tokens."""

    COPIED_SOURCE = "copied_source"
    """The target is the source, or contains a long run of it."""

    LENGTH_RATIO = "length_ratio"
    """The target is implausibly short or long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degeneration:
    """A defect of a target."""

    kind: DegenerationKind
    detail: str  # for people, such as `a run of 3 tokens 12 times in a row`


@dataclass(frozen=True, slots=True, kw_only=True)
class DegenerationReport:
    """Defects of a segment that was decoded again."""

    found: tuple[Degeneration, ...]  # in the first result; at least one
    remaining: tuple[Degeneration, ...]  # in the returned result
    is_replaced: bool  # whether the second result is returned


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResult:
    """The answer to one segment."""

    hypotheses: tuple[Hypothesis, ...]
    """Best first; between 1 and `num_hypotheses`."""

    num_steps: int
    """Decoder steps it took part in."""

    timings: StageTimings
    """`text_s` is zero here."""

    degeneration: DegenerationReport | None = None
    """None: no defect was found, or `repetition_guard` was off."""


class WarningKind(enum.Enum):
    """Why a translation deserves a second look."""

    TRUNCATED = "truncated"
    """The target limit was reached before the model ended the sentence."""

    SOURCE_SPLIT = "source_split"
    """A sentence longer than the model takes was decoded in several parts."""

    REPETITION = "repetition"
    COPIED_SOURCE = "copied_source"
    LENGTH_RATIO = "length_ratio"
    """See `DegenerationKind`; these three are given even if decoding again cured it."""

    PLACEHOLDER_LOST = "placeholder_lost"
    """A protected span did not come back by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationWarning:
    """One thing to know about one sentence of a translation."""

    kind: WarningKind
    message: str
    """For people; says the figures, for instance the limit that was hit."""

    sentence_index: int | None
    """Index into `Translation.sentences`; None: the whole text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of Unicode code points."""

    start: int
    end: int

    def shifted(self, by: int) -> "Span":
        """Return the same range in a text that has `by` more characters in front."""
        return Span(start=self.start + by, end=self.end + by)


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

    score: float | None = None
    """How likely it is translated well, 0 to 1; None: the model does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLink:
    """A piece of a text and the piece of its translation that comes from it."""

    source: Span
    target: Span
    weight: float
    """Share of the attention that the target piece gave the source piece, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """What the target tokens of one segment looked at."""

    source_pieces: tuple[str, ...]
    """Subword pieces, EOS last."""

    target_pieces: tuple[str, ...]
    """Subword pieces; EOS last if the hypothesis is finished."""

    layer: int
    """Of the decoder, counted from 0."""

    weights: NDArray[np.float32] = field(compare=False)
    """[H, T, S] shares of the attention; H is 1 for their mean. Each row adds up to 1."""


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

    alignment: tuple[AlignmentLink, ...] = ()
    """Ordered by target, if asked for."""

    attention: tuple[CrossAttention, ...] = ()
    """One for each segment of the text, in order, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The answer to one text."""

    hypotheses: tuple[TextHypothesis, ...]
    """Best first; a text with nothing to translate has one, equal to the text."""

    sentences: tuple[SentenceAlignment, ...]
    """In order; refers to the best hypothesis."""

    warnings: tuple[TranslationWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedLanguage:
    """A language that a text may be in."""

    language: str
    """BCP-47 tag."""

    confidence: float
    """0 to 1; see `dragoman_service.translation.language_detection`."""

    is_served: bool = True
    """Whether it is translated from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """A language between source and target."""

    language: str
    """BCP-47 tag."""

    model_name: str
    """Of what translated into it."""

    model_version: str


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

    detected_language: DetectedLanguage | None = None
    """What the texts were taken to be in; None: the request said it."""

    pivot: Pivot | None = None
    """What was translated through; None: nothing. `num_source_tokens` are those of the texts, `model_name` is that of
    the model that translated from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSentence:
    """One sentence of a document; also a piece of it without anything to translate."""

    text: str
    """The next piece of the translated document: the best hypothesis and what was copied around it."""

    hypotheses: tuple[TextHypothesis, ...]
    """Best first, of the bare sentence; sources of links are in the document. Empty if nothing was translated."""

    sentence: SentenceAlignment | None
    """Where it is in the document and in the translated document; None: nothing was translated."""

    warnings: tuple[TranslationWarning, ...]
    model_name: str
    model_version: str
    timings: StageTimings
    detected_language: DetectedLanguage | None = None
    """As in `TranslationResult`."""
