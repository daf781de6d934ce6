"""What the access log says about a request, collected while it is answered."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from service.datatypes import TranslatedSentence, TranslationResult

_MAX_KEPT_CHARACTERS = 100_000
"""Of the texts of one request, and of its translations: limits the record of a long stream."""


@dataclass(slots=True, kw_only=True)
class AccessRecord:
    """What is known of one RPC, empty at first; a stream adds to it with each request."""

    keeps_texts: bool = False
    """Whether the operator wants texts in the log."""

    model: str = ""
    """`name/version` that answered."""

    num_texts: int = 0
    num_source_tokens: int = 0
    num_target_tokens: int = 0
    queue_s: float = 0.0
    """The longest wait of a segment; so are the next two."""

    encode_s: float = 0.0
    decode_s: float = 0.0
    texts: list[str] = field(default_factory=list)
    """Empty unless `keeps_texts`; so is the next."""

    translations: list[str] = field(default_factory=list)

    def add_texts(self, texts: Sequence[str]) -> None:
        """Note what is to be translated."""
        self.num_texts += len(texts)
        if self.keeps_texts:
            _keep(self.texts, texts)

    def add_result(self, result: TranslationResult) -> None:
        """Note an answer."""
        self._add_answer(result, result.num_source_tokens, result.num_target_tokens)
        if self.keeps_texts:
            _keep(self.translations, (translation.hypotheses[0].text for translation in result.translations))

    def add_sentence(self, sentence: TranslatedSentence) -> None:
        """Note a sentence of a document."""
        located = sentence.sentence
        num_tokens = (located.num_source_tokens, located.num_target_tokens) if located else (0, 0)
        self._add_answer(sentence, *num_tokens)
        if self.keeps_texts:
            _keep(self.translations, (sentence.text,))

    def log_fields(self) -> dict[str, object]:
        """Return the fields of the access log; those of translations only if there was anything to translate."""
        if not self.num_texts:
            return {}
        kept = {"request_texts": self.texts, "translations": self.translations} if self.keeps_texts else {}
        return {
            "model": self.model,
            "texts": self.num_texts,
            "source_tokens": self.num_source_tokens,
            "target_tokens": self.num_target_tokens,
            "queue_s": round(self.queue_s, 6),
            "encode_s": round(self.encode_s, 6),
            "decode_s": round(self.decode_s, 6),
            **kept,
        }

    def span_attributes(self) -> dict[str, str | int]:
        """Return the attributes of the request's span."""
        if not self.num_texts:
            return {}
        return {
            "mt.model": self.model,
            "mt.texts": self.num_texts,
            "mt.source_tokens": self.num_source_tokens,
            "mt.target_tokens": self.num_target_tokens,
        }

    def _add_answer(
        self, answer: TranslationResult | TranslatedSentence, num_source_tokens: int, num_target_tokens: int
    ) -> None:
        self.model = f"{answer.model_name}/{answer.model_version}"
        self.num_source_tokens += num_source_tokens
        self.num_target_tokens += num_target_tokens
        self.queue_s = max(self.queue_s, answer.timings.queue_s)
        self.encode_s = max(self.encode_s, answer.timings.encode_s)
        self.decode_s = max(self.decode_s, answer.timings.decode_s)


def _keep(kept: list[str], more: Iterable[str]) -> None:
    """Add texts as long as there is room, the last one cut."""
    room = _MAX_KEPT_CHARACTERS - sum(map(len, kept))
    for text in more:
        if room <= 0:
            return
        kept.append(text[:room])
        room -= len(text)
