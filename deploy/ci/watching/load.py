"""Callers of the shipped client: well-behaved ones, mistaken ones, hasty ones, and for a while far too many."""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self, TypedDict

from dragoman.channel import ChannelSettings, RetrySettings
from dragoman.client import TranslationClient
from dragoman.credentials import TlsOptions
from dragoman.enums import Priority
from dragoman.errors import DragomanError
from dragoman.requests import DecodingOptions, TranslationRequest

from deploy.ci.servers import Keys
from loadtests.texts import sample

_UNTIRED: Final = ChannelSettings(retry=RetrySettings(max_attempts=1))
_NUM_STORMERS: Final = 12
_STORM_SENTENCES: Final = 40
_STORM_PAUSE_S: Final = 0.05
_TIMEOUT_S: Final = 20.0
_BABBLE: Final = "xkcd://42/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"  # the model that ships answers in a loop
_JOIN_TIMEOUT_S: Final = 30.0

Act = Callable[[random.Random], None]


class _Languages(TypedDict):
    source_language: str
    target_language: str


_EN_DE: Final = _Languages(source_language="en", target_language="de")


class Load:
    """Calls from within `with`; the tally says how calls of each habit ended."""

    def __init__(self, target: str, tls_target: str, authority: bytes, keys: Keys, *, seed: int = 1) -> None:
        """Connect.

        Args:
            target: of most calls, in plain text.
            tls_target: of a few.
            authority: whom the latter trust.
            keys: of the callers.
            seed: of texts.
        """
        self.tally: Counter[str] = Counter()
        self._seed = seed
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._is_storm_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients = ExitStack()
        connect = self._clients.enter_context
        self._client = connect(TranslationClient(target, api_key=keys.api_key))
        self._limited = connect(TranslationClient(target, api_key=keys.limited_key, channel=_UNTIRED))
        self._stranger = connect(TranslationClient(target, api_key="dgm_000000000000_nobody"))
        self._stormer = connect(TranslationClient(target, api_key=keys.api_key, channel=_UNTIRED))
        self._tls = connect(TranslationClient(tls_target, api_key=keys.api_key, tls=TlsOptions(ca=authority)))
        self._mistakes = self._next_mistake()

    def begin_storm(self) -> None:
        """Ask for far more than the server can do, until `end_storm`."""
        for number in range(_NUM_STORMERS):
            self._begin(f"storm-{number}", self._storm, _STORM_PAUSE_S, self._is_storm_over)

    def end_storm(self) -> None:
        """Go back to what is normal."""
        self._is_storm_over.set()

    def __enter__(self) -> Self:
        for name, act, every_s in (
            ("steady", self._translate, 0.15),
            ("tls", self._translate_over_tls, 0.7),
            ("document", self._read_document, 3.0),
            ("leaving", self._leave_document, 3.0),
            ("stream", self._stream, 3.0),
            ("mistaken", self._mistake, 0.5),
            ("limited", self._exceed_limit, 0.4),
            ("hasty", self._hurry, 0.7),
            ("odd", self._say_something_odd, 1.0),
        ):
            self._begin(name, act, every_s, self._is_over)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_storm_over.set()
        self._is_over.set()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
        self._clients.close()

    def _begin(self, name: str, act: Act, every_s: float, is_over: threading.Event) -> None:
        generator = random.Random(f"{self._seed} {name}")  # noqa: S311 - texts, not secrets
        habit = name.partition("-")[0]

        def run() -> None:
            while not is_over.wait(every_s):
                self._count(habit, act, generator)

        thread = threading.Thread(target=run, name=f"load-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _count(self, habit: str, act: Act, generator: random.Random) -> None:
        try:
            act(generator)
            outcome = "ok"
        except DragomanError as error:
            outcome = type(error).__name__
        with self._lock:
            self.tally[f"{habit} {outcome}"] += 1

    def _translate(self, generator: random.Random) -> None:
        priority = generator.choice([Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BULK])
        self._client.translate(sample(generator, generator.randint(1, 3)), priority=priority, **_EN_DE)

    def _translate_over_tls(self, generator: random.Random) -> None:
        self._tls.translate(sample(generator, 1), **_EN_DE)

    def _read_document(self, generator: random.Random) -> None:
        list(self._client.translate_document(_text(generator, 8), **_EN_DE))

    def _leave_document(self, generator: random.Random) -> None:
        sentences = self._client.translate_document(_text(generator, 40), **_EN_DE)
        next(sentences)
        sentences.close()

    def _stream(self, generator: random.Random) -> None:
        requests = [
            TranslationRequest(texts=sample(generator, 1), source_language="en", target_language="de") for _ in range(3)
        ]
        list(self._client.translate_stream(requests))

    def _mistake(self, _: random.Random) -> None:
        next(self._mistakes)()

    def _next_mistake(self) -> Iterator[Callable[[], object]]:
        hello = ["Hello."]
        return itertools.cycle(
            (
                lambda: self._client.translate(hello, source_language="en", target_language="xx"),
                lambda: self._client.translate(hello, options=DecodingOptions(beam_size=99), **_EN_DE),
                lambda: self._stranger.translate(hello, **_EN_DE),
            )
        )

    def _exceed_limit(self, generator: random.Random) -> None:
        self._limited.translate(sample(generator, 1), **_EN_DE)

    def _hurry(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 12), timeout_s=generator.choice([0.03, 0.1]), **_EN_DE)

    def _say_something_odd(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 1), options=DecodingOptions(max_target_tokens=3), **_EN_DE)
        self._client.translate([_BABBLE], **_EN_DE)

    def _storm(self, generator: random.Random) -> None:
        texts: Sequence[str] = sample(generator, _STORM_SENTENCES)
        self._stormer.translate(texts, timeout_s=_TIMEOUT_S, **_EN_DE)


def _text(generator: random.Random, num_sentences: int) -> str:
    return " ".join(sample(generator, num_sentences))
