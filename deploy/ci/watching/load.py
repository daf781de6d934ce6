"""The load of the test: callers that behave, that make mistakes, that are in a hurry, and for a while far too many."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Final

from dragoman.channel import ChannelSettings, RetrySettings
from dragoman.credentials import TlsOptions
from dragoman.enums import Priority
from dragoman.requests import DecodingOptions, TranslationRequest

from deploy.ci.callers import EN_DE, Callers
from deploy.ci.servers import Keys
from loadtests.texts import sample

_NO_RETRIES: Final = ChannelSettings(retry=RetrySettings(max_attempts=1))
_NUM_STORMERS: Final = 12
_STORM_SENTENCES: Final = 40
_STORM_PAUSE_S: Final = 0.05
_TIMEOUT_S: Final = 20.0
_BABBLE: Final = "xkcd://42/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"  # the model that ships answers in a loop


class Load(Callers):
    """Calls from within `with`; the outcomes say how calls of each kind ended."""

    def __init__(self, target: str, tls_target: str, authority: bytes, keys: Keys) -> None:
        """Connect and start.

        Args:
            target: of most calls, in plain text.
            tls_target: of a few.
            authority: trusted by the latter.
            keys: of the callers.
        """
        super().__init__()
        self._is_storm_over = threading.Event()
        self._client = self.connect(target, api_key=keys.api_key)
        self._limited = self.connect(target, api_key=keys.limited_key, channel=_NO_RETRIES)
        self._stranger = self.connect(target, api_key="dgm_000000000000_nobody")
        self._stormer = self.connect(target, api_key=keys.api_key, channel=_NO_RETRIES)
        self._tls = self.connect(tls_target, api_key=keys.api_key, tls=TlsOptions(ca=authority))
        self._mistakes = self._next_mistake()
        for name, act, every_s in (
            ("steady", self._translate, 0.15),
            ("tls", lambda generator: self._tls.translate(sample(generator, 1), **EN_DE), 0.7),
            ("document", lambda generator: list(self._client.translate_document(_text(generator, 8), **EN_DE)), 3.0),
            ("leaving", self._leave_document, 3.0),
            ("stream", self._stream, 3.0),
            ("mistaken", lambda _: next(self._mistakes)(), 0.5),
            ("limited", lambda generator: self._limited.translate(sample(generator, 1), **EN_DE), 0.4),
            ("hasty", self._hurry, 0.7),
            ("odd", self._say_something_odd, 1.0),
        ):
            self.begin(name, act, every_s=every_s)

    def begin_storm(self) -> None:
        """Ask for far more than the server can do, until `end_storm`."""
        for number in range(_NUM_STORMERS):
            self.begin(f"storm-{number}", self._storm, every_s=_STORM_PAUSE_S, until=self._is_storm_over)

    def end_storm(self) -> None:
        """Go back to what is normal."""
        self._is_storm_over.set()

    def _translate(self, generator: random.Random) -> None:
        priority = generator.choice([Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BULK])
        self._client.translate(sample(generator, generator.randint(1, 3)), priority=priority, **EN_DE)

    def _leave_document(self, generator: random.Random) -> None:
        sentences = self._client.translate_document(_text(generator, 40), **EN_DE)
        next(sentences)
        sentences.close()

    def _stream(self, generator: random.Random) -> None:
        requests = [
            TranslationRequest(texts=sample(generator, 1), source_language="en", target_language="de") for _ in range(3)
        ]
        list(self._client.translate_stream(requests))

    def _next_mistake(self) -> Iterator[Callable[[], object]]:
        hello = ["Hello."]
        return itertools.cycle(
            (
                lambda: self._client.translate(hello, source_language="en", target_language="xx"),
                lambda: self._client.translate(hello, options=DecodingOptions(beam_size=99), **EN_DE),
                lambda: self._stranger.translate(hello, **EN_DE),
            )
        )

    def _hurry(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 12), timeout_s=generator.choice([0.03, 0.1]), **EN_DE)

    def _say_something_odd(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 1), options=DecodingOptions(max_target_tokens=3), **EN_DE)
        self._client.translate([_BABBLE], **EN_DE)

    def _storm(self, generator: random.Random) -> None:
        self._stormer.translate(sample(generator, _STORM_SENTENCES), timeout_s=_TIMEOUT_S, **EN_DE)


def _text(generator: random.Random, num_sentences: int) -> str:
    return " ".join(sample(generator, num_sentences))
