"""A tokenizer, a queue and a model without a network, for tests of the text pipeline and the translator."""

import asyncio
import codecs
import io
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from sentencepiece import SentencePieceTrainer

from dragoman_service.bundle.manifest import Confidence, GraphFiles, Manifest
from dragoman_service.datatypes import (
    Hypothesis,
    SearchConfig,
    Segment,
    SegmentResult,
    StageTimings,
    TranslatedSentence,
    TranslationResult,
)
from dragoman_service.models.glossaries import GlossaryRepository
from dragoman_service.models.repository import ModelRepository
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext, TranslationOptions, TranslationRequest
from dragoman_service.scheduling.admission import max_decode_cost
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from dragoman_service.translation.translator import Translator

METRICS = Metrics(CollectorRegistry())  # shared, because creating metrics takes longer than a test

EOS = 2
FIRST_CHARACTER = 4

Answer = tuple[Hypothesis, ...] | SegmentResult | Exception | None  # result of a segment; None: none yet


class CharacterTokenizer(SentencePieceTokenizer):
    """One token for each character. The snowman is the unknown token."""

    eos_id = EOS
    unk_id = ord("☃") + FIRST_CHARACTER
    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = (EOS,)
    target_prefix: tuple[int, ...] = ()
    placeholders: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    filler = ""
    byte_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        """Load nothing."""
        self.readable = defaultdict(set)

    def for_pair(self, source_language: str, target_language: str) -> Self:
        of_pair = copy(self)
        of_pair.source_prefix = tuple(self.encode(source_language))
        of_pair.target_prefix = tuple(self.encode(target_language))
        return of_pair

    def spells(self, character: str) -> bool:
        return character != "☃"

    def encode(self, text: str) -> list[int]:
        return [ord(char) + FIRST_CHARACTER for char in text]

    def is_one_token(self, word: str) -> bool:
        return True

    def encode_target(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token_id - FIRST_CHARACTER) for token_id in token_ids if token_id >= FIRST_CHARACTER)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return ["</s>" if token_id == EOS else self.decode([token_id]) for token_id in token_ids]

    def source_pieces(self, token_ids: Sequence[int]) -> list[str]:
        return self.pieces(token_ids)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(index, index + 1) for index in range(len(text))]

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        text = self.decode(token_ids)
        return text, self.offsets(text)

    def token_id(self, piece: str) -> int | None:
        return ord(piece) + FIRST_CHARACTER if len(piece) == 1 else None


TOKENIZER = CharacterTokenizer()


def train_sentencepiece(sentences: Sequence[str], **options: Any) -> bytes:
    """Return a serialized BPE model with at most `vocab_size` pieces."""
    model = io.BytesIO()
    defaults = {"model_type": "bpe", "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
    SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **{**defaults, **options})
    return model.getvalue()


def make_hypothesis(text: str, *, score: float = -1.0, is_finished: bool = True) -> Hypothesis:
    token_ids = (*TOKENIZER.encode(text), *([EOS] if is_finished else []))
    log_prob = score * len(token_ids)
    return Hypothesis(
        token_ids=token_ids,
        token_log_probs=(score,) * len(token_ids),
        log_prob=log_prob,
        score=score,
        is_finished=is_finished,
    )


def make_result(*hypotheses: Hypothesis, timings: StageTimings | None = None) -> SegmentResult:
    return SegmentResult(hypotheses=hypotheses, num_steps=1, timings=timings or StageTimings())


def attending(hypothesis: Hypothesis, segment: Segment, *, num_layers: int = 2, num_heads: int = 3) -> Hypothesis:
    """Return the hypothesis with monotonic attention in each layer and head."""
    num_targets, num_sources = len(hypothesis.token_ids), len(segment.source_ids)
    weights: NDArray[np.float32] = np.full((num_targets, num_sources), 0.5 / num_sources, dtype=np.float32)
    targets = np.arange(num_targets)
    weights[targets, np.minimum(targets, num_sources - 1)] += 0.5
    attention = np.broadcast_to(weights, (num_layers, num_heads, num_targets, num_sources))
    return replace(hypothesis, attention=attention)


def source_text(segment: Segment) -> str:
    return TOKENIZER.decode(segment.source_ids)


