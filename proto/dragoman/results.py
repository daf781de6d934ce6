"""What a translation call returns. Spans count Unicode code points, times are seconds, scores are better if higher."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, overload

from dragoman.enums import WarningKind
from dragoman.errors import DragomanError, error_from_status
from dragoman.v1 import translation_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of characters."""

    start: int
    end: int

    @classmethod
    def from_message(cls, message: pb.Span) -> Self:
        """Read the wire message."""
        return cls(start=message.start, end=message.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentLink:
    """A piece of the source and a piece of the target that belong together."""

    source: Span
    target: Span
    weight: float
    """Share of the attention that the target piece gave the source piece, 0 to 1."""

    @classmethod
    def from_message(cls, message: pb.AlignmentLink) -> Self:
        """Read the wire message."""
        return cls(
            source=Span.from_message(message.source),
            target=Span.from_message(message.target),
            weight=message.weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """How much each target token of a sentence, or of a part of one, looked at each source token."""

    source_pieces: tuple[str, ...]
    """Subword pieces, end-of-sentence last."""

    target_pieces: tuple[str, ...]
    """Subword pieces, end-of-sentence included if the sentence was finished."""

    num_heads: int
    """1 if they were averaged."""

    layer: int
    """Of the decoder, counted from 0."""

    weights: tuple[float, ...]
    """Heads x target pieces x source pieces, the source running fastest; see `row`."""

    def row(self, target_index: int, *, head: int = 0) -> tuple[float, ...]:
        """Return the weight of each source piece for one target piece."""
        width = len(self.source_pieces)
        start = (head * len(self.target_pieces) + target_index) * width
        return self.weights[start : start + width]

    @classmethod
    def from_message(cls, message: pb.CrossAttention) -> Self:
        """Read the wire message."""
        return cls(
            source_pieces=tuple(message.source_pieces),
            target_pieces=tuple(message.target_pieces),
            num_heads=message.num_heads,
            layer=message.layer,
            weights=tuple(message.weights),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One candidate translation."""

    text: str
    score: float
    """Log-probability divided by the length penalty, plus the coverage penalty, added up over the sentences."""

    tokens: tuple[str, ...]
    """Subword pieces, if asked for."""

    token_log_probs: tuple[float, ...]
    """Log-probability of each token, if asked for."""

    alignment: tuple[AlignmentLink, ...]
    """Which piece of the translation comes from which piece of the text, ordered by target, if asked for."""

    attention: tuple[CrossAttention, ...]
    """The cross-attention of each piece of the text that was translated by itself, if asked for."""

    @classmethod
    def from_message(cls, message: pb.Hypothesis) -> Self:
        """Read the wire message."""
        return cls(
            text=message.text,
            score=message.score,
            tokens=tuple(message.tokens),
            token_log_probs=tuple(message.token_log_probs),
            alignment=tuple(map(AlignmentLink.from_message, message.alignment)),
            attention=tuple(map(CrossAttention.from_message, message.attention)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Where one sentence is in the source and in the best hypothesis."""

    source: Span
    target: Span
    num_source_tokens: int
    num_target_tokens: int
    is_truncated: bool
    """See `WarningKind.TRUNCATED`."""

    is_split: bool
    """See `WarningKind.SOURCE_SPLIT`."""

    score: float | None
    """How likely it is translated well, 0 to 1; None: the model was not calibrated to say."""

    @classmethod
    def from_message(cls, message: pb.Sentence) -> Self:
        """Read the wire message."""
        return cls(
            source=Span.from_message(message.source),
            target=Span.from_message(message.target),
            num_source_tokens=message.num_source_tokens,
            num_target_tokens=message.num_target_tokens,
            is_truncated=message.is_truncated,
            is_split=message.is_split,
            score=message.score if message.HasField("score") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationWarning:
    """One thing to know about a translation."""

    kind: WarningKind
    message: str
    """For people: says the figures."""

    sentence_index: int | None
    """Index into `Translation.sentences`; None: the whole text."""

    @classmethod
    def from_message(cls, message: pb.TranslationWarning) -> Self:
        """Read the wire message."""
        return cls(
            kind=WarningKind(message.kind),
            message=message.message,
            sentence_index=message.sentence_index if message.HasField("sentence_index") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """Where the time went; the longest of the sentences for all but `text_s`, which is added up."""

    queue_s: float
    encode_s: float
    decode_s: float
    text_s: float
    """Splitting, tokenizing, detokenizing and joining."""

    @classmethod
    def from_message(cls, message: pb.StageTimings) -> Self:
        """Read the wire message."""
        return cls(
            queue_s=message.queue.ToTimedelta().total_seconds(),
            encode_s=message.encode.ToTimedelta().total_seconds(),
            decode_s=message.decode.ToTimedelta().total_seconds(),
            text_s=message.text.ToTimedelta().total_seconds(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The translation of one text."""

    hypotheses: tuple[Hypothesis, ...]
    """Best first, at least one."""

    sentences: tuple[Sentence, ...]
    """In order, as they stand in the best hypothesis."""

    warnings: tuple[TranslationWarning, ...]
    """What to know before relying on the best hypothesis."""

    @property
    def text(self) -> str:
        """Text of the best hypothesis."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Score of the best hypothesis."""
        return self.hypotheses[0].score

    @classmethod
    def from_message(cls, message: pb.Translation) -> Self:
        """Read the wire message."""
        return cls(
            hypotheses=tuple(map(Hypothesis.from_message, message.hypotheses)),
            sentences=tuple(map(Sentence.from_message, message.sentences)),
            warnings=tuple(map(TranslationWarning.from_message, message.warnings)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedLanguage:
    """A language that a text may be in."""

    language: str
    """BCP-47 tag."""

    confidence: float
    """Probability among all known languages, served or not, 0 to 1."""

    is_served: bool
    """Whether it is translated from."""

    @classmethod
    def from_message(cls, message: pb.DetectedLanguage) -> Self:
        """Read the wire message."""
        return cls(language=message.language, confidence=message.confidence, is_served=message.is_served)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """A language between source and target."""

    language: str
    """BCP-47 tag."""

    model_name: str
    """Of the model that translated into it."""

    model_version: str

    @classmethod
    def from_message(cls, message: pb.Pivot) -> Self:
        """Read the wire message."""
        return cls(language=message.language, model_name=message.model_name, model_version=message.model_version)


def _detected(message: pb.TranslateResponse | pb.TranslatedSentence) -> DetectedLanguage | None:
    is_there = message.HasField("detected_language")
    return DetectedLanguage.from_message(message.detected_language) if is_there else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationResult(Sequence[Translation]):
    """The answer to one request, a sequence of translations: `result[0].text`."""

    translations: tuple[Translation, ...]
    """One for each text, in their order."""

    model_name: str
    model_version: str
    timings: StageTimings
    num_source_tokens: int
    num_target_tokens: int
    request_id: str
    detected_language: DetectedLanguage | None
    """The detected language of the texts; None: the request named it."""

    pivot: Pivot | None
    """What was translated through; None: nothing was."""

    @overload
    def __getitem__(self, index: int) -> Translation: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Translation, ...]: ...

    def __getitem__(self, index: int | slice) -> Translation | tuple[Translation, ...]:
        return self.translations[index]

    def __len__(self) -> int:
        return len(self.translations)

    @classmethod
    def from_message(cls, message: pb.TranslateResponse) -> Self:
        """Read the wire message."""
        return cls(
            translations=tuple(map(Translation.from_message, message.translations)),
            model_name=message.model_name,
            model_version=message.model_version,
            timings=StageTimings.from_message(message.timings),
            num_source_tokens=message.num_source_tokens,
            num_target_tokens=message.num_target_tokens,
            request_id=message.request_id,
            detected_language=_detected(message),
            pivot=Pivot.from_message(message.pivot) if message.HasField("pivot") else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswer:
    """The answer to one request of a stream, which may have failed by itself."""

    request_id: str
    """Id of the request it answers."""

    outcome: TranslationResult | DragomanError

    def result(self) -> TranslationResult:
        """Return the result.

        Raises:
            DragomanError: if the request failed.
        """
        if isinstance(self.outcome, DragomanError):
            raise self.outcome
        return self.outcome

    @classmethod
    def from_message(cls, message: pb.TranslateResponse) -> Self:
        """Read the wire message."""
        if message.HasField("error"):
            return cls(request_id=message.request_id, outcome=error_from_status(message.error, message.request_id))
        return cls(request_id=message.request_id, outcome=TranslationResult.from_message(message))


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedSentence:
    """One finished sentence of a document."""

    index: int
    """Position in the document, counted from 0."""

    text: str
    """The next piece of the translated document, with the white space around it: joined, they are the translation."""

    hypotheses: tuple[Hypothesis, ...]
    """Candidates for the bare sentence, best first."""

    sentence: Sentence | None
    """Where it is in the document; None if there was nothing to translate."""

    warnings: tuple[TranslationWarning, ...]
    model_name: str
    model_version: str
    timings: StageTimings
    request_id: str
    detected_language: DetectedLanguage | None
    """The detected language of the document; None: the request named it."""

    @classmethod
    def from_message(cls, message: pb.TranslatedSentence) -> Self:
        """Read the wire message."""
        return cls(
            index=message.index,
            text=message.text,
            hypotheses=tuple(map(Hypothesis.from_message, message.hypotheses)),
            sentence=Sentence.from_message(message.sentence) if message.HasField("sentence") else None,
            warnings=tuple(map(TranslationWarning.from_message, message.warnings)),
            model_name=message.model_name,
            model_version=message.model_version,
            timings=StageTimings.from_message(message.timings),
            request_id=message.request_id,
            detected_language=_detected(message),
        )
