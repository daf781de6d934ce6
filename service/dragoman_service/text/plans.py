"""Plans of texts: the parts that are decoded, and what planning needs of a model and of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from dragoman_service.bundle.manifest import Confidence
from dragoman_service.datatypes import Segment, Span
from dragoman_service.text.placeholders.text_units import TextUnit
from dragoman_service.text.tokenizer import SentencePieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """Text that a model reads instead of a text of the same length."""

    text: str
    is_from_capitals: bool = False  # sentence case instead of capitals, so the translation is set in capitals
    is_recased: bool = False  # other case instead of a copied label, so the translation gets the capital of the source
    is_ordinary: bool = field(default=False, compare=False)  # True: see `is_ordinary`; False: unknown

    def part(self, span: Span) -> "ModelText":
        """Return a range of the text."""
        return replace(self, text=self.text[span.start : span.end], is_ordinary=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPart:
    """Part of a text with the tokens that a model reads."""

    span: Span  # in the text of the request
    token_ids: list[int]
    model_text: ModelText
    unit: TextUnit | None = None


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
