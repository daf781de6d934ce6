"""The usage of a call: what its translations add to the access log, the trace and the response headers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dragoman_service.datatypes import TranslatedSentence, TranslationResult, TranslationWarning, WarningKind
from dragoman_service.observability.tracing import RequestTrace

WARNINGS_KEY = "x-dragoman-warnings"
"""HTTP header and gRPC metadata with the number of warnings of each kind, see `UsageRecord.warning_header`."""

_MAX_KEPT_CHARACTERS = 100_000  # of source texts, and of translations, of a call


@dataclass(slots=True, kw_only=True, eq=False)
class UsageRecord:
    """Texts, tokens, times and warnings of one call. The transport creates it, and the translator adds to it."""

    trace: RequestTrace = field(default_factory=RequestTrace)
    model: str = ""  # `name/version` that answered
    num_texts: int = 0
    num_source_tokens: int = 0
    num_target_tokens: int = 0
    queue_s: float = 0.0  # longest of all segments, as the next two
    encode_s: float = 0.0
    decode_s: float = 0.0
    warnings: Counter[WarningKind] = field(default_factory=Counter)  # number of warnings of each kind
    keeps_texts: bool = False  # whether texts are logged
    texts: list[str] = field(default_factory=list)
    translations: list[str] = field(default_factory=list)

    def add_texts(self, texts: Sequence[str]) -> None:
        """Count the texts to translate."""
        self.num_texts += len(texts)
        if self.keeps_texts:
            _keep(self.texts, texts)

    def add_result(self, result: TranslationResult) -> None:
        """Count the result of a request."""
        self._add(result, result.num_source_tokens, result.num_target_tokens)
        for translation in result.translations:
            self._count_warnings(translation.warnings)
        if self.keeps_texts:
            _keep(self.translations, (translation.hypotheses[0].text for translation in result.translations))

    def add_sentence(self, sentence: TranslatedSentence) -> None:
        """Count a sentence of a document."""
        located = sentence.sentence
        num_tokens = (located.num_source_tokens, located.num_target_tokens) if located else (0, 0)
        self._add(sentence, *num_tokens)
        self._count_warnings(sentence.warnings)
        if self.keeps_texts:
            _keep(self.translations, (sentence.text,))

    def log_fields(self) -> dict[str, object]:
        """Return the fields that only a translation has in the access log; `warnings` only if there are any."""
        if not self.num_texts:
            return {}
        seconds = {"queue_s": self.queue_s, "encode_s": self.encode_s, "decode_s": self.decode_s}
        kept = {"request_texts": self.texts, "translations": self.translations} if self.keeps_texts else {}
        warnings = {"warnings": self.num_warnings()} if self.warnings else {}
        return {**self._counts(), **{name: round(value, 6) for name, value in seconds.items()}, **warnings, **kept}

    def num_warnings(self) -> dict[str, int]:
        """Return the number of warnings of each kind, sorted by kind."""
        return {kind.value: self.warnings[kind] for kind in sorted(self.warnings, key=lambda kind: kind.value)}

    @property
    def warning_header(self) -> str:
        """Number of warnings of each kind, sorted, such as `NUMBER_CHANGED=2, TRUNCATED=1`."""
        return ", ".join(
            f"{kind.name}={self.warnings[kind]}" for kind in sorted(self.warnings, key=lambda kind: kind.name)
        )

    def span_attributes(self) -> dict[str, str | int]:
        """Return the attributes that only a translation has in its span."""
        return {f"mt.{name}": value for name, value in self._counts().items()} if self.num_texts else {}

    def _counts(self) -> dict[str, str | int]:
        return {
            "model": self.model,
            "texts": self.num_texts,
            "source_tokens": self.num_source_tokens,
            "target_tokens": self.num_target_tokens,
        }

    def _count_warnings(self, warnings: Iterable[TranslationWarning]) -> None:
        self.warnings.update(warning.kind for warning in warnings)

    def _add(
        self, result: TranslationResult | TranslatedSentence, num_source_tokens: int, num_target_tokens: int
    ) -> None:
        self.model = f"{result.model_name}/{result.model_version}"
        self.num_source_tokens += num_source_tokens
        self.num_target_tokens += num_target_tokens
        self.queue_s = max(self.queue_s, result.timings.queue_s)
        self.encode_s = max(self.encode_s, result.timings.encode_s)
        self.decode_s = max(self.decode_s, result.timings.decode_s)


def _keep(kept: list[str], texts: Iterable[str]) -> None:
    remaining = _MAX_KEPT_CHARACTERS - sum(map(len, kept))
    for text in texts:
        if remaining <= 0:
            return
        kept.append(text[:remaining])
        remaining -= len(text)
