"""The values that travel through the service: searches, segments, hypotheses, translations, timings.

All are frozen. Times are seconds, spans are half-open ranges of Unicode code points.
"""

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


class Priority(enum.Enum):
    """Priority class of a request in the queue."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Parameters of random sampling; temperature, top_k and top_p are applied in this order."""

    temperature: float = 1.0  # divisor of the log-probabilities before renormalization; above 0
    top_k: int | None = None  # number of most probable tokens to sample from, at least 1; None: all tokens
    # Sample from the most probable tokens whose probabilities add up to this sum; above 0, at most 1.
    top_p: float = 1.0
    seed: int = 0  # seed of the random generator of the segment; at least 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Decoding options of one segment."""

    beam_size: int = 4  # number of live hypotheses after each step, at least 1; 1 is greedy search
    num_hypotheses: int = 1  # maximum number of returned hypotheses, best first; 1 to `beam_size`
    # Exponent of the length penalty of Wu et al. 2016 (arXiv:1609.08144), section 7; 0 disables it.
    length_penalty: float = 0.6
    # The end-of-sentence token is forbidden while the target has fewer tokens than this (EOS not counted).
    min_target_tokens: int = 0
    # Maximum length of the target including EOS. A hypothesis that reaches it without EOS is unfinished.
    max_target_tokens: int = 256
    # Token ids, without EOS, at the start of every hypothesis; fewer than `max_target_tokens`. They do not contribute
    # to the log-probability.
    target_prefix: tuple[int, ...] = ()
    # Token ids that are never generated, in addition to those that the model excludes; must not contain EOS.
    suppressed_tokens: frozenset[int] = frozenset()
    no_repeat_ngram_size: int = 0  # no run of this many tokens occurs twice in a target; 0 allows it
    # Factor of the log-probability of tokens that the hypothesis already contains (Keskar et al. 2019,
    # arXiv:1909.05858, applied to log-probabilities instead of logits); at least 1. 1 disables it.
    repetition_penalty: float = 1.0
    coverage_penalty: float = 0.0  # weight of the coverage penalty of Wu et al. 2016, section 7; 0 disables it
    # Sample `num_hypotheses` targets instead of beam search; then `beam_size` equals `num_hypotheses`.
    sampling: SamplingConfig | None = None
    # End the search when `beam_size` hypotheses have finished, even if a live hypothesis could score higher.
    early_stopping: bool = False
    # Detect loops and implausible lengths, and decode once more without them; not with sampling.
    repetition_guard: bool = False
    avoids_source: bool = False  # no run of four tokens of the source occurs in a target


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One sentence-sized unit of a request, scheduled on its own."""

    source_ids: tuple[int, ...]  # token ids of the source, EOS last; padding is not stored
    search: SearchConfig
    wants_attention: bool = False  # report the cross-attention of its hypotheses


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One candidate target of a segment."""

    token_ids: tuple[int, ...]  # target token ids; EOS last if `is_finished`, BOS not stored
    token_log_probs: tuple[float, ...]  # natural log-probability of each of `token_ids`
    log_prob: float  # sum of `token_log_probs`
    score: float  # `log_prob` divided by the length penalty; higher is better
    is_finished: bool  # True if the hypothesis ended with EOS, False if it reached `max_target_tokens`
    # [L, H, T, S] cross-attention weights of each decoder layer and head, one row over the S source tokens for each of
    # the T target tokens; each row adds up to 1. None unless requested.
    attention: NDArray[np.float32] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """Time of a request or segment in each stage, in seconds."""

    queue_s: float = 0.0  # from admission to joining a batch, without the encoder run
    encode_s: float = 0.0  # encoder run of the group that contains the segment
    decode_s: float = 0.0  # from joining the batch to the end of the search
    text_s: float = 0.0  # splitting, tokenizing, detokenizing and joining

    def __add__(self, later: "StageTimings") -> "StageTimings":
        """Return the timings of two consecutive pieces of work."""
        return StageTimings(
            queue_s=self.queue_s + later.queue_s,
            encode_s=self.encode_s + later.encode_s,
            decode_s=self.decode_s + later.decode_s,
            text_s=self.text_s + later.text_s,
        )


class DegenerationKind(enum.Enum):
    """Kind of a defect of a target."""

    REPETITION = "repetition"  # the target loops: it repeats the same tokens
    LENGTH_RATIO = "length_ratio"  # the target is implausibly short or long


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

    hypotheses: tuple[Hypothesis, ...]  # best first; between 1 and `num_hypotheses`
    num_steps: int  # number of decoder steps of the segment
    timings: StageTimings  # `text_s` is 0
    degeneration: DegenerationReport | None = None  # None: no defect was found, or `repetition_guard` was off


