"""Warm-up of a loaded model: a few translations before it receives requests."""

from dragoman_service.models.model import LoadedModel
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.translation.options import TranslationDefaults, search_config

# One sentence, several sentences and a long one: encoder runs of several lengths, and a batch that shrinks.
_SENTENCE = "1, 2, 3."  # the same in any language
_TEXTS = (_SENTENCE, f"{_SENTENCE} {_SENTENCE} {_SENTENCE}", ", ".join(str(number) for number in range(1, 25)) + ".")

_MAX_TARGET_TOKENS = 24  # enough for all batch sizes of a step to occur


def warm_up(model: LoadedModel, *, defaults: TranslationDefaults) -> None:
    """Translate some texts with the text pipeline and the worker, like requests; EngineError if that fails."""
    options = TranslationOptions(max_target_tokens=min(_MAX_TARGET_TOKENS, model.max_target_tokens))
    request = TranslationRequest(
        texts=_TEXTS, source_language=model.source_language, target_language=model.target_language, options=options
    )
    pipeline = TextPipeline(request, model=model, search=search_config(options, defaults))
    plans = pipeline.plan()
    results = model.scheduler.warm_up([part.segment for plan in plans for part in plan.parts])
    pipeline.assemble(plans, pipeline.attempts(plans, results))
