"""Enums of the contract, with the numbers of the proto file."""

import enum
from typing import Self


class WireEnum(enum.IntEnum):
    """A number on the wire that is printed as its name."""

    __str__ = enum.Enum.__str__

    @classmethod
    def _missing_(cls, value: object) -> Self | None:  # noqa: ARG003 - any number that is newer than this client
        return cls.__members__.get("UNSPECIFIED")


class Priority(WireEnum):
    """Urgency of a request."""

    INTERACTIVE = 1  # a user waits for the response
    BULK = 2  # background work, started when interactive requests leave capacity


class ProtectedKind(WireEnum):
    """Kinds of spans that are preserved unchanged."""

    UNSPECIFIED = 0  # never valid in a request
    BRACES = 1  # `{name}`, `{0,number}`, `{{x}}`, `{% tag %}`
    PRINTF = 2  # `%s`, `%1$d`, `%(n)d`
    TEMPLATE = 3  # `${v}`, `%{v}`, `#{v}`, `$(v)`, `$t(key)`
    URL = 4
    EMAIL = 5
    PATH = 6  # file paths: `/usr/bin/env`, `~/notes`, `src/main.py`
    CODE = 7  # in backticks, within a line
    TAG = 8  # in plain texts: `<ph id="1"/>`, `<b>`, `</b>`
    COLON = 9  # `:name`; off by default
    ICU = 10  # `{n, plural, one {# file} other {# files}}` and `select`; the texts inside are translated
    NUMBER = (
        11  # amounts, decimals, numbers with a unit, dates, times: `1,000.5`, `25 °C`; named explicitly: all numbers
    )
    IDENTIFIER = 12  # with digits: phone numbers, IBAN, versions, UUID, file names
    BRACKETS = 13  # `[b]`, `[gallery ids=1]`, `[[User:$1]]`, `[% x %]`
    VARIABLE = 14  # `$HOME`, `$COUNT$`, `\(user.name)`, `!link`
    PLURAL = 15  # `|` and `||||` between plural forms
    ESCAPE = 16  # escapes of Android, Java, JSON and C, such as a backslash before a quote
    ACCELERATOR = 17  # `&File`, `_Open`; the mark moves to a letter of the translation


class NumberFormat(WireEnum):
    """Format of the protected numbers of a translation."""

    LOCALIZED = 1  # separators of the target language, where they are unambiguous
    AS_WRITTEN = 2


class TextFormat(WireEnum):
    """Format of texts."""

    PLAIN = 1
    HTML = 2  # a fragment or a page; errors are tolerated as in browsers
    XML = 3  # a well-formed document or the content of an element
    MARKDOWN = 4  # CommonMark with tables, task lists and strikethrough of GitHub


class LongSentencePolicy(WireEnum):
    """Handling of sentences that are longer than the model accepts."""

    SPLIT = 1  # translate in several parts, with `WarningKind.SOURCE_SPLIT`
    REFUSE = 2  # fail the request


class AttentionDetail(WireEnum):
    """Amount of cross-attention to return."""

    NONE = 1
    AVERAGED = 2  # mean over the heads of one decoder layer
    ALL_HEADS = 3  # each head of one decoder layer


class WarningKind(WireEnum):
    """Kinds of problems with a translation; see `is_hard`."""

    UNSPECIFIED = 0  # a kind that is newer than this client
    TRUNCATED = 1  # the target limit was reached before the model ended the sentence; its end is missing
    SOURCE_SPLIT = 2  # a sentence longer than the model accepts was translated in several parts
    REPETITION = 3  # the translation looped; for this and LENGTH_RATIO, the message reports whether redecoding helped
    COPIED_SOURCE = 4  # sent by servers before 0.2 instead of UNTRANSLATED
    LENGTH_RATIO = 5  # the translation was implausibly short or long
    PLACEHOLDER_LOST = 6  # a protected span or term did not occur exactly once; the message reports the repair
    EMPTY_TRANSLATION = 7  # the source has letters or digits, and the translation has neither
    INVALID_OUTPUT = 8  # the replacement character or a reserved piece of the vocabulary
    NUMBER_CHANGED = 9  # a number is missing, added or has another value
    IDENTIFIER_CHANGED = 10  # a version, a phone number or a file name, for example, is missing or differs
    SYMBOL_CHANGED = 11  # a symbol is missing or added
    NAME_CHANGED = 12  # an unambiguous name is missing or differs
    ADDRESS_CHANGED = 13  # a URL, an email address, a path or a mention is missing or differs
    MARKUP_CHANGED = 14  # a tag is missing, added or in the wrong order
    ENDING_CHANGED = 15  # the translation ends with other punctuation
    WHITE_SPACE_CHANGED = 16  # the translation has another number of tabs or line breaks
    CAPITALS_CHANGED = 17  # the source is in capital letters, and the translation is not
    UNTRANSLATED = 18  # the translation, or a part of it, is still in the source language
    REPAIR_SKIPPED = 19  # a sentence with a violation was not decoded again
    LOW_CONFIDENCE = 20  # the translation of a sentence is probably wrong

    @property
    def is_hard(self) -> bool:
        """True if the translation lost or changed a part that must be preserved; otherwise it may be correct."""
        return self in _HARD_KINDS


_HARD_KINDS = frozenset(
    {
        WarningKind.PLACEHOLDER_LOST,
        WarningKind.EMPTY_TRANSLATION,
        WarningKind.INVALID_OUTPUT,
        WarningKind.NUMBER_CHANGED,
        WarningKind.IDENTIFIER_CHANGED,
        WarningKind.SYMBOL_CHANGED,
        WarningKind.MARKUP_CHANGED,
    }
)


class ModelState(WireEnum):
    """State of a model version."""

    UNSPECIFIED = 0  # a state that is newer than this client
    LOADING = 1
    READY = 2
    DRAINING = 3
    FAILED = 4


class Precision(WireEnum):
    """Number format of weights."""

    UNSPECIFIED = 0  # unknown to the server or to this client
    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3
