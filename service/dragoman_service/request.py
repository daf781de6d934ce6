"""A request: what a caller asks for (frozen values), what goes with it to the decoding, and what is logged of it."""

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dragoman_service.datatypes import Priority, TranslatedSentence, TranslationResult
from dragoman_service.errors import InvalidFieldError
from dragoman_service.observability.tracing import RequestTrace

MAX_NAME_CHARACTERS = 128
"""Longest model name, glossary name and request id, in characters."""

MAX_BEAM_SIZE = 16
"""Of a request; the interface promises this cap, as well as those that follow."""

MAX_TEXTS = 128

MAX_TARGET_TOKENS = 512  # whatever the model takes
MAX_PREFIX_CHARACTERS = 1000
MAX_SUPPRESSED_TOKENS = 64
MAX_LENGTH_PENALTY = 5.0
MAX_NGRAM_SIZE = 16
MAX_REPETITION_PENALTY = 10.0
MAX_COVERAGE_PENALTY = 5.0
MIN_TEMPERATURE = 0.01
MAX_TEMPERATURE = 10.0
MAX_TOP_K = 1000
MAX_SEED = 2**63 - 1
MAX_KINDS = 16
MAX_PATTERNS = 16
MAX_PATTERN_CHARACTERS = 64
MAX_PATTERN_STARS = 8  # in all patterns of a request
MAX_TERMS = 128
MAX_TERM_CHARACTERS = 200

_MAX_KEPT_CHARACTERS = 100_000  # of source texts, and of translations, in the record of a request or stream


class AttentionDetail(enum.Enum):
    """How much of the cross-attention a caller gets."""

    NONE = "none"
    AVERAGED = "averaged"
    """The mean over the heads of one layer."""

    ALL_HEADS = "all_heads"
    """Each head of one layer."""


class LongSentencePolicy(enum.Enum):
    """What is done with a sentence that is longer than the model takes."""

    SPLIT = "split"
    """It is decoded in parts."""

    REFUSE = "refuse"
    """The request is refused."""


class TextFormat(enum.Enum):
    """What texts are written in."""

    PLAIN = "plain"
    """Every character is text, but for protected spans."""

    HTML = "html"
    XML = "xml"


