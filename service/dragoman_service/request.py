"""Values of a request: texts and options (immutable), and the record that accompanies the request."""

import enum
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dragoman_service.datatypes import (
    Priority,
    Span,
    TranslatedSentence,
    TranslationResult,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.observability.tracing import RequestTrace

MAX_PATTERN_STARS = 8  # in all patterns of a request

WARNINGS_KEY = "x-dragoman-warnings"
"""HTTP header and gRPC metadata with the number of warnings of each kind, see `RequestRecord.warning_header`."""

_MAX_KEPT_CHARACTERS = 100_000  # of source texts, and of translations, in the record of a request or stream


class AttentionDetail(enum.Enum):
    """Part of the cross-attention in a result."""

    NONE = "none"
    AVERAGED = "averaged"  # mean over the heads of one layer
    ALL_HEADS = "all_heads"  # each head of one layer


class LongSentencePolicy(enum.Enum):
    """Handling of sentences that exceed the limit of the model."""

    SPLIT = "split"  # decode in parts
    REFUSE = "refuse"  # reject the request


class TextFormat(enum.Enum):
    """Format of texts. In plain text, only protected spans are not translated."""

    PLAIN = "plain"
    HTML = "html"
    XML = "xml"
    MARKDOWN = "markdown"


class NumberFormat(enum.Enum):
    """Format of the protected numbers of a translation."""

    LOCALIZED = "localized"  # decimal and grouping separators of the target language, where they are unmistakable
    AS_WRITTEN = "as_written"


class ProtectedKind(enum.Enum):
    """Kinds of spans that are preserved; `text.placeholders.patterns` has the grammar."""

    BRACES = "braces"  # `{name}`, `{{x}}`, `{0,number}`, `{% tag %}`
    PRINTF = "printf"  # `%s`, `%1$d`, `%(n)d`
    TEMPLATE = "template"  # `${v}`, `%{v}`, `#{v}`, `$(v)`, `$t(key)`
    URL = "url"
    EMAIL = "email"
    PATH = "path"  # `/usr/bin/env`, `~/notes`, `src/main.py`, `C:\\Windows`
    CODE = "code"  # in backticks, within a line
    TAG = "tag"  # `<ph id="1"/>`, `<b>`, `</b>` in plain text; tags around text follow the text
    COLON = "colon"  # `:name`; only if enabled
    ICU = "icu"  # `{n, plural, one {# file} other {# files}}` and `select`; the texts inside are translated
    NUMBER = "number"  # amounts, decimals, numbers with units, dates, times: `1,000.5`, `25 °C`, `€ 9.99`, `12:30`
    IDENTIFIER = "identifier"  # with digits: phone numbers, IBAN, versions, UUID, hexadecimal numbers, file names
    BRACKETS = "brackets"  # `[b]`, `[gallery ids=1]`, `[[User:$1]]`, `[% x %]`
    VARIABLE = "variable"  # `$HOME`, `$COUNT$`, `\(user.name)`, `!link`, `\textbf{`
    PLURAL = "plural"  # `|` and `||||` between plural forms
    ESCAPE = "escape"  # `\n`, `\'` and `\"` of Android, Java, JSON and C
    ACCELERATOR = "accelerator"  # `&File`, `_Open`; the mark moves to a letter of the translation


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionOptions:
    """Spans to preserve."""

    is_enabled: bool = True  # False: no kinds; patterns and terms still apply
    enabled_kinds: frozenset[ProtectedKind] = frozenset()  # in addition to the default kinds
    disabled_kinds: frozenset[ProtectedKind] = frozenset()
    patterns: tuple[str, ...] = ()  # literal text in which `*` stands for 1 to 100 characters without white space


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word or phrase with a fixed translation."""

    source: str
    target: str = ""  # empty: the source text
    is_case_sensitive: bool = False
    is_part_of_word: bool = False  # whether the term can be a part of a word


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSpan:
    """A range of one text with a fixed translation, unlike a term at this position only."""

    span: Span  # position in the text, including markup; not empty
    target: str  # plain text, also if the text is markup; empty: the text of the span


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Random sampling of tokens; None means the default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None  # of the whole request; None: a new seed


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationOptions:
    """Options of a request, with the names of the proto file, which declares ranges and defaults; None: the default."""

    beam_size: int | None = None
    num_hypotheses: int | None = None
    length_penalty: float | None = None
    min_target_tokens: int | None = None
    max_target_tokens: int | None = None
    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    coverage_penalty: float | None = None
    early_stopping: bool | None = None
    repetition_guard: bool | None = None
    sampling: SamplingOptions | None = None  # None: beam search
    target_prefix: str = ""  # start of the translation of each text
    suppressed_tokens: tuple[str, ...] = ()  # vocabulary pieces that no translation contains
    split_sentences: bool = True  # decode each sentence of a text separately
    long_sentences: LongSentencePolicy = LongSentencePolicy.SPLIT
    format: TextFormat = TextFormat.PLAIN
    protection: ProtectionOptions = field(default_factory=ProtectionOptions)
    terms: tuple[Term, ...] = ()
    number_format: NumberFormat | None = None
    glossary: str = ""  # name of a glossary, whose terms apply after `terms`; empty: none
    return_scores: bool = False
    return_tokens: bool = False
    return_alignment: bool = False
    return_attention: AttentionDetail = AttentionDetail.NONE

    @property
    def wants_attention(self) -> bool:
        """True if the cross-attention must be computed."""
        return self.return_alignment or self.return_attention is not AttentionDetail.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRequest:
    """Texts of one language pair with one set of options."""

    texts: tuple[str, ...]
    source_language: str  # BCP-47 tag, such as `en`; empty: detected
    target_language: str
    model: str = ""  # `name`, `name/version` or `name@label`; empty: the default of the language pair
    options: TranslationOptions = field(default_factory=TranslationOptions)
    target_prefixes: tuple[str, ...] = ()  # one for each text, instead of `options.target_prefix`; or none
    pivot_languages: tuple[str, ...] = ()  # tried in this order if no model translates directly
    unchanged_texts: frozenset[int] = frozenset()  # indices of texts without letters, which are returned as they are
    # One list for each text, ordered and without overlaps, or none at all. Each takes precedence over protected spans
    # and terms.
    fixed_spans: tuple[tuple[FixedSpan, ...], ...] = ()

    def part(self, indices: Sequence[int], *, source_language: str) -> "TranslationRequest":
        """Return the request for some of the texts, which are in one language."""
        return replace(
            self,
            texts=tuple(self.texts[index] for index in indices),
            source_language=source_language,
            target_prefixes=tuple(self.target_prefixes[index] for index in indices) if self.target_prefixes else (),
            fixed_spans=tuple(self.fixed_spans[index] for index in indices) if self.fixed_spans else (),
            unchanged_texts=frozenset(new for new, index in enumerate(indices) if index in self.unchanged_texts),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One call, or one request of a stream: its caller, its deadline and its log fields.

    The middleware creates it, every stage of the request passes it on and adds to it.
    """

    path: str = ""  # `/package.Service/Method`
    request_id: str = ""
    peer: str = ""  # address of the client, as gRPC writes it: `ipv4:10.0.0.7:54321`
    caller: str = ""  # for fairness and limits; the host until the caller is authenticated, empty for the server itself
    deadline_s: float = math.inf  # on the service's clock
    priority: Priority = Priority.INTERACTIVE
    trace: RequestTrace = field(default_factory=RequestTrace)

    started_s: float = 0.0
    is_limited: bool = False  # counts against the limit of concurrent requests
    is_stream: bool = False  # carries requests that are answered and counted one by one
    is_admitted: bool = False  # authenticated and within the limit of concurrent requests
    status: str = "UNKNOWN"  # name of the gRPC status
    failure: dict[str, str] = field(default_factory=dict)  # `reason`, and the `field` that the caller must change
    request_bytes: int = 0
    response_bytes: int = 0

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

    @property
    def method(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    def add_texts(self, texts: Sequence[str]) -> None:
        """Record the texts to translate."""
        self.num_texts += len(texts)
        if self.keeps_texts:
            _keep(self.texts, texts)

    def add_result(self, result: TranslationResult) -> None:
        """Record the result of a request."""
        self._add(result, result.num_source_tokens, result.num_target_tokens)
        for translation in result.translations:
            self._count_warnings(translation.warnings)
        if self.keeps_texts:
            _keep(self.translations, (translation.hypotheses[0].text for translation in result.translations))

    def add_sentence(self, sentence: TranslatedSentence) -> None:
        """Record a sentence of a document."""
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
