"""Between sentences and token ids, and what a translation is worth: BLEU by sacreBLEU."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

from loadtests.peers.systems import Output, TokenIds
from service.bundle import Bundle
from service.text.tokenizer import open_tokenizer


class TextPipeline:
    """The tokenizer of a model."""

    def __init__(self, bundle: Bundle) -> None:
        """Load it."""
        self._tokenizer = open_tokenizer(bundle)
        self._max_source_tokens = bundle.manifest.limits.max_source_tokens

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, ...]:
        """Return the token ids of each text, cut to what the model takes, EOS last."""
        longest, eos_id = self._max_source_tokens - 1, self._tokenizer.eos_id
        return tuple((*self._tokenizer.encode(text)[:longest], eos_id) for text in texts)

    def bleu(self, outputs: Sequence[Output], references: Sequence[str]) -> float:
        """Return the corpus BLEU of outputs, one reference each."""
        texts = [self._tokenizer.decode(output.token_ids) for output in outputs]
        return float(BLEU().corpus_score(texts, [list(references)]).score)
