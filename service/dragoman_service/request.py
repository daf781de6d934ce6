"""Immutable values of a request: texts, options and context."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dragoman_service.datatypes import Priority, Span

MAX_PATTERN_STARS = 8  # in all patterns of a request


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
    CODE = "code"  # in backticks, within a line; `--verbose`; `auth.login()`
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
    unchanged_texts: frozenset[int] = frozenset()  # indices of texts that are returned as they are
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Caller, deadline and priority of a request; the default values are those of the server's own requests."""

    caller: str = ""  # for fairness and quotas
    deadline_s: float = math.inf  # on the service's clock
    priority: Priority = Priority.INTERACTIVE
    exemplar: dict[str, str] | None = None  # labels that link observations of metrics to the trace of the request
