"""What a server tells about its models."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from dragoman.enums import ModelState, Precision
from dragoman.v1 import translation_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePair:
    """A direction of translation."""

    source_language: str
    target_language: str
    is_default: bool
    """Whether a request of this pair that names no model gets this version."""

    @classmethod
    def from_message(cls, message: pb.LanguagePair) -> Self:
        """Read the wire message."""
        return cls(
            source_language=message.source_language,
            target_language=message.target_language,
            is_default=message.is_default,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryPair:
    """A direction of translation of a glossary."""

    source_language: str
    target_language: str
    num_terms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """Terms with fixed translations that the server keeps."""

    name: str
    """What `DecodingOptions.glossary` calls it."""

    pairs: tuple[GlossaryPair, ...]

    @classmethod
    def from_message(cls, message: pb.Glossary) -> Self:
        """Read the wire message."""
        pairs = tuple(
            GlossaryPair(
                source_language=pair.source_language, target_language=pair.target_language, num_terms=pair.num_terms
            )
            for pair in message.pairs
        )
        return cls(name=message.name, pairs=pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageGroup:
    """Directions of translation: each source language into each target language, see `pairs`."""

    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    is_default: bool
    """Whether a request of one of these pairs that names no model gets this version."""

    def pairs(self) -> Iterator[LanguagePair]:
        """Yield each direction: no language into itself, unless the group has one of each."""
        is_one = len(self.source_languages) == len(self.target_languages) == 1
        for source in self.source_languages:
            for target in self.target_languages:
                if is_one or source != target:
                    yield LanguagePair(source_language=source, target_language=target, is_default=self.is_default)

    @classmethod
    def from_message(cls, message: pb.LanguageGroup) -> Self:
        """Read the wire message."""
        return cls(
            source_languages=tuple(message.source_languages),
            target_languages=tuple(message.target_languages),
            is_default=message.is_default,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a request must respect."""

    max_source_tokens: int
    """Per sentence; longer ones are handled as `DecodingOptions.long_sentences` says."""

    max_target_tokens: int
    """Per sentence."""

    max_texts: int
    """Per request."""

    max_text_characters: int
    """Per text."""

    max_document_characters: int
    """Per document; 0 if the server does not translate documents."""

    @classmethod
    def from_message(cls, message: pb.ModelLimits) -> Self:
        """Read the wire message."""
        return cls(
            max_source_tokens=message.max_source_tokens,
            max_target_tokens=message.max_target_tokens,
            max_texts=message.max_texts,
            max_text_characters=message.max_text_characters,
            max_document_characters=message.max_document_characters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """How well a model version translated a test set."""

    metric: str
    """Such as `BLEU` or `chrF`."""

    test_set: str
    """Such as `newstest2020`."""

    source_language: str
    target_language: str
    value: float
    """On the usual scale of the metric."""

    signature: str
    """How it was computed, such as a sacreBLEU signature; empty: not known."""

    @classmethod
    def from_message(cls, message: pb.EvaluationScore) -> Self:
        """Read the wire message."""
        return cls(
            metric=message.metric,
            test_set=message.test_set,
            source_language=message.source_language,
            target_language=message.target_language,
            value=message.value,
            signature=message.signature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of a model."""

    version: str
    state: ModelState
    state_message: str
    """For people: why it failed, if it did."""

    is_default: bool
    """Whether a request that names the model without a version gets this one."""

    language_pairs: tuple[LanguagePair, ...]
    """One by one; empty if there are more than 256."""

    language_groups: tuple[LanguageGroup, ...]
    """All pairs, in few groups; empty if the server is older than they are."""

    precision: Precision
    limits: ModelLimits
    evaluation_scores: tuple[EvaluationScore, ...]
    unsupported_fields: tuple[str, ...]
    """Paths of request fields the server refuses for this version, such as `options.sampling`."""

    labels: tuple[str, ...]
    """Labels that point to it, such as `stable`: `name@stable` then asks for this version."""

    @classmethod
    def from_message(cls, message: pb.ModelVersion) -> Self:
        """Read the wire message."""
        return cls(
            version=message.version,
            state=ModelState(message.state),
            state_message=message.state_message,
            is_default=message.is_default,
            language_pairs=tuple(map(LanguagePair.from_message, message.language_pairs)),
            language_groups=tuple(map(LanguageGroup.from_message, message.language_groups)),
            precision=Precision(message.precision),
            limits=ModelLimits.from_message(message.limits),
            evaluation_scores=tuple(map(EvaluationScore.from_message, message.evaluation_scores)),
            unsupported_fields=tuple(message.unsupported_fields),
            labels=tuple(message.labels),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A named model and its versions."""

    name: str
    versions: tuple[ModelVersion, ...]
    """Newest first, at least one."""

    @classmethod
    def from_message(cls, message: pb.Model) -> Self:
        """Read the wire message."""
        return cls(name=message.name, versions=tuple(map(ModelVersion.from_message, message.versions)))
