"""Limits of the segments of a request, counted while its texts are split."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError

from dragoman_service.datatypes import Segment
from dragoman_service.errors import DeadlineExceededError, InvalidFieldError
from dragoman_service.request import AttentionDetail, TranslationOptions
from dragoman_service.scheduling.admission import max_decode_cost
from dragoman_service.translation.options import TranslationLimits

# Source tokens times hypotheses of a request with an alignment: the attention of all layers and heads is in memory
# until the response is sent.
MAX_ALIGNED_TOKENS = 8192

# The same for requests that return the attention, so that a response stays within a few megabytes.
MAX_ATTENTION_TOKENS = {AttentionDetail.AVERAGED: 4096, AttentionDetail.ALL_HEADS: 512}


class RequestBudget:
    """Counts the segments of a request while its texts are split, and raises at the first limit.

    The limits apply to each sentence of a document. Splitting may expand a text: one character can become 18
    characters, each of them a token.
    """

    def __init__(
        self,
        options: TranslationOptions,
        limits: TranslationLimits,
        *,
        is_document: bool = False,
        deadline_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with nothing counted. `deadline_s` is a time of the clock."""
        self._deadline_s = deadline_s
        self._has_deadline = deadline_s < math.inf
        self._clock = clock
        self._options = options
        self._limits = limits
        self._is_document = is_document
        self._is_cancelled = False
        self._num_segments = self._num_tokens = self._work = 0

    def cancel(self) -> None:
        """End the work at the next check, within a few milliseconds. Thread-safe."""
        self._is_cancelled = True

    def check(self) -> None:
        """Raise CancelledError or DeadlineExceededError if the work must end."""
        if self._is_cancelled:
            raise CancelledError
        if self._has_deadline and self._clock() >= self._deadline_s:
            raise DeadlineExceededError("text")

    def check_sentence(self, num_tokens: int) -> None:
        """Raise as `check`, and InvalidFieldError if a sentence has too many source tokens, before it is split."""
        self.check()
        if self._is_document:
            self._num_segments = self._num_tokens = self._work = 0
        self._check("source tokens", self._num_tokens + num_tokens, self._limits.max_request_source_tokens)

    def add(self, segments: Sequence[Segment]) -> None:
        """Count segments; InvalidFieldError if there are too many, or they need too much work or attention."""
        self._num_segments += len(segments)
        self._num_tokens += num_source_tokens(segments)
        self._work += max_decode_cost(segments)
        self._check("sentences", self._num_segments, self._limits.max_request_sentences)
        self._check("source tokens", self._num_tokens, self._limits.max_request_source_tokens)
        self._check("units of decode cost", self._work, self._limits.max_request_decode_cost)
        num_hypotheses = max((segment.search.num_hypotheses for segment in segments), default=1)
        for name, limit in _attention_limits(self._options).items():
            if self._num_tokens * num_hypotheses > limit:
                value = f"{self._num_tokens} or more source tokens times {num_hypotheses} hypotheses"
                raise InvalidFieldError(self._field, value, f"at most {limit} with options.{name}")

    @property
    def _field(self) -> str:
        return "text" if self._is_document else "texts"

    def _check(self, unit: str, value: int, limit: int) -> None:
        if value > limit:
            scope = "a sentence" if self._is_document else "all texts"
            raise InvalidFieldError(self._field, f"{value} or more {unit}", f"at most {limit} over {scope}")


def max_attention_tokens(options: TranslationOptions) -> float:
    """Return the limit of source tokens times hypotheses with attention in memory; infinite without attention."""
    return min(_attention_limits(options).values(), default=math.inf)


def num_source_tokens(segments: Iterable[Segment]) -> int:
    """Return the source tokens of all segments, including EOS."""
    return sum(len(segment.source_ids) for segment in segments)


def segment_cost(segment: Segment) -> int:
    """Return the source tokens of a segment times its hypotheses."""
    return len(segment.source_ids) * segment.search.num_hypotheses


def _attention_limits(options: TranslationOptions) -> dict[str, int]:
    limits = {"return_alignment": MAX_ALIGNED_TOKENS} if options.return_alignment else {}
    if options.return_attention in MAX_ATTENTION_TOKENS:
        name = f"return_attention {options.return_attention.name}"
        limits[name] = MAX_ATTENTION_TOKENS[options.return_attention]
    return limits
