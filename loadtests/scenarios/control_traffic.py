"""Control traffic: well-behaved callers whose calls must succeed while a scenario disturbs the server."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.cli.server_process import ServerProcessError
from loadtests.generator.calls import Method, Reply
from loadtests.generator.client import TIMEOUT_S, Client
from loadtests.generator.server import Target
from loadtests.scenarios.contract import normalized_response

_PROGRESS_TIMEOUT_S: Final = 90.0


def connect(address: str) -> Client:
    """Return a client with a connection of its own."""
    return Client(Target(address=address))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRequest:
    """A Translate request with a known response."""

    request: bytes
    answer: bytes  # `normalized_response` before the disturbance

    def send(self, client: Client, *, timeout_s: float = TIMEOUT_S, **options: Any) -> Reply:
        """Send the request; the status is WRONG_ANSWER if the response differs."""
        reply = client.call(Method.TRANSLATE, self.request, timeout_s=timeout_s, **options)
        answer = normalized_response(reply.messages[0]) if reply.messages else b""
        return reply.unless(answer == self.answer, f"{_shown(answer)} instead of {_shown(self.answer)}")


def record_answers(address: str, requests: Sequence[bytes]) -> list[KnownRequest]:
    """Record the responses of an undisturbed server; raises ServerProcessError if it does not answer."""
    known_requests = []
    with connect(address) as client:
        for request in requests:
            reply = client.call(Method.TRANSLATE, request)
            if reply.status != "OK":
                raise ServerProcessError(f"undisturbed server answered {reply.status}: {reply.message}")
            known_requests.append(KnownRequest(request=request, answer=normalized_response(reply.messages[0])))
    return known_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Makes one call after the other on its own connection."""

    connect: Callable[[], AbstractContextManager[Any]]
    calls: Sequence[Callable[[Any], Reply]]  # repeated in this order
    each_s: float
    is_scheduled: bool = False  # calls are due every `each_s`, from when latency counts; else `each_s` is a pause
    replies: list[Reply] = field(default_factory=list)


class ControlTraffic:
    """Callers, each in a thread, while the context is open."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        self._is_over, self._progress = threading.Event(), threading.Condition()
        self._latest_s = dict.fromkeys(range(len(callers)), 0.0)  # when the last finished call of each began
        self._threads = [
            threading.Thread(target=self._call, args=one, name="control", daemon=True) for one in enumerate(callers)
        ]

    def wait_for_answers(self) -> None:
        """Wait until each thread has finished a call that began after this one; raises ServerProcessError."""
        now_s = time.monotonic()
        with self._progress:
            if not self._progress.wait_for(lambda: min(self._latest_s.values()) >= now_s, _PROGRESS_TIMEOUT_S):
                raise ServerProcessError(f"a control call has not ended within {_PROGRESS_TIMEOUT_S:g} s")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int, caller: Caller) -> None:
        with caller.connect() as client:
            due_s = time.monotonic()
            for call in itertools.cycle(caller.calls):
                reply = call(client)
                if caller.is_scheduled:
                    reply = replace(reply, began_s=due_s, lag_s=reply.began_s - due_s)
                caller.replies.append(reply)
                with self._progress:
                    self._latest_s[number] = reply.began_s
                    self._progress.notify_all()
                free_s = time.monotonic()
                due_s = (due_s if caller.is_scheduled else free_s) + caller.each_s
                while due_s < free_s:  # the call delayed these as well
                    if reply.status == "OK":
                        caller.replies.append(replace(reply, began_s=due_s, lag_s=0.0))
                    due_s += caller.each_s
                if self._is_over.wait(max(0.0, due_s - free_s)):
                    return


class TranslatingTraffic(ControlTraffic):
    """Callers that send known requests, and one that makes a call that needs neither queue nor model."""

    def __init__(
        self,
        address: str,
        known_requests: Sequence[KnownRequest],
        *,
        num_translating: int = 3,
        each_s: float = 0.02,
        probe: Callable[[Client], Reply] = Client.check,
        probe_each_s: float = 0.02,
    ) -> None:
        calls = [known.send for known in known_requests]
        open_client = partial(connect, address)
        prober = Caller(connect=open_client, calls=[probe], each_s=probe_each_s)
        self.translations, self.probes = list[Reply](), prober.replies
        translators = [
            Caller(
                connect=open_client, calls=[*calls[first:], *calls[:first]], each_s=each_s, replies=self.translations
            )
            for first in range(num_translating)
        ]
        super().__init__([*translators, prober])


def _shown(answer: bytes) -> list[tuple[str, float]]:
    translations = pb.TranslateResponse.FromString(answer).translations
    return [(one.text, one.score) for translation in translations for one in translation.hypotheses]