def echo(segment: Segment) -> Answer:
    """Translate a sentence into itself."""
    return (make_hypothesis(source_text(segment)),)


def shout(segment: Segment) -> Answer:
    """Translate a sentence into capitals, which may be longer."""
    return (make_hypothesis(source_text(segment).upper()),)


def encipher(segment: Segment) -> Answer:
    """Translate each letter into another, so that the translation is not a copy: `One.` into `Bar.`."""
    return (make_hypothesis(codecs.encode(source_text(segment), "rot13")),)


def garble(segment: Segment) -> Answer:
    """Translate into the source with its words shuffled, some of them removed and some repeated."""
    source = source_text(segment)
    chance = random.Random(source)  # noqa: S311
    words = source.split()
    chance.shuffle(words)
    kept = [word for word in words if chance.random() < 0.7] or ["nothing"]
    kept += [word for word in words if chance.random() < 0.1]
    return (make_hypothesis(" ".join(kept)),)


@dataclass
class FakeQueue:
    """Answers each segment at once."""

    answer: Callable[[Segment], Answer] = echo
    timings: StageTimings = field(default_factory=StageTimings)
    segments: list[Segment] = field(default_factory=list)
    futures: list["Future[SegmentResult]"] = field(default_factory=list)
    context: RequestContext | None = None
    rejection: Exception | None = None  # raised by `reject_early`

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        if self.rejection:
            raise self.rejection

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        return max_decode_cost(segments)

    def submit(
        self, segments: Sequence[Segment], context: RequestContext, *, num_characters: int = 0
    ) -> "list[Future[SegmentResult]]":
        self.context = context
        self.segments += segments
        futures = [self._answered(segment) for segment in segments]
        self.futures += futures
        return futures

    def _answered(self, segment: Segment) -> "Future[SegmentResult]":
        future: Future[SegmentResult] = Future()
        answer = self.answer(segment)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif isinstance(answer, SegmentResult):
            future.set_result(answer)
        elif answer is not None:
            if segment.wants_attention:
                answer = tuple(attending(hypothesis, segment) for hypothesis in answer)
            future.set_result(make_result(*answer, timings=self.timings))
        return future


def make_manifest(*, has_attention: bool = True) -> Manifest:
    """Return the capabilities of a manifest."""
    files = GraphFiles(encoder="e.onnx", decoder="d.onnx", attention="a.onnx" if has_attention else None)
    return Manifest.model_construct(precisions={"fp32": files})


@dataclass
class FakeModel:
    """A model, and the repository that resolves to it."""

    scheduler: FakeQueue = field(default_factory=FakeQueue)
    name: str = "toy"
    version: str = "1"
    has_attention: bool = True
    precision: str = "fp32"
    tokenizer: CharacterTokenizer = TOKENIZER
    max_source_tokens: int = 64
    max_target_tokens: int = 200
    confidence: Confidence | None = None
    resolved: tuple[str, str, str] | None = None

    def resolve(self, model: str, source_language: str, target_language: str) -> "FakeModel":
        self.resolved = (model, source_language, target_language)
        return self

    def source_languages(self, model: str, target_language: str) -> Sequence[str]:
        return ("en", "fr")


def make_request(*texts: str, **options: Any) -> TranslationRequest:
    return TranslationRequest(
        texts=texts, source_language="en", target_language="de", model="toy", options=TranslationOptions(**options)
    )


def repository(models: object) -> ModelRepository:
    """Return a fake with the methods of a repository that the translator uses."""
    return cast("ModelRepository", models)


def make_translator(models: object, **arguments: Any) -> Translator:
    glossaries = GlossaryRepository(Path("none"), METRICS)
    return Translator(repository(models), glossaries, **{"metrics": METRICS, **arguments})


def translate(model: FakeModel, *texts: str, **options: Any) -> TranslationResult:
    return asyncio.run(make_translator(model).translate(make_request(*texts, **options), RequestContext()))


async def translate_document(
    translator: Translator, request: TranslationRequest, context: RequestContext | None = None
) -> list[TranslatedSentence]:
    return [sentence async for sentence in translator.translate_document(request, context or RequestContext())]
