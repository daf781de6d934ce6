"""Translate of dragoman.v1 over a batcher, with our own text pipeline around it; all else is UNIMPLEMENTED."""

import time
from dataclasses import dataclass, replace

import grpc
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

from loadtests.peers.batching import Answer, DynamicBatcher
from loadtests.peers.systems import SearchOptions
from service.api import messages, status
from service.bundle import Bundle
from service.datatypes import Hypothesis, SegmentResult, StageTimings, TranslationResult
from service.errors import DragomanError, ModelNotFoundError, UnsupportedFieldError
from service.requests import TranslationOptions, TranslationRequest
from service.text.pipeline import EXTRA_TARGET_TOKENS, TextPipeline
from service.text.tokenizer import SentencePieceTokenizer, open_tokenizer
from service.translate.options import (
    TranslationDefaults,
    TranslationLimits,
    check_request,
    fit_to_model,
)

_SUPPORTED = (
    "beam_size",
    "length_penalty",
    "min_target_tokens",
    "max_target_tokens",
    "early_stopping",
    "repetition_guard",
)
"""What a request may choose. The systems behind stop as they do, whether told or not: CTranslate2, under a length
penalty, and Transformers with the K-th finished hypothesis. There is no guard here, so that is as if it found nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedText:
    """What the text pipeline must know of the model."""

    tokenizer: SentencePieceTokenizer
    max_source_tokens: int
    max_target_tokens: int


class PeerServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService, of which it implements the call of load tests."""

    def __init__(self, bundle: Bundle, batcher: DynamicBatcher) -> None:
        """Take tokenizer, names and limits from the bundle."""
        self._manifest = bundle.manifest
        limits = self._manifest.limits
        self._text = ServedText(
            tokenizer=open_tokenizer(bundle),
            max_source_tokens=limits.max_source_tokens,
            max_target_tokens=limits.max_target_tokens,
        )
        self._batcher = batcher

    async def Translate(  # noqa: N802
        self, request: pb.TranslateRequest, context: grpc.aio.ServicerContext
    ) -> pb.TranslateResponse:
        """Translate all texts of the request; errors are told as the service does."""
        try:
            result = await self._translated(messages.from_translate_request(request))
        except DragomanError as error:
            answer = status.answer(error)
            context.set_trailing_metadata(answer.trailing_metadata)
            await context.abort(answer.code, answer.message)
        return messages.to_translate_response(result, request_id=request.request_id)

    async def _translated(self, request: TranslationRequest) -> TranslationResult:
        began_s = time.monotonic()
        pipeline, options = self._prepared(request)
        plans = pipeline.plan()
        segments = [part.segment for plan in plans for part in plan.parts]
        split_s = time.monotonic() - began_s
        answers = await self._batcher.translate([segment.source_ids for segment in segments], options)
        ended_s = time.monotonic()
        results = [_result(answer, self._text.tokenizer.eos_id) for answer in answers]
        translations = pipeline.assemble(plans, results)
        return TranslationResult(
            translations=translations,
            model_name=self._manifest.name,
            model_version=self._manifest.version,
            timings=StageTimings(
                queue_s=max((answer.queue_s for answer in answers), default=0.0),
                decode_s=max((answer.translate_s for answer in answers), default=0.0),
                text_s=split_s + time.monotonic() - ended_s,
            ),
            num_source_tokens=sum(len(segment.source_ids) for segment in segments),
            num_target_tokens=sum(len(answer.output.token_ids) for answer in answers),
        )

    def _prepared(self, request: TranslationRequest) -> tuple[TextPipeline, SearchOptions]:
        """Check a request as the service does; return its text side and what the system is asked for."""
        limits, defaults = TranslationLimits(), TranslationDefaults()
        search = check_request(request, limits, defaults, draw_seed=lambda: 0)  # nothing is drawn here
        _check_supported(request)
        known = f"{self._manifest.source_language}-{self._manifest.target_language}"
        if f"{request.source_language}-{request.target_language}" != known:
            raise ModelNotFoundError("source_language", "the language pair", (known,))
        name = f"{self._manifest.name}/{self._manifest.version}"
        search = fit_to_model(search, request.options, self._text, name=name, has_attention=False)
        has_limit = request.options.max_target_tokens is not None
        options = SearchOptions(
            beam_size=search.beam_size,
            min_target_tokens=search.min_target_tokens,
            max_target_tokens=search.max_target_tokens if has_limit else self._text.max_target_tokens,
            extra_target_tokens=None if has_limit else EXTRA_TARGET_TOKENS,
            length_penalty=search.length_penalty,
        )
        return TextPipeline(request, model=self._text, search=search), options


def _check_supported(request: TranslationRequest) -> None:
    """Raise UnsupportedFieldError if a request chooses what the systems behind are not asked for."""
    chosen = {name: getattr(request.options, name) for name in _SUPPORTED}
    if request.options != replace(TranslationOptions(), **chosen):
        raise UnsupportedFieldError("options")
    if any(request.target_prefixes):
        raise UnsupportedFieldError("target_prefixes")


def _result(answer: Answer, eos_id: int) -> SegmentResult:
    token_ids, score = answer.output.token_ids, answer.output.score
    is_finished = token_ids[-1:] == (eos_id,)
    best = Hypothesis(token_ids=token_ids, token_log_probs=(), log_prob=score, score=score, is_finished=is_finished)
    return SegmentResult(hypotheses=(best,), num_steps=len(token_ids), timings=StageTimings())
