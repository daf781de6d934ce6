"""What the access log tells of a request: gathered on its way by whoever knows."""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from service.datatypes import TranslatedSentence, TranslationResult

_MAX_KEPT_CHARACTERS = 100_000
"""Of the texts of one request, and of its translations: a record of a long stream must end somewhere."""


@dataclass(slots=True, kw_only=True)
class RequestFacts:
    """Facts of one RPC, empty at first; a stream adds to them as it goes."""

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
        self.model = f"{result.model_name}/{result.model_version}"
        self.num_source_tokens += result.num_source_tokens
        self.num_target_tokens += result.num_target_tokens
        self.queue_s = max(self.queue_s, result.timings.queue_s)
        self.encode_s = max(self.encode_s, result.timings.encode_s)
        self.decode_s = max(self.decode_s, result.timings.decode_s)
        if self.keeps_texts:
            _keep(self.translations, (translation.hypotheses[0].text for translation in result.translations))

    def add_sentence(self, sentence: TranslatedSentence) -> None:
        """Note a sentence of a document."""
        self.model = f"{sentence.model_name}/{sentence.model_version}"
        if sentence.sentence:
            self.num_source_tokens += sentence.sentence.num_source_tokens
            self.num_target_tokens += sentence.sentence.num_target_tokens
        self.queue_s = max(self.queue_s, sentence.timings.queue_s)
        self.encode_s = max(self.encode_s, sentence.timings.encode_s)
        self.decode_s = max(self.decode_s, sentence.timings.decode_s)
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


_current: ContextVar[RequestFacts | None] = ContextVar("request_facts", default=None)


def current_facts() -> RequestFacts:
    """Return the facts of the RPC that the running task answers; outside of one, some that nobody reads."""
    return _current.get() or RequestFacts()


def set_current_facts(facts: RequestFacts) -> None:
    """Note where the facts of an RPC go; a task of its own runs each."""
    _current.set(facts)


def _keep(kept: list[str], more: Iterable[str]) -> None:
    """Add texts as long as there is room, the last one cut."""
    room = _MAX_KEPT_CHARACTERS - sum(map(len, kept))
    for text in more:
        if room <= 0:
            return
        kept.append(text[:room])
        room -= len(text)
