"""Control traffic: well-behaved callers whose calls must succeed while a scenario disturbs the server."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, Reply
from loadtests.generator.client import TIMEOUT_S, Client
from loadtests.generator.server import ServerError, Target
from loadtests.scenarios.contract import normalized_response

_PROGRESS_TIMEOUT_S: Final = 90.0


def connect(address: str) -> Client:
    """Return a client with a connection of its own."""
    return Client(Target(address=address))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A Translate request with a known response."""

    request: bytes
    answer: bytes  # `normalized_response` before the disturbance

    def ask(self, client: Client, *, timeout_s: float = TIMEOUT_S, **options: Any) -> Reply:
        """Send the request; the status is WRONG_ANSWER if the response differs."""
        reply = client.call(Method.TRANSLATE, self.request, timeout_s=timeout_s, **options)
        answer = normalized_response(reply.messages[0]) if reply.messages else b""
        return reply.unless(answer == self.answer, f"{_shown(answer)} instead of {_shown(self.answer)}")


def learn_answers(address: str, requests: Sequence[bytes]) -> list[Question]:
    """Record the responses of an undisturbed server; raises ServerError if it does not answer."""
    questions = []
    with connect(address) as client:
        for request in requests:
            reply = client.call(Method.TRANSLATE, request)
            if reply.status != "OK":
                raise ServerError(f"undisturbed server answered {reply.status}: {reply.message}")
            questions.append(Question(request=request, answer=normalized_response(reply.messages[0])))
    return questions


class ControlTraffic:
    """Threads that call one after the other, each on its own connection, while the context is open.

    Args:
        address: of the server.
        questions: what the translating threads ask.
        num_translating: threads that translate; one more thread probes.
        each_s: pause of a translating thread.
        probe: call that needs neither queue nor model.
        probe_each_s: pause of the probing thread.
    """

    def __init__(
        self,
        address: str,
        questions: Sequence[Question],
        *,
        num_translating: int = 3,
        each_s: float = 0.02,
        probe: Callable[[Client], Reply] = Client.check,
        probe_each_s: float = 0.02,
    ) -> None:
        self.translations: list[Reply] = []
        self.probes: list[Reply] = []
        self._address = address
        self._is_over, self._progress = threading.Event(), threading.Condition()
        asks: list[Callable[[Client], Reply]] = [question.ask for question in questions]
        turns = [(self.translations, [*asks[first:], *asks[:first]], each_s) for first in range(num_translating)]
        turns.append((self.probes, [probe], probe_each_s))
        self._threads = [threading.Thread(target=self._call, args=turn, name="control", daemon=True) for turn in turns]
        self._latest_s = dict.fromkeys(self._threads, 0.0)  # when its last finished call began

    def wait_for_answers(self) -> None:
        """Wait until each thread has finished a call that began after this one; raises ServerError after a timeout."""
        now_s = time.monotonic()
        with self._progress:
            if not self._progress.wait_for(lambda: min(self._latest_s.values()) >= now_s, _PROGRESS_TIMEOUT_S):
                raise ServerError(f"a control call has not ended within {_PROGRESS_TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, replies: list[Reply], calls: Sequence[Callable[[Client], Reply]], each_s: float) -> None:
        with connect(self._address) as client:
            for call in itertools.cycle(calls):
                reply = call(client)
                replies.append(reply)
                with self._progress:
                    self._latest_s[threading.current_thread()] = reply.began_s
                    self._progress.notify_all()
                if self._is_over.wait(each_s):
                    return


def _shown(answer: bytes) -> list[tuple[str, float]]:
    translations = pb.TranslateResponse.FromString(answer).translations
    return [(one.text, one.score) for translation in translations for one in translation.hypotheses]
