"""Results of translation calls. Spans count Unicode code points, times are seconds, higher scores are better."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from dragoman.client.enums import WarningKind
from dragoman.client.errors import DragomanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of characters."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLink:
    """A span of the source and the span of the target that translates it."""

    source: Span
    target: Span
    weight: float  # share of attention that the target span gives to the source span, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Attention of each target token to each source token, for a sentence or a part of one."""

    source_pieces: tuple[str, ...]  # subword pieces, end-of-sentence last
    target_pieces: tuple[str, ...]  # subword pieces, including end-of-sentence if the sentence was finished
    num_heads: int  # 1 if the heads were averaged
    layer: int  # index of the decoder layer, from 0
    weights: tuple[float, ...]  # row-major [num_heads, target pieces, source pieces]; see `row`

    def row(self, target_index: int, *, head: int = 0) -> tuple[float, ...]:
        """Return the weight of each source piece for one target piece."""
        width = len(self.source_pieces)
        start = (head * len(self.target_pieces) + target_index) * width
        return self.weights[start : start + width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One candidate translation."""

    text: str
    score: float  # log-probability divided by the length penalty, plus the coverage penalty, summed over the sentences
    tokens: tuple[str, ...]  # subword pieces, if requested
    token_log_probs: tuple[float, ...]  # log-probability of each token, if requested
    alignment: tuple[AlignmentLink, ...]  # links between source and translation, ordered by target, if requested
    attention: tuple[CrossAttention, ...]
    """Cross-attention of each sentence or part that was translated separately, if requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Position of one sentence in the source and in the best hypothesis."""

    source: Span
    target: Span
    num_source_tokens: int
    num_target_tokens: int
    is_truncated: bool  # see `WarningKind.TRUNCATED`
    is_split: bool  # see `WarningKind.SOURCE_SPLIT`
    score: float | None  # estimated probability of a good translation, 0 to 1; None: the model has no calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationWarning:
    """A problem with a translation."""

    kind: WarningKind
    message: str  # description with figures, for people
    sentence_index: int | None  # index into `Translation.sentences`; None: the whole text
    source: Span | None = None  # range of the source text; None: unknown, or the text is only in the translation
    target: Span | None = None  # range of the best hypothesis; None: unknown, or the text is missing there


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """Time spent in each stage: the longest of the sentences, except `text_s`, which is a sum."""

    queue_s: float
    encode_s: float
    decode_s: float
    text_s: float  # segmentation, tokenization, detokenization and joining


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The translation of one text."""

    hypotheses: tuple[Hypothesis, ...]
    """At least one, best first: ordered by the number of violations of hard kinds, then by score. With sampling or a
    target prefix, the score alone decides."""

    sentences: tuple[Sentence, ...]  # in the order of the best hypothesis
    warnings: tuple[TranslationWarning, ...]  # problems with the best hypothesis
    is_unchanged: bool = False  # True if the text is returned unchanged, because it is in the target language

    @property
    def text(self) -> str:
        """Text of the best hypothesis."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Score of the best hypothesis."""
        return self.hypotheses[0].score


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedLanguage:
    """A possible language of a text."""

    language: str  # BCP-47 tag
    confidence: float  # probability among all languages that the detector supports, 0 to 1
    is_served: bool  # True if the server translates from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """An intermediate language between source and target."""

    language: str  # BCP-47 tag
    model_name: str  # name of the model that translated into it
    model_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationResult(Sequence[Translation]):
    """The result of one request, a sequence of translations: `result[0].text`."""

    translations: tuple[Translation, ...]  # one for each text, in order
    model_name: str
    model_version: str
    timings: StageTimings
    num_source_tokens: int
    num_target_tokens: int
    request_id: str
    detected_language: DetectedLanguage | None  # None if the request named the source language
    pivot: Pivot | None  # None if the texts were translated directly

    @overload
    def __getitem__(self, index: int) -> Translation: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Translation, ...]: ...

    def __getitem__(self, index: int | slice) -> Translation | tuple[Translation, ...]:
        return self.translations[index]

    def __len__(self) -> int:
        return len(self.translations)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswer:
    """The result or error of one request of a stream."""

    request_id: str
    outcome: TranslationResult | DragomanError

    def result(self) -> TranslationResult:
        """Return the result.

        Raises:
            DragomanError: if the request failed.
        """
        if isinstance(self.outcome, DragomanError):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSentence:
    """One finished sentence of a document."""

    index: int  # position in the document, from 0
    text: str
    """Next part of the translated document, including surrounding white space: the parts join to the translation."""

    hypotheses: tuple[Hypothesis, ...]  # candidates for the sentence without surrounding white space, best first
    sentence: Sentence | None  # position in the document; None if it has nothing to translate
    warnings: tuple[TranslationWarning, ...]
    model_name: str
    model_version: str
    timings: StageTimings
    request_id: str
    detected_language: DetectedLanguage | None
    """None if the request named the source language."""

    is_unchanged: bool = False
    """True if this is the whole document, returned unchanged because it is in the target language."""
