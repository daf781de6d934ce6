"""Warm-up of a loaded model: a few translations before it receives requests."""

from itertools import islice

from dragoman_service.models.model import LoadedModel
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from dragoman_service.translation.options import search_config
from dragoman_service.translation.settings import TranslationDefaults

_SENTENCE = "1, 2, 3."  # the same in any language
_NUM_CODE_POINTS = 0x10000  # that are tried as letters

_MAX_TARGET_TOKENS = 24  # enough for all batch sizes of a step to occur


def warm_up(model: LoadedModel, *, defaults: TranslationDefaults) -> None:
    """Translate some texts with the text pipeline and the worker, like requests; EngineError if that fails."""
    sentence = _readable_sentence(model.tokenizer)
    # One sentence, several sentences and a long one: encoder runs of several lengths, and a batch that shrinks.
    texts = (sentence, "\n".join([sentence] * 3), " ".join([sentence.rstrip(".")] * 8))
    options = TranslationOptions(max_target_tokens=min(_MAX_TARGET_TOKENS, model.max_target_tokens))
    request = TranslationRequest(
        texts=texts, source_language=model.source_language, target_language=model.target_language, options=options
    )
    pipeline = TextPipeline(request, model=model, search=search_config(options, defaults))
    plans = pipeline.plan()
    results = model.scheduler.warm_up([part.segment for plan in plans for part in plan.parts])
    pipeline.assemble(plans, pipeline.attempts(plans, results))


def _readable_sentence(tokenizer: SentencePieceTokenizer) -> str:
    # Characters that the model cannot spell are protected, and a sentence without others is not decoded.
    if all(map(tokenizer.spells, _SENTENCE)):
        return _SENTENCE
    letters = filter(str.isalpha, map(chr, range(ord("a"), _NUM_CODE_POINTS)))
    return " ".join(islice(filter(tokenizer.spells, letters), 4))
