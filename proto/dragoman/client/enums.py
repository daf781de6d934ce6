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
    NUMBER = 11  # numbers with unit or currency: `1,000.5`, `25 °C`; off by default


class TextFormat(WireEnum):
    """Format of texts."""

    PLAIN = 1
    HTML = 2  # a fragment or a page; errors are tolerated as in browsers
    XML = 3  # a well-formed document or the content of an element


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
    """Kinds of problems with a translation."""

    UNSPECIFIED = 0  # a kind that is newer than this client
    TRUNCATED = 1  # the target limit was reached before the model ended the sentence; its end is missing
    SOURCE_SPLIT = 2  # a sentence longer than the model accepts was translated in several parts
    REPETITION = 3  # the translation looped; for this and the next two, the message reports whether redecoding helped
    COPIED_SOURCE = 4  # the translation was the source, or a long part of it
    LENGTH_RATIO = 5  # the translation was implausibly short or long
    PLACEHOLDER_LOST = 6  # a protected span or term did not occur exactly once; the message reports the repair


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
