"""Translates texts with the text pipeline, the search and the runtime of the service."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from tqdm import tqdm

from dragoman_export.errors import SettingError
from dragoman_service.bundle.manifest import Confidence, Languages, Manifest
from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult, WarningKind
from dragoman_service.decoding import offline
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.request import TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.text.pipeline import Outcome, TextPipeline, translate_offline, translation_steps
from dragoman_service.text.tokenizer import SentencePieceTokenizer

DEFAULT_LENGTH_PENALTY = SearchConfig().length_penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRun:
    """Translations of some texts, with counts and time."""

    texts: tuple[str, ...]  # in the order of the sources
    num_target_tokens: int  # EOS included
    num_split: int  # sentences decoded in parts because they exceed the model's limit
    num_truncated: int  # sentences truncated at the limit of target tokens
    num_lost_placeholders: int  # protected spans that the model did not reproduce; the texts contain them
    num_second_searches: int  # sentences decoded again because they violated an invariant
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        """Target tokens per second."""
        return self.num_target_tokens / self.elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTextModel:
    """A step model with tokenizer and languages, as the text pipeline expects it."""

    graph: StepModel
    tokenizer: SentencePieceTokenizer
    source_language: str
    target_language: str
    confidence: Confidence | None = None
    has_attention: bool = False
    languages: Languages | None = None  # all language pairs of the bundle; None: unknown

    @classmethod
    def of(cls, graph: StepModel, tokenizer: SentencePieceTokenizer, manifest: Manifest) -> Self:
        """Use the languages of a bundle."""
        pair = {"source_language": manifest.source_language, "target_language": manifest.target_language}
        languages = manifest.languages()
        placement = getattr(graph, "placement", None)  # an ensemble has none
        return cls(
            graph=graph,
            tokenizer=tokenizer,
            confidence=manifest.confidence,
            has_attention=placement is not None and manifest.has_attention(placement.precision),
            languages=languages,
            **pair,
        )

    def for_pair(self, source_language: str, target_language: str) -> Self:
        """Return the model for a language pair; SettingError if the bundle lacks it."""
        if self.languages is None or not self.languages.serves(source_language, target_language):
            pair = f"{source_language} to {target_language}"
            raise SettingError("--data", pair, "a language pair of the model")
        tokenizer = self.tokenizer.for_pair(source_language, target_language)
        return replace(self, tokenizer=tokenizer, source_language=source_language, target_language=target_language)

    @property
    def max_source_tokens(self) -> int:
        """Longest source, EOS included."""
        return self.graph.limits.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Longest target, EOS included."""
        return self.graph.limits.max_target_tokens


def translate_texts(
    model: BundleTextModel,
    sources: Sequence[str],
    *,
    beam_size: int,
    batch_size: int,
    length_penalty: float = DEFAULT_LENGTH_PENALTY,
    shows_progress: bool = True,
) -> TranslationRun:
    """Translate texts as the service does with default settings."""
    began_s = time.perf_counter()
    outcomes = translate_each(
        model,
        sources,
        beam_size=beam_size,
        batch_size=batch_size,
        length_penalty=length_penalty,
        shows_progress=shows_progress,
    )
    translations = [outcome.translations[0] for outcome in outcomes]
    sentences = [sentence for translation in translations for sentence in translation.sentences]
    warnings = Counter(warning.kind for translation in translations for warning in translation.warnings)
    return TranslationRun(
        texts=tuple(translation.hypotheses[0].text for translation in translations),
        num_target_tokens=sum(len(result.hypotheses[0].token_ids) for each in outcomes for result in each.results),
        num_split=sum(sentence.is_split for sentence in sentences),
        num_truncated=sum(sentence.is_truncated for sentence in sentences),
        num_lost_placeholders=warnings[WarningKind.PLACEHOLDER_LOST],
        num_second_searches=sum(outcome.num_second for outcome in outcomes),
        elapsed_s=time.perf_counter() - began_s,
    )


def translate_each(
    model: BundleTextModel,
    sources: Sequence[str],
    *,
    beam_size: int,
    batch_size: int,
    length_penalty: float = DEFAULT_LENGTH_PENALTY,
    shows_progress: bool = True,
    text_format: TextFormat = TextFormat.PLAIN,
) -> list[Outcome]:
    """Return the outcome of each text, as requests of one text each."""
    pipelines = [text_pipeline(model, [text], beam_size, length_penalty, text_format=text_format) for text in sources]
    with tqdm(total=len(sources), unit="sentence", leave=False, disable=not shows_progress) as progress:

        def decode(segments: list[Segment]) -> list[SegmentResult]:
            progress.total = max(len(sources), progress.n + len(segments))
            return offline.decode_segments(model.graph, segments, batch_size=batch_size, on_ended=progress.update)

        return translate_offline([translation_steps(pipeline) for pipeline in pipelines], decode)


def text_pipeline(
    model: BundleTextModel,
    sources: Sequence[str],
    beam_size: int = 4,
    length_penalty: float = DEFAULT_LENGTH_PENALTY,
    *,
    text_format: TextFormat = TextFormat.PLAIN,
) -> TextPipeline:
    """Return the text pipeline of a request with default settings."""
    options = TranslationOptions(beam_size=beam_size, length_penalty=length_penalty, format=text_format)
    request = TranslationRequest(
        texts=tuple(sources),
        source_language=model.source_language,
        target_language=model.target_language,
        options=options,
    )
    search = default_search(beam_size, length_penalty)
    return TextPipeline(request, model=model, search=search, has_attention=model.has_attention)


def default_search(beam_size: int, length_penalty: float = DEFAULT_LENGTH_PENALTY) -> SearchConfig:
    """Return the search of a server with default settings, so that scores apply to served translations."""
    return SearchConfig(beam_size=beam_size, length_penalty=length_penalty, repetition_guard=True)