class ProtectedKind(enum.Enum):
    """What is recognised as something that must come back unchanged; the grammar is in `text.placeholders.patterns`."""

    BRACES = "braces"
    """`{name}`, `{{x}}`, `{0,number}`, `{% tag %}`."""

    PRINTF = "printf"
    """`%s`, `%1$d`, `%(n)d`."""

    TEMPLATE = "template"
    """`${v}`, `%{v}`, `#{v}`, `$(v)`, `$t(key)`."""

    URL = "url"
    EMAIL = "email"
    PATH = "path"
    """Of files: `/usr/bin/env`, `~/notes`, `src/main.py`, `C:\\Windows`."""

    CODE = "code"
    """In backticks, within a line."""

    TAG = "tag"
    """`<ph id="1"/>`, `<b>`, `</b>`, in plain texts; those that mark text follow it."""

    COLON = "colon"
    """`:name`; only if asked for."""

    ICU = "icu"
    """`{n, plural, one {# file} other {# files}}` and `select`: the texts inside are translated."""

    NUMBER = "number"
    """Numbers, with the unit or currency beside them: `1,000.5`, `25 °C`, `€ 9.99`; only if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionOptions:
    """What a caller wants protected."""

    is_enabled: bool = True
    """False: no kind; patterns and terms hold all the same."""

    enabled_kinds: frozenset[ProtectedKind] = frozenset()
    """Besides those that are protected by default."""

    disabled_kinds: frozenset[ProtectedKind] = frozenset()
    patterns: tuple[str, ...] = ()
    """Literal but for `*`, 1 to 100 characters up to the next of the pattern, without white space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word or phrase with a fixed translation."""

    source: str
    target: str = ""
    """Empty: the same as in the text."""

    is_case_sensitive: bool = False
    is_part_of_word: bool = False
    """Whether it may be a part of a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How a caller wants tokens drawn at random; None means the default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """Of the whole request; None: a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationOptions:
    """What a caller may choose; None means the server's default."""

    beam_size: int | None = None
    num_hypotheses: int | None = None
    length_penalty: float | None = None
    min_target_tokens: int | None = None
    max_target_tokens: int | None = None
    """Cap on target tokens of each sentence, EOS counted; None: tokens of source or prefix + 50, within the model's
    limit."""

    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    coverage_penalty: float | None = None
    early_stopping: bool | None = None
    repetition_guard: bool | None = None
    sampling: SamplingOptions | None = None
    """None: beam search."""

    target_prefix: str = ""
    """What the translation of each text begins with."""

    suppressed_tokens: tuple[str, ...] = ()
    """Pieces of the vocabulary that no translation may hold."""

    split_sentences: bool = True
    """Split each text into sentences that are decoded separately."""

    long_sentences: LongSentencePolicy = LongSentencePolicy.SPLIT
    format: TextFormat = TextFormat.PLAIN
    protection: ProtectionOptions = field(default_factory=ProtectionOptions)
    terms: tuple[Term, ...] = ()
    """Their translations are fixed."""

    glossary: str = ""
    """Name of a glossary, whose terms hold where none of `terms` is; empty: none."""

    return_scores: bool = False
    """Report the log-probability of each token."""

    return_tokens: bool = False
    """Report the subword pieces of each hypothesis."""

    return_alignment: bool = False
    """Report which piece of a hypothesis comes from which piece of the text."""

    return_attention: AttentionDetail = AttentionDetail.NONE
    """Report the cross-attention of each hypothesis."""

    @property
    def wants_attention(self) -> bool:
        """Whether the cross-attention must be computed."""
        return self.return_alignment or self.return_attention is not AttentionDetail.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRequest:
    """One call: texts of one language pair under one set of options."""

    texts: tuple[str, ...]
    source_language: str
    """BCP-47 tag, such as `en`."""

    target_language: str
    model: str = ""
    """`name` or `name/version`; empty: the default of the language pair."""

    options: TranslationOptions = field(default_factory=TranslationOptions)
    target_prefixes: tuple[str, ...] = ()
    """One for each text, in place of `options.target_prefix`; or none."""

    pivot_languages: tuple[str, ...] = ()
    """Languages that may be translated through, in this order, if no model translates directly."""

    unchanged_texts: frozenset[int] = frozenset()
    """Indices of texts without letters, which are returned as they are if the source language is detected."""


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One call, or one request of a stream: who asks, until when, and what is logged about it.

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
    keeps_texts: bool = False  # whether the operator wants texts in the log
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
        if self.keeps_texts:
            _keep(self.translations, (translation.hypotheses[0].text for translation in result.translations))

    def add_sentence(self, sentence: TranslatedSentence) -> None:
        """Record a sentence of a document."""
        located = sentence.sentence
        num_tokens = (located.num_source_tokens, located.num_target_tokens) if located else (0, 0)
        self._add(sentence, *num_tokens)
        if self.keeps_texts:
            _keep(self.translations, (sentence.text,))

    def log_fields(self) -> dict[str, object]:
        """Return the fields that only a translation has in the access log."""
        if not self.num_texts:
            return {}
        seconds = {"queue_s": self.queue_s, "encode_s": self.encode_s, "decode_s": self.decode_s}
        kept = {"request_texts": self.texts, "translations": self.translations} if self.keeps_texts else {}
        return {**self._counts(), **{name: round(value, 6) for name, value in seconds.items()}, **kept}

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

    def _add(
        self, result: TranslationResult | TranslatedSentence, num_source_tokens: int, num_target_tokens: int
    ) -> None:
        self.model = f"{result.model_name}/{result.model_version}"
        self.num_source_tokens += num_source_tokens
        self.num_target_tokens += num_target_tokens
        self.queue_s = max(self.queue_s, result.timings.queue_s)
        self.encode_s = max(self.encode_s, result.timings.encode_s)
        self.decode_s = max(self.decode_s, result.timings.decode_s)


RequestContext = RequestRecord  # until scheduling and translation use the new name


def check_request_id(request_id: str) -> None:
    """Raise InvalidFieldError if an id cannot be returned in metadata."""
    if len(request_id) > MAX_NAME_CHARACTERS or not (request_id.isascii() and request_id.isprintable()):
        limit = f"at most {MAX_NAME_CHARACTERS} printable ASCII characters"
        raise InvalidFieldError("request_id", repr(request_id[:MAX_NAME_CHARACTERS]), limit)


def _keep(kept: list[str], texts: Iterable[str]) -> None:
    remaining = _MAX_KEPT_CHARACTERS - sum(map(len, kept))
    for text in texts:
        if remaining <= 0:
            return
        kept.append(text[:remaining])
        remaining -= len(text)
