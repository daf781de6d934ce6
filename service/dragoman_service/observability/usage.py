"""Records of a call: its trace, and its usage for access log, trace and response headers.

Without a configured collector, `Tracing.begin` only reads the trace id of the caller for the log. Spans contain counts,
names and times, never texts, tokens or keys.
"""

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dragoman_service.datatypes import (
    Segment,
    SegmentResult,
    TranslatedSentence,
    TranslationResult,
    TranslationWarning,
    WarningKind,
)

TRACEPARENT_KEY = "traceparent"  # metadata key of the span of the caller (W3C Trace Context)

WARNINGS_KEY = "x-dragoman-warnings"
"""HTTP header and gRPC metadata with the number of warnings of each kind, see `UsageRecord.warning_header`."""

_MAX_KEPT_CHARACTERS = 100_000  # of source texts, and of translations, of a call

Attributes = Mapping[str, str | int | float]

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE_ID = "0" * 32

MAX_TRACED_SEGMENTS = 10
"""Maximum number of segments of a request with spans, three each. It limits a trace to about 32 spans."""


class RequestTrace:
    """Trace of a request. This base class has only the id and records nothing."""

    is_recorded = False  # whether `add` and `end` have an effect

    def __init__(self, trace_id: str = "") -> None:
        self.trace_id = trace_id

    @property
    def exemplar(self) -> dict[str, str] | None:
        """Exemplar labels that link a histogram observation to this trace; None if the trace is not recorded."""
        return None

    def reserve(self, num_segments: int) -> int:  # noqa: ARG002 - see the subclass
        """Return the number of these segments to record spans for."""
        return 0

    def add(self, name: str, *, began_s: float, ended_s: float, attributes: Attributes | None = None) -> None:
        """Add a finished child span; times are of the clock of the service."""

    def end(self, *, status: str, code: int, http_status: int | None, attributes: Attributes) -> None:
        """End the span of the request with its gRPC status, and with its HTTP status if it has one."""


class Tracing:
    """Factory of traces. This base class only reads trace ids of callers and records nothing. Thread-safe."""

    def begin(self, method: str, metadata: Mapping[str, str], http: Mapping[str, str] | None = None) -> RequestTrace:  # noqa: ARG002 - see the subclass
        """Begin the trace of a call, or continue that of its caller; `http` has the attributes of an HTTP request."""
        match = _TRACEPARENT.match(metadata.get(TRACEPARENT_KEY, ""))
        return RequestTrace(match[1] if match and match[1] != _NO_TRACE_ID else "")

    def stop(self, timeout_s: float) -> None:
        """Send the remaining spans; drop them at the timeout."""


def trace_segments(
    trace: RequestTrace, *, submitted_s: float, segments: Sequence[Segment], results: Sequence[SegmentResult]
) -> None:
    """Add queue, encode and decode spans of the slowest segments of a request, all queued at `submitted_s`."""
    num_traced = trace.reserve(len(results))
    if not num_traced:
        return
    totals_s = [result.timings.queue_s + result.timings.encode_s + result.timings.decode_s for result in results]
    for index in sorted(heapq.nlargest(num_traced, range(len(results)), key=totals_s.__getitem__)):
        segment, result = segments[index], results[index]
        decode_attributes: Attributes = {
            "mt.steps": result.num_steps,
            "mt.beam_size": segment.search.beam_size,
            "mt.target_tokens": len(result.hypotheses[0].token_ids),
        }
        stages: tuple[tuple[str, float, Attributes], ...] = (
            ("queue", result.timings.queue_s, {}),
            ("encode", result.timings.encode_s, {"mt.source_tokens": len(segment.source_ids)}),
            ("decode", result.timings.decode_s, decode_attributes),
        )
        ended_s = submitted_s
        for name, duration_s, attributes in stages:
            began_s, ended_s = ended_s, ended_s + duration_s
            trace.add(name, began_s=began_s, ended_s=ended_s, attributes={"mt.segment.index": index, **attributes})


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
