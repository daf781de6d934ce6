"""Callers of the shipped client in threads: each calls again and again, and how its calls end is counted."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypedDict

from deploy.ci.servers import Keys
from dragoman.client import TranslationClient
from dragoman.client.channel import ChannelSettings, RetrySettings
from dragoman.client.credentials import TlsOptions
from dragoman.client.enums import Priority
from dragoman.client.errors import DragomanError
from dragoman.client.request import DecodingOptions, TranslationRequest
from loadtests.generator.texts import sample

Act = Callable[[random.Random], object]

_JOIN_TIMEOUT_S: Final = 60.0
_TIMEOUT_S: Final = 30.0
_KEEPALIVE_S: Final = 60.0
_DOCUMENT_SENTENCES: Final = 12
_NO_RETRIES: Final = ChannelSettings(retry=RetrySettings(max_attempts=1))
_NUM_OVERLOADING: Final = 12
_OVERLOAD_SENTENCES: Final = 40
_OVERLOAD_PAUSE_S: Final = 0.05
_OVERLOAD_TIMEOUT_S: Final = 20.0
_REPETITIVE: Final = "xkcd://42/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"  # the model that ships answers in a loop


class Languages(TypedDict):
    """Of a request."""

    source_language: str
    target_language: str


EN_DE: Final = Languages(source_language="en", target_language="de")


class Callers:
    """Threads that call until `with` is left, which waits for their last answers."""

    def __init__(self, *, seed: int = 1) -> None:
        """Prepare; `seed` is that of all texts."""
        self.outcomes: Counter[str] = Counter()
        """Calls by `KIND OUTCOME`, such as `document ok`."""
        self._seed = seed
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients = ExitStack()

    def connect(self, target: str, **options: Any) -> TranslationClient:
        """Return a client that is closed after the last answer."""
        return self._clients.enter_context(TranslationClient(target, **options))

    def begin(self, name: str, act: Act, *, every_s: float = 0.0, until: threading.Event | None = None) -> None:
        """Start a caller; the kind of its calls is its name up to the first `-`."""
        generator, is_over = random.Random(f"{self._seed} {name}"), until or self._is_over  # noqa: S311 - texts
        kind = name.partition("-")[0]

        def run() -> None:
            while not (is_over.wait(every_s) or self._is_over.is_set()):
                self._count(kind, act, generator)

        self._threads.append(threading.Thread(target=run, name=f"caller-{name}", daemon=True))
        self._threads[-1].start()

    def failed(self, error: DragomanError) -> None:
        """Take note of a call that failed; any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
        self._clients.close()

    def _count(self, kind: str, act: Act, generator: random.Random) -> None:
        try:
            act(generator)
            outcome = "ok"
        except DragomanError as error:
            outcome = type(error).__name__
            self.failed(error)
        with self._lock:
            self.outcomes[f"{kind} {outcome}"] += 1


@dataclass(slots=True)
class Tally:
    """What became of the calls."""

    durations_s: list[float] = field(default_factory=list)
    """Of calls of Translate that were answered, retries included."""

    documents: int = 0
    """Calls of TranslateDocument that were answered to the last sentence."""

    failures: list[str] = field(default_factory=list)
    """Errors that came through to a caller."""

    versions: Counter[str] = field(default_factory=Counter)
    """Of the model, by calls of Translate."""

    def p99_ms(self) -> float:
        """Return the 99th percentile of the durations."""
        ordered = sorted(self.durations_s)
        return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)] * 1000 if ordered else 0.0


class SteadyCallers(Callers):
    """Callers that ask again as soon as they are answered, each on a connection of its own; no call may fail."""

    def __init__(self, target: str, api_key: str, *, num_texts: int) -> None:
        """Start so many callers of Translate."""
        super().__init__()
        self.tally = Tally()
        self._target, self._api_key, self._num_texts = target, api_key, num_texts
        for number in range(num_texts):
            self._begin("text", number, self._text)

    def begin_documents(self, num_callers: int) -> None:
        """Start so many callers of TranslateDocument."""
        for number in range(num_callers):
            self._begin("document", self._num_texts + number, self._document)

    def forget_versions(self) -> None:
        """Count versions anew, once every call that is under way now has been answered."""
        under_way = len(self.tally.durations_s) + 2 * self._num_texts
        while len(self.tally.durations_s) < under_way and not self.tally.failures:
            time.sleep(0.01)
        self.tally.versions.clear()

    def failed(self, error: DragomanError) -> None:
        """No call may fail."""
        self.tally.failures.append(f"{type(error).__name__}: {error}")

    def _begin(self, kind: str, number: int, act: Callable[[TranslationClient, random.Random], None]) -> None:
        channel = ChannelSettings(keepalive_time_s=_KEEPALIVE_S + number)  # gRPC shares connections of like settings
        client = self.connect(self._target, api_key=self._api_key, timeout_s=_TIMEOUT_S, channel=channel)
        self.begin(f"{kind}-{number}", lambda generator: act(client, generator))

    def _text(self, client: TranslationClient, generator: random.Random) -> None:
        texts = sample(generator, generator.randint(1, 3))
        began_s = time.perf_counter()
        result = client.translate(texts, **EN_DE)
        self.tally.durations_s.append(time.perf_counter() - began_s)
        self.tally.versions[result.model_version] += 1
        if len(result) != len(texts):
            self.tally.failures.append(f"{len(result)} translations of {len(texts)} texts")

    def _document(self, client: TranslationClient, generator: random.Random) -> None:
        text = " ".join(sample(generator, _DOCUMENT_SENTENCES))
        indexes = [sentence.index for sentence in client.translate_document(text, **EN_DE)]
        if indexes == list(range(_DOCUMENT_SENTENCES)):
            self.tally.documents += 1
        else:
            self.tally.failures.append(f"a document of {_DOCUMENT_SENTENCES} sentences arrived as {indexes}")


