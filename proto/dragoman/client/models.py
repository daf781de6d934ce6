"""Descriptions of models and glossaries."""

from collections.abc import Iterator
from dataclasses import dataclass

from dragoman.client.enums import ModelState, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePair:
    """A direction of translation."""

    source_language: str
    target_language: str
    is_default: bool  # True if requests for this pair without a model get this version


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryPair:
    """A direction of translation of a glossary."""

    source_language: str
    target_language: str
    num_terms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """Terms with fixed translations on the server."""

    name: str  # value for `DecodingOptions.glossary`
    pairs: tuple[GlossaryPair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageGroup:
    """Directions of translation: each source language into each target language, see `pairs`."""

    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    is_default: bool  # True if requests for one of these pairs without a model get this version

    def pairs(self) -> Iterator[LanguagePair]:
        """Yield each direction, without pairs of a language with itself unless the group has one of each."""
        is_one = len(self.source_languages) == len(self.target_languages) == 1
        for source in self.source_languages:
            for target in self.target_languages:
                if is_one or source != target:
                    yield LanguagePair(source_language=source, target_language=target, is_default=self.is_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of requests to a model version."""

    max_source_tokens: int  # per sentence; `DecodingOptions.long_sentences` decides how longer ones are handled
    max_target_tokens: int  # per sentence
    max_texts: int  # per request
    max_text_characters: int  # per text
    max_document_characters: int  # per document; 0 if the server does not translate documents


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationScore:
    """Quality of a model version on a test set."""

    metric: str  # name such as `BLEU` or `chrF`
    test_set: str  # name such as `newstest2020`
    source_language: str
    target_language: str
    value: float  # on the usual scale of the metric
    signature: str  # settings of the metric, such as a sacreBLEU signature; empty if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """One version of a model."""

    version: str
    state: ModelState
    state_message: str  # reason for `ModelState.FAILED`, for people; else empty
    is_default: bool  # True if requests for the model without a version get this one
    language_pairs: tuple[LanguagePair, ...]  # all pairs; empty if there are more than 256
    language_groups: tuple[LanguageGroup, ...]  # all pairs, grouped; empty if the server predates groups
    precision: Precision
    limits: ModelLimits
    evaluation_scores: tuple[EvaluationScore, ...]
    unsupported_fields: tuple[str, ...]
    """Paths of request fields that the server rejects for this version, such as `options.sampling`."""

    labels: tuple[str, ...]  # labels of this version, such as `stable`: requests for `name@stable` get it


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A named model and its versions."""

    name: str
    versions: tuple[ModelVersion, ...]
    """Newest first, at least one."""
