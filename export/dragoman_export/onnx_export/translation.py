"""Translates many texts through the text pipeline, the search and the runtime that serve."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tqdm import tqdm

from dragoman_service.bundle.manifest import Confidence, Manifest
from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult, StageTimings
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.tokenizer import SentencePieceTokenizer

DEFAULT_LENGTH_PENALTY = SearchConfig().length_penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRun:
    """The translations of some texts, and what they took."""

    texts: tuple[str, ...]
    """In the order of the sources."""

    num_target_tokens: int
    """EOS counted."""

    num_split: int
    """Sentences decoded in parts because they had more tokens than the model takes."""

    num_truncated: int
    """Sentences whose translation was cut off at the limit of target tokens."""

    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        """Target tokens a second."""
        return self.num_target_tokens / self.elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """A step model with its tokenizer and languages, as the text pipeline takes it."""

    graph: StepModel
    tokenizer: SentencePieceTokenizer
    source_language: str
    target_language: str
    confidence: Confidence | None = None

    @classmethod
    def of(cls, graph: StepModel, tokenizer: SentencePieceTokenizer, manifest: Manifest) -> Self:
        """Take the languages of a bundle."""
        languages = {"source_language": manifest.source_language, "target_language": manifest.target_language}
        return cls(graph=graph, tokenizer=tokenizer, confidence=manifest.confidence, **languages)

    @property
    def max_source_tokens(self) -> int:
        """Longest source it takes, EOS counted."""
        return self.graph.limits.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Longest target it gives, EOS counted."""
        return self.graph.limits.max_target_tokens


def translate_texts(
    model: TextModel,
    sources: Sequence[str],
    *,
    beam_size: int,
    batch_size: int,
    length_penalty: float = DEFAULT_LENGTH_PENALTY,
    shows_progress: bool = True,
) -> TranslationRun:
    """Translate each text as the service does that has its default settings.

    Args:
        model: what translates.
        sources: texts of any number of sentences.
        beam_size: live hypotheses of each sentence.
        batch_size: sentences decoded together, those of similar length.
        length_penalty: as in a request.
        shows_progress: by a bar.
    """
    began_s = time.perf_counter()
    pipeline = text_pipeline(model, sources, beam_size, length_penalty)
    plans = pipeline.plan()
    segments = [part.segment for plan in plans for part in plan.parts]
    results = decode_segments(model.graph, segments, batch_size, shows_progress=shows_progress)
    translations = pipeline.assemble(plans, results)
    sentences = [sentence for translation in translations for sentence in translation.sentences]
    return TranslationRun(
        texts=tuple(translation.hypotheses[0].text for translation in translations),
        num_target_tokens=sum(len(result.hypotheses[0].token_ids) for result in results),
        num_split=sum(sentence.is_split for sentence in sentences),
        num_truncated=sum(sentence.is_truncated for sentence in sentences),
        elapsed_s=time.perf_counter() - began_s,
    )


def text_pipeline(
    model: TextModel, sources: Sequence[str], beam_size: int, length_penalty: float = DEFAULT_LENGTH_PENALTY
) -> TextPipeline:
    """Return the text side of a request as the service has it with its default settings."""
    options = TranslationOptions(beam_size=beam_size, length_penalty=length_penalty)
    request = TranslationRequest(
        texts=tuple(sources),
        source_language=model.source_language,
        target_language=model.target_language,
        options=options,
    )
    return TextPipeline(request, model=model, search=default_search(beam_size, length_penalty))


def default_search(beam_size: int, length_penalty: float = DEFAULT_LENGTH_PENALTY) -> SearchConfig:
    """Return the search of a server whose defaults are as they come, so that a score is that of what callers get."""
    return SearchConfig(beam_size=beam_size, length_penalty=length_penalty, repetition_guard=True)


def decode_segments(
    graph: StepModel, segments: Sequence[Segment], batch_size: int, *, shows_progress: bool = True
) -> list[SegmentResult]:
    """Return one result for each segment, in order."""
    results = dict[int, SegmentResult]()
    order = sorted(range(len(segments)), key=lambda index: -len(segments[index].source_ids))
    engine, running = RunningBatch(graph), dict[int, int]()
    with tqdm(total=len(segments), unit="sentence", leave=False, disable=not shows_progress) as progress:
        while order or running:
            if order and engine.num_segments <= batch_size // 2:  # joining one by one would cost an encoder run each
                joining, order = order[: batch_size - len(running)], order[batch_size - len(running) :]
                running.update(zip(engine.start([segments[index] for index in joining]), joining, strict=True))
            for ended in engine.step().ended:
                results[running.pop(ended.segment_id)] = SegmentResult(
                    hypotheses=ended.hypotheses, num_steps=ended.num_steps, timings=StageTimings(), guard=ended.guard
                )
                progress.update()
    return [results[index] for index in range(len(segments))]