class MixedCallers(Callers):
    """Callers of every kind, valid and invalid, on purpose; and for a while far more than the server can answer."""

    def __init__(self, target: str, tls_target: str, authority: bytes, keys: Keys) -> None:
        """Connect and start.

        Args:
            target: of most calls, in plain text.
            tls_target: of a few.
            authority: trusted by the latter.
            keys: of the callers.
        """
        super().__init__()
        self._is_overload_over = threading.Event()
        self._client = self.connect(target, api_key=keys.api_key)
        self._unknown = self.connect(target, api_key="dgm_000000000000_nobody")
        self._overloading = self.connect(target, api_key=keys.api_key, channel=_NO_RETRIES)
        limited = self.connect(target, api_key=keys.limited_key, channel=_NO_RETRIES)
        tls = self.connect(tls_target, api_key=keys.api_key, tls=TlsOptions(ca=authority))
        invalid = self._invalid_calls()
        for name, act, every_s in (
            ("steady", self._translate, 0.15),
            ("tls", lambda generator: tls.translate(sample(generator, 1), **EN_DE), 0.7),
            ("document", lambda generator: list(self._document(generator, 8)), 3.0),
            ("cancelled", self._cancel_document, 3.0),
            ("stream", self._stream, 3.0),
            ("invalid", lambda _: next(invalid)(), 0.5),
            ("limited", lambda generator: limited.translate(sample(generator, 1), **EN_DE), 0.4),
            ("hurried", self._set_short_deadline, 0.7),
            ("truncated", self._provoke_warnings, 1.0),
        ):
            self.begin(name, act, every_s=every_s)

    def begin_overload(self) -> None:
        """Ask for far more than the server can do, until `end_overload`."""
        for number in range(_NUM_OVERLOADING):
            self.begin(f"overload-{number}", self._overload, every_s=_OVERLOAD_PAUSE_S, until=self._is_overload_over)

    def end_overload(self) -> None:
        """Stop the callers of `begin_overload`."""
        self._is_overload_over.set()

    def _translate(self, generator: random.Random) -> None:
        priority = generator.choice([Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BULK])
        self._client.translate(sample(generator, generator.randint(1, 3)), priority=priority, **EN_DE)

    def _document(self, generator: random.Random, num_sentences: int) -> Any:
        return self._client.translate_document(" ".join(sample(generator, num_sentences)), **EN_DE)

    def _cancel_document(self, generator: random.Random) -> None:
        sentences = self._document(generator, 40)
        next(sentences)
        sentences.close()

    def _stream(self, generator: random.Random) -> None:
        texts = sample(generator, 3)
        requests = [TranslationRequest(texts=[text], source_language="en", target_language="de") for text in texts]
        list(self._client.translate_stream(requests))

    def _invalid_calls(self) -> Iterator[Callable[[], object]]:
        hello = ["Hello."]
        return itertools.cycle(
            (
                lambda: self._client.translate(hello, source_language="en", target_language="xx"),
                lambda: self._client.translate(hello, options=DecodingOptions(beam_size=99), **EN_DE),
                lambda: self._unknown.translate(hello, **EN_DE),
            )
        )

    def _set_short_deadline(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 12), timeout_s=generator.choice([0.03, 0.1]), **EN_DE)

    def _provoke_warnings(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 1), options=DecodingOptions(max_target_tokens=3), **EN_DE)
        self._client.translate([_REPETITIVE], **EN_DE)

    def _overload(self, generator: random.Random) -> None:
        texts = sample(generator, _OVERLOAD_SENTENCES)
        self._overloading.translate(texts, timeout_s=_OVERLOAD_TIMEOUT_S, **EN_DE)
