"""Callers who have nothing to do with a fault: they translate and ask for health all along, and note every answer."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from loadtests.chaos.calls import Client, Reply
from loadtests.target import ServerError

NUM_CALLERS: Final = 3
_PAUSE_S: Final = 0.02
"""Between two calls of a caller, so that the machine is busy and not full."""

_PROGRESS_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request whose right answer is known."""

    request: bytes
    answer: tuple[tuple[str, float], ...]
    """Text and score, as they were before anything went wrong; bit for bit."""


class Bystanders:
    """Threads that call, one after the other and each on a connection of its own, from `with` to its end."""

    def __init__(self, target: str, questions: Sequence[Question]) -> None:
        self._target = target
        self._questions = questions
        self._is_over = threading.Event()
        self._progress = threading.Condition()
        self._translations: list[list[Reply]] = [[] for _ in range(NUM_CALLERS)]
        self._checks: list[Reply] = []
        self._threads = [
            threading.Thread(target=self._translate, args=(number,), name=f"bystander-{number}", daemon=True)
            for number in range(NUM_CALLERS)
        ]
        self._threads.append(threading.Thread(target=self._check, name="bystander-health", daemon=True))

    @property
    def translations(self) -> list[Reply]:
        """What came of every translation so far."""
        with self._progress:
            return [reply for replies in self._translations for reply in replies]

    @property
    def checks(self) -> list[Reply]:
        """What came of every question for health so far."""
        with self._progress:
            return list(self._checks)

    def wait_for_answers(self) -> None:
        """Return once each of them has ended a call that began after this.

        Raises:
            ServerError: if one of them waits for very long.
        """
        began_s = time.monotonic()
        with self._progress:
            if not self._progress.wait_for(lambda: all(self._began(began_s)), _PROGRESS_TIMEOUT_S):
                raise ServerError(f"a bystander has waited for more than {_PROGRESS_TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _began(self, after_s: float) -> Iterator[bool]:
        for replies in (*self._translations, self._checks):
            yield bool(replies) and replies[-1].began_s >= after_s

    def _translate(self, number: int) -> None:
        with Client(self._target) as client:
            for question in itertools.cycle([*self._questions[number:], *self._questions[:number]]):
                self._note(self._translations[number], judged(client.translate(question.request), question))
                if self._is_over.wait(_PAUSE_S):
                    return

    def _check(self) -> None:
        with Client(self._target) as client:
            while True:
                self._note(self._checks, client.check())
                if self._is_over.wait(_PAUSE_S):
                    return

    def _note(self, replies: list[Reply], reply: Reply) -> None:
        with self._progress:
            replies.append(reply)
            self._progress.notify_all()


def judged(reply: Reply, question: Question) -> Reply:
    """Return a reply with another status if it is an answer, but not the right one."""
    if reply.status != "OK" or reply.answer == question.answer:
        return reply
    return Reply(
        status="WRONG_ANSWER",
        message=f"{reply.answer!r} instead of {question.answer!r}",
        answer=reply.answer,
        began_s=reply.began_s,
        ended_s=reply.ended_s,
    )
