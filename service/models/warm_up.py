"""The first translations of a model, before anybody waits for them."""

from service.datatypes import TranslationOptions, TranslationRequest
from service.models.model import LoadedModel
from service.text.limits import TranslationDefaults
from service.text.options import search_config
from service.text.pipeline import TextPipeline

_SENTENCE = "1, 2, 3."  # the same in any language
_TEXTS = (_SENTENCE, f"{_SENTENCE} {_SENTENCE} {_SENTENCE}", ", ".join(str(number) for number in range(1, 25)) + ".")
"""One sentence, several, and a long one: encoder runs of different lengths, and a batch that shrinks."""

_MAX_TARGET_TOKENS = 24
"""Enough for every size of step to occur; what a network says to numbers is not worth waiting for."""


def warm_up(model: LoadedModel, *, defaults: TranslationDefaults) -> None:
    """Translate some texts with everything that requests will use: text pipeline, and batch of each decoding thread.

    Raises:
        EngineError: if the model cannot translate.
    """
    options = TranslationOptions(max_target_tokens=min(_MAX_TARGET_TOKENS, model.max_target_tokens))
    request = TranslationRequest(
        texts=_TEXTS,
        source_language=model.manifest.source_language,
        target_language=model.manifest.target_language,
        options=options,
    )
    pipeline = TextPipeline(request, model=model, search=search_config(options, defaults))
    plans = pipeline.plan()
    results = model.scheduler.warm_up([part.segment for plan in plans for part in plan.parts])
    pipeline.assemble(plans, results)
