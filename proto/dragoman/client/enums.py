"""The enums of the wire, with the numbers of the proto file."""

import enum
from typing import Self


class WireEnum(enum.IntEnum):
    """A number on the wire, a name in print."""

    __str__ = enum.Enum.__str__

    @classmethod
    def _missing_(cls, value: object) -> Self | None:  # noqa: ARG003 - any number that is newer than this client
        return cls.__members__.get("UNSPECIFIED")


class Priority(WireEnum):
    """How urgent a request is."""

    INTERACTIVE = 1
    """A person waits for the answer."""

    BULK = 2
    """No one waits; starts when interactive requests leave room."""


class ProtectedKind(WireEnum):
    """What is recognised as something that must come back unchanged."""

    UNSPECIFIED = 0
    """Never valid in a request."""

    BRACES = 1
    """`{name}`, `{0,number}`, `{{x}}`, `{% tag %}`."""

    PRINTF = 2
    """`%s`, `%1$d`, `%(n)d`."""

    TEMPLATE = 3
    """`${v}`, `%{v}`, `#{v}`, `$(v)`, `$t(key)`."""

    URL = 4
    EMAIL = 5
    PATH = 6
    """Of files: `/usr/bin/env`, `~/notes`, `src/main.py`."""

    CODE = 7
    """In backticks, within a line."""

    TAG = 8
    """In plain texts: `<ph id="1"/>`, `<b>`, `</b>`."""

    COLON = 9
    """`:name`; only if asked for."""

    ICU = 10
    """`{n, plural, one {# file} other {# files}}` and `select`: the texts inside are translated."""

    NUMBER = 11
    """Numbers, with the unit or currency beside them: `1,000.5`, `25 °C`; only if asked for."""


class TextFormat(WireEnum):
    """What texts are written in."""

    PLAIN = 1
    HTML = 2
    """A fragment or a page, with the mistakes that browsers forgive."""

    XML = 3
    """A document or the content of an element, well-formed."""


class LongSentencePolicy(WireEnum):
    """What to do with a sentence that is longer than the model takes."""

    SPLIT = 1
    """Translate it in several parts, with `WarningKind.SOURCE_SPLIT`."""

    REFUSE = 2
    """Fail the request."""


class AttentionDetail(WireEnum):
    """How much of the cross-attention to return."""

    NONE = 1
    AVERAGED = 2
    """The mean over the heads of one decoder layer."""

    ALL_HEADS = 3
    """Each head of one decoder layer."""


class WarningKind(WireEnum):
    """Why a translation deserves a second look."""

    UNSPECIFIED = 0
    """A kind this client does not know yet."""

    TRUNCATED = 1
    """The target limit was reached before the model ended the sentence: its end is missing."""

    SOURCE_SPLIT = 2
    """A sentence longer than the model takes was translated in several parts."""

    REPETITION = 3
    """The translation ran in a loop; the message says whether decoding again helped, here and in the next two."""

    COPIED_SOURCE = 4
    """The translation was the source, or a long piece of it, unchanged."""

    LENGTH_RATIO = 5
    """The translation was absurdly short or long for its source."""

    PLACEHOLDER_LOST = 6
    """A protected span or term did not come back by itself exactly once; the message says what was done."""


class ModelState(WireEnum):
    """Whether a model version can answer."""

    UNSPECIFIED = 0
    """A state this client does not know yet."""

    LOADING = 1
    READY = 2
    DRAINING = 3
    FAILED = 4


class Precision(WireEnum):
    """Number format of weights."""

    UNSPECIFIED = 0
    """Not known, to the server or to this client."""

    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3