class WarningKind(enum.Enum):
    """Kind of a possible problem of a translation."""

    TRUNCATED = "truncated"  # the target limit was reached before the model ended the sentence
    SOURCE_SPLIT = "source_split"  # a sentence longer than the limit of the model was decoded in several parts
    # Kinds of `DegenerationKind`, which are reported even if decoding again removed the defect:
    REPETITION = "repetition"
    COPIED_SOURCE = "copied_source"
    LENGTH_RATIO = "length_ratio"
    PLACEHOLDER_LOST = "placeholder_lost"  # the model did not reproduce a protected span
    # Kinds of violated invariants, see `dragoman_service.text.invariants`:
    EMPTY_TRANSLATION = "empty_translation"
    INVALID_OUTPUT = "invalid_output"  # U+FFFD or a reserved piece of the vocabulary
    NUMBER_CHANGED = "number_changed"
    IDENTIFIER_CHANGED = "identifier_changed"
    SYMBOL_CHANGED = "symbol_changed"
    NAME_CHANGED = "name_changed"
    ADDRESS_CHANGED = "address_changed"  # URL, email address or path
    MARKUP_CHANGED = "markup_changed"
    ENDING_CHANGED = "ending_changed"  # punctuation at the end
    WHITE_SPACE_CHANGED = "white_space_changed"  # tabs and line breaks
    CAPITALS_CHANGED = "capitals_changed"
    UNTRANSLATED = "untranslated"  # the text, or a part of it, is still in the source language
    REPAIR_SKIPPED = "repair_skipped"  # a second search was rejected, or its deadline passed
    LOW_CONFIDENCE = "low_confidence"  # a sentence without another warning has a very low confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationWarning:
    """A possible problem of one sentence, or of a whole text."""

    kind: WarningKind
    message: str  # description with figures, for example the limit that was reached
    sentence_index: int | None  # index into `Translation.sentences`; None: the whole text
    source: "Span | None" = None  # range of the text; None: unknown
    target: "Span | None" = None  # range of the best hypothesis; None: unknown, or the text is missing there


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of Unicode code points."""

    start: int
    end: int

    def shifted(self, by: int) -> "Span":
        """Return the same range in a text with `by` more characters in front."""
        return Span(start=self.start + by, end=self.end + by)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceAlignment:
    """A sentence of the text and its translation in the best hypothesis."""

    source: Span
    target: Span
    num_source_tokens: int  # including EOS
    num_target_tokens: int  # including EOS
    is_truncated: bool  # see `WarningKind.TRUNCATED`
    is_split: bool  # see `WarningKind.SOURCE_SPLIT`
    score: float | None = None  # confidence, 0 to 1; None if the bundle has no confidence model


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLink:
    """A span of a text and the span of its translation that it is aligned with."""

    source: Span
    target: Span
    weight: float  # share of the attention of the target span on the source span, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Cross-attention of one segment."""

    source_pieces: tuple[str, ...]  # subword pieces, EOS last
    target_pieces: tuple[str, ...]  # subword pieces; EOS last if the hypothesis is finished
    layer: int  # index of the decoder layer, from 0
    # [H, T, S] attention weights; H is 1 for the mean of all heads. Each row adds up to 1.
    weights: NDArray[np.float32] = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHypothesis:
    """One candidate translation of a whole text."""

    text: str
    score: float  # sum of the scores of the sentences; higher is better
    tokens: tuple[str, ...] = ()  # subword pieces of all sentences, if requested
    # One per token, including the EOS of each sentence, if requested; same length as `tokens`.
    token_log_probs: tuple[float, ...] = ()
    alignment: tuple[AlignmentLink, ...] = ()  # ordered by target, if requested
    attention: tuple[CrossAttention, ...] = ()  # one per segment of the text, in order, if requested


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The answer to one text."""

    # Best first. A text without words to translate has one hypothesis, equal to the text.
    hypotheses: tuple[TextHypothesis, ...]
    sentences: tuple[SentenceAlignment, ...]  # in order; refers to the best hypothesis
    warnings: tuple[TranslationWarning, ...] = ()
    is_unchanged: bool = False  # True if the text is returned as it is, because it is in the target language


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedLanguage:
    """A candidate language of a text."""

    language: str  # BCP-47 tag
    confidence: float  # 0 to 1; see `dragoman_service.translation.language_detection`
    is_served: bool = True  # True if a model translates from this language


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """A language between source and target."""

    language: str  # BCP-47 tag
    model_name: str  # model that translates into the language
    model_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationResult:
    """The answer to one request."""

    translations: tuple[Translation, ...]  # one per text, in the order of the request
    model_name: str  # empty if no model was used, because all texts are returned unchanged
    model_version: str
    timings: StageTimings  # queue, encode and decode: maximum over all segments; text: total
    num_source_tokens: int  # sum over all segments, including EOS
    num_target_tokens: int  # sum over the best hypothesis of all segments, including EOS
    detected_language: DetectedLanguage | None = None  # detected source language; None if the request specifies it
    # Intermediate language; None for a direct translation. With a pivot, `num_source_tokens` counts the texts, and
    # `model_name` is the model that translates from the pivot.
    pivot: Pivot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSentence:
    """One sentence of a document, or a part of it without words to translate."""

    text: str  # next part of the translated document: the best hypothesis and the copied text around it
    # Hypotheses of the sentence, best first; alignments refer to the document. Empty if nothing was translated.
    hypotheses: tuple[TextHypothesis, ...]
    # Position in the document and in the translated document; None if nothing was translated.
    sentence: SentenceAlignment | None
    warnings: tuple[TranslationWarning, ...]
    model_name: str
    model_version: str
    timings: StageTimings
    detected_language: DetectedLanguage | None = None  # as in `TranslationResult`
    is_unchanged: bool = False  # as in `Translation`


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of the server."""

    grpc_port: int  # 0: a unix socket
    http_port: int
    metrics_port: int  # port of metrics and probes; equal to `http_port` unless `http.metrics_port` is set
