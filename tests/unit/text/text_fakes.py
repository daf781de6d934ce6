"""A tokenizer, a queue and a model without a network, for tests of the text side and the translator."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from service.datatypes import Hypothesis, Priority, Segment, SegmentResult, StageTimings

EOS = 2
FIRST_CHARACTER = 4

Answer = tuple[Hypothesis, ...] | Exception | None
"""What a segment is answered with; None: it stays unanswered."""


class CharacterTokenizer:
    """One token for each character; normalises nothing."""

    eos_id = EOS

    def encode(self, text: str) -> list[int]:
        return [ord(char) + FIRST_CHARACTER for char in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token_id - FIRST_CHARACTER) for token_id in token_ids if token_id >= FIRST_CHARACTER)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return ["</s>" if token_id == EOS else self.decode([token_id]) for token_id in token_ids]


TOKENIZER = CharacterTokenizer()


def make_hypothesis(text: str, *, score: float = -1.0, is_finished: bool = True) -> Hypothesis:
    token_ids = (*TOKENIZER.encode(text), *([EOS] if is_finished else []))
    log_prob = score * len(token_ids)
    return Hypothesis(
        token_ids=token_ids,
        token_log_probs=(score,) * len(token_ids),
        log_prob=log_prob,
        score=score,
        is_finished=is_finished,
    )


def make_result(*hypotheses: Hypothesis, timings: StageTimings | None = None) -> SegmentResult:
    return SegmentResult(hypotheses=hypotheses, num_steps=1, timings=timings or StageTimings())


def source_text(segment: Segment) -> str:
    return TOKENIZER.decode(segment.source_ids)


def echo(segment: Segment) -> Answer:
    """Translate a sentence into itself."""
    return (make_hypothesis(source_text(segment)),)


def shout(segment: Segment) -> Answer:
    """Translate a sentence into its capitals, of which there may be more than there were letters."""
    return (make_hypothesis(source_text(segment).upper()),)


@dataclass
class FakeQueue:
    """Answers each segment at once."""

    answer: Callable[[Segment], Answer] = echo
    timings: StageTimings = field(default_factory=StageTimings)
    segments: list[Segment] = field(default_factory=list)
    futures: list["Future[SegmentResult]"] = field(default_factory=list)
    deadline_s: float | None = None
    priority: Priority | None = None

    def submit(
        self, segments: Sequence[Segment], *, deadline_s: float | None, priority: Priority
    ) -> "list[Future[SegmentResult]]":
        self.deadline_s, self.priority = deadline_s, priority
        self.segments += segments
        futures = [self._answered(segment) for segment in segments]
        self.futures += futures
        return futures

    def _answered(self, segment: Segment) -> "Future[SegmentResult]":
        future: Future[SegmentResult] = Future()
        answer = self.answer(segment)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(make_result(*answer, timings=self.timings))
        return future


@dataclass
class FakeModel:
    """A model of one queue; also the source that resolves to it."""

    scheduler: FakeQueue = field(default_factory=FakeQueue)
    name: str = "toy"
    version: str = "1"
    tokenizer: CharacterTokenizer = TOKENIZER
    max_source_tokens: int = 64
    max_target_tokens: int = 200
    resolved: tuple[str, str, str] | None = None

    def resolve(self, model: str, source_language: str, target_language: str) -> "FakeModel":
        self.resolved = (model, source_language, target_language)
        return self
